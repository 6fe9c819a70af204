r"""The check of certificates of deep networks: every bound again, from the graph and numbers that need not be believed.

Arithmetic is that of `midrad`: tensors with a radius that holds what rounding did. Over a cell, a box or the part of a
ball in it, a step bounds a form of the outputs from below:

    Interval     by where all values lie, the last map merged with the form
    Planes       backwards, by a plane below or above every product, mixed of two by numbers in [0, 1]
    Generators   by affine arithmetic, see `zonotopes`
    Layers       by all second-order terms together: with the generators u of affine arithmetic the form is exactly
                 `constant + l.u + sum_i g_i (A_i.u)(B_i.u)`, and for a diagonal d with which the terms of every product
                 are convex, q(u) = sum_i g_i (A_i.u)(B_i.u) + sum_j d_j u_j^2, and for any v, it is at least
                 `constant - sum(d) - q(v) - max (-(l + 2 Q v).u)`
    Whole        the same with a diagonal that makes all terms together convex

That a diagonal does so is proven by the residual of an approximate Cholesky factor; what it lacks is added to it. Of
`Layers`, the file has one number for each product: d is that times the diagonal of interval arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite, nextafter

import torch
from torch import Tensor

from polybound.certificates.proofs.exact import exact_sides
from polybound.certificates.proofs.midrad import (
    LEAST,
    MORE,
    MidRad,
    MidRads,
    U,
    choose,
    length,
    off,
    psd_deficit,
    pull,
    up_sum,
)
from polybound.certificates.proofs.schema import (
    Bounded,
    Claim,
    Claims,
    Falsified,
    Generators,
    Interval,
    Layers,
    Planes,
    Proof,
    RefusedError,
    Split,
    Step,
    Vector,
    Verified,
    Whole,
)
from polybound.certificates.proofs.zonotopes import Zonotope, Zonotopes
from polybound.models import Applied, Fractions, Graph, Input, Product, Sum

_MEMORY = 2**26
"""Numbers that the generators of one value may have."""

_EXACT = 2**20
"""Entries of all maps up to which a counterexample that is nearly a tie is judged in rational arithmetic."""


def prove_graph(claims: Claims, graph: Graph, on_progress: Callable[[int, int, str], None] | None = None) -> list[str]:
    """Prove all claims about a deep network; returns the status of each image. Raises `RefusedError` otherwise."""
    checker, found = GraphChecker(graph, claims), list[str]()
    for number, image in enumerate(claims.images):
        try:
            found.append(checker.check(image))
        except RefusedError as error:
            raise RefusedError(f"image {number}: {error}") from error
        if on_progress is not None:
            on_progress(len(found), len(claims.images), "")
    return found


class GraphChecker:
    """Proves claims about one deep network, image by image."""

    def __init__(self, graph: Graph, claims: Claims) -> None:
        self.graph, self.domain, self.norm, self.forms = graph.double(), claims.domain, claims.norm, claims.forms or ()
        parts = [node.map for node in self.graph.nodes if isinstance(node, Applied)]
        if not all(bool(part(torch.zeros(1, part.inputs, dtype=torch.float64)).isfinite().all()) for part in parts):
            raise RefusedError("the network's weights are not all finite")

    def check(self, claim: Claim, least: float = 0.0) -> str:
        """Refuse an image's claim unless it holds; returns its status.

        Args:
            claim: of an image.
            least: proven margins must be above this share of the margin at the input.
        """
        try:
            with torch.no_grad():
                return self._check(claim, least)
        except RefusedError:
            raise
        except (OverflowError, ZeroDivisionError, ValueError) as error:  # of numbers that are no float64, or infinite
            raise RefusedError("a certificate's numbers leave the range of float64") from error

    def _check(self, claim: Claim, least: float) -> str:
        cell = Cell.of(self.graph, claim, self.domain, self.norm)
        if isinstance(claim, Verified):
            logits = self.graph(torch.tensor([claim.x], dtype=torch.float64))[0].tolist()
            for rival, proof in claim.proofs:
                level = Fraction(least * abs(logits[claim.label] - logits[rival]))
                self._prove(proof, cell, self._form(claim.label, rival), level)
            return "verified"
        if isinstance(claim, Falsified):
            self._place(claim, claim.point)
            if self._above(claim.point, self._form(claim.label, claim.rival), Fraction(0)):
                raise RefusedError("a counterexample is classified as its label")
            return "falsified"
        if isinstance(claim, Bounded):
            self._intervals(claim, cell)
            return "bounded" if all((*claim.lower, *claim.upper)) else "unbounded"
        return "undecided"

    def _intervals(self, claim: Bounded, cell: Cell) -> None:
        """Prove that every form is within its proven ends, and attains the others at the points that are named."""
        for row, (given, constant) in enumerate(self.forms):
            form = torch.tensor([given], dtype=torch.float64)
            for sign, end, attained in ((1, claim.lower, claim.lowest), (-1, claim.upper, claim.highest)):
                if (proven := end[row]) is not None:
                    self._prove(proven[1], cell, sign * form, sign * (Fraction(proven[0]) - Fraction(constant)))
                if (reached := attained[row]) is not None:
                    self._place(claim, reached[1])
                    if self._above(reached[1], sign * form, sign * (Fraction(reached[0]) - Fraction(constant))):
                        raise RefusedError("a value is not attained where the file says")

    def _form(self, label: int, rival: int) -> Tensor:
        form = torch.zeros(1, self.graph.classes, dtype=torch.float64)
        form[0, label], form[0, rival] = 1.0, -1.0
        return form

    def _prove(self, proof: Proof, cell: Cell, form: Tensor, level: Fraction) -> None:
        """Prove that a form is above a level all over a cell, or refuse."""
        if not self.least(proof, cell, form) > level:
            raise RefusedError("a bound is not positive")

    def least(self, proof: Proof, whole: Cell, form: Tensor) -> Fraction:
        """The lower bound of a form, (1, classes), that a proof has over a cell."""
        stack, found = [(0, whole)], list[Fraction]()
        while stack:
            index, cell = stack.pop()
            step = proof[index]
            if isinstance(step, Split):
                low, high = cell.halves(step.coordinate, step.at)
                stack += [(step.low, low), (step.high, high)]
                continue
            bound = cell.bound(form, step)
            if not isfinite(bound):
                raise RefusedError("a proof's numbers leave the range of float64")
            found.append(Fraction(bound))
        return min(found)

    def _place(self, claim: Claim, point: Vector) -> None:
        """Refuse a point that is outside of the box or of the ball."""
        lower, upper = exact_sides(claim, self.domain)
        if not all(a <= Fraction(v) <= b for v, a, b in zip(point, lower, upper, strict=True)):
            raise RefusedError("a point lies outside of its box")
        if self.norm == "2" and claim.radii is not None:
            moved = [
                (Fraction(v) - Fraction(x), Fraction(r)) for v, x, r in zip(point, claim.x, claim.radii, strict=True)
            ]
            if sum(((v / r) ** 2 for v, r in moved if r), Fraction(0)) > 1:
                raise RefusedError("a point lies outside of its ball")

    def value(self, point: Vector, form: Tensor) -> MidRad:
        """A form of the outputs at a point."""
        at = MidRad.exact(torch.tensor([point], dtype=torch.float64))
        return (self.graph.evaluate(MidRads(), at) * form).sum()

    def _above(self, point: Vector, form: Tensor, level: Fraction) -> bool:
        """Whether a form of the outputs at a point may be above a level."""
        value = self.value(point, form)
        if Fraction(float(value.upper)) <= level:
            return False
        entries = sum(node.map.inputs * node.map.outputs for node in self.graph.nodes if isinstance(node, Applied))
        if Fraction(float(value.lower)) > level or entries > _EXACT:
            return True
        logits = self.graph.evaluate(Fractions(), [Fraction(v) for v in point])
        return sum((Fraction(w) * y for w, y in zip(form[0].tolist(), logits, strict=True)), Fraction(0)) > level


class Cell:
    """A box, or the part of a ball in it, and what its bounds have in common.

    Args:
        graph: in float64.
        lower: the lower sides, (1, features).
        upper: the upper ones.
        ball: centre and radii of the l_2 ball, and the limits of `u` in `centre + radii * u`; None for all of the box.
    """

    def __init__(
        self, graph: Graph, lower: Tensor, upper: Tensor, ball: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    ) -> None:
        self.graph, self.lower, self.upper, self.ball = graph, lower, upper, ball
        box = MidRad.between(lower, upper)
        self.centre, self.radius = (box.mid, box.rad) if ball is None else ball[:2]
        self._halves: dict[tuple[int, float], tuple[Cell, Cell]] = {}

    @staticmethod
    def of(graph: Graph, claim: Claim, domain: tuple[Vector, Vector] | None, norm: str) -> Cell:
        """The cell of a claim, rounded outwards."""
        sides = exact_sides(claim, domain)
        low = torch.tensor([[down(v) for v in sides[0]]], dtype=torch.float64)
        high = torch.tensor([[-down(-v) for v in sides[1]]], dtype=torch.float64)
        if norm != "2" or claim.radii is None:
            return Cell(graph, low, high)
        limits: list[list[float]] = [[], []]
        for entry, radius, *ends in zip(claim.x, claim.radii, *sides, strict=True):
            for limit, end, sign in zip(limits, ends, (1, -1), strict=True):
                limit.append(sign * down(sign * (end - Fraction(entry)) / Fraction(radius)) if radius else 0.0)
        x, r, least, most = (torch.tensor([v], dtype=torch.float64) for v in (claim.x, claim.radii, *limits))
        return Cell(graph, low, high, (x, r, least, most))

    def halves(self, coordinate: int, at: float) -> tuple[Cell, Cell]:
        """The box cut in two."""
        if self.ball is not None or not self.lower[0, coordinate] <= at <= self.upper[0, coordinate]:
            raise RefusedError("a box is cut where it is not")
        key = coordinate, at
        if key not in self._halves:
            upper, lower = self.upper.clone(), self.lower.clone()
            upper[0, coordinate] = lower[0, coordinate] = at
            self._halves[key] = Cell(self.graph, self.lower, upper), Cell(self.graph, lower, self.upper)
        return self._halves[key]

    def bound(self, form: Tensor, step: Step) -> float:
        """A lower bound of a form of the outputs, (1, classes); not finite if there is none."""
        if isinstance(step, Interval):
            return self._interval(form)
        if isinstance(step, Planes):
            return self._planes(form, step)
        if isinstance(step, Generators):
            return self._generators(form)
        if isinstance(step, Layers | Whole):
            return self._joint(form, step)
        raise RefusedError(f"a step by {type(step).__name__} is about chains of products")

    @cached_property
    def values(self) -> list[MidRad]:
        """Where the values of all nodes lie."""
        found: dict[int, MidRad] = {}
        self.graph.evaluate(MidRads(), MidRad.between(self.lower, self.upper), watch=found.__setitem__)
        return [found[number] for number in range(len(self.graph.nodes))]

    @cached_property
    def walked(self) -> tuple[Zonotopes, Zonotope, dict[int, Tensor]]:
        """The algebra after the walk, the output, and the largest absolute values of all nodes."""
        most = max(1, _MEMORY // max(self.graph.sizes))
        algebra, sizes = Zonotopes(self.ball is not None, most, [], []), dict[int, Tensor]()

        def watch(number: int, value: Zonotope) -> None:
            sizes[number] = value.largest

        output = self.graph.evaluate(algebra, algebra.input(self.centre, self.radius), watch=watch)
        return algebra, output, sizes

    def away(self, form: MidRad) -> float:
        """At least the largest `-form . u` over the u of the input, for a form (features,)."""
        size = form.largest
        if self.ball is None:
            return float(up_sum(size))
        _, _, low, high = (side[0] for side in self.ball)
        # Any split `-form = part + rest` has `|part|_2` and what the limits leave of the rest.
        part = _shares(-form.mid, low, high)
        rest = -form + -part
        over = torch.maximum((rest * low).upper, (rest * high).upper)
        return float(torch.minimum(length(size, 0), (length(part, 0) + up_sum(over.clamp_min(0.0))) * MORE))

    def _interval(self, form: Tensor) -> float:
        node, at, constant = self.graph.nodes[self.graph.output], self.graph.output, MidRad.exact(0.0)
        found = MidRad.exact(form)
        if isinstance(node, Applied):
            at, (found, constant) = node.source, pull(node.map, found)
        return float(((found * self.values[at]).sum() + constant).lower)

    def _planes(self, form: Tensor, step: Planes) -> float:
        products = [number for number, node in enumerate(self.graph.nodes) if isinstance(node, Product)]
        mixtures = dict(zip(products, step.mixtures, strict=True))

        def plane(number: int, g: Tensor) -> tuple[MidRad, MidRad, MidRad]:
            first, second = self.graph.nodes[number].sources
            a, b, up = self.values[first], self.values[second], g >= 0
            t = torch.as_tensor(mixtures[number], dtype=torch.float64).expand_as(g)
            low, high = MidRad.exact(a.lower), MidRad.exact(a.upper)
            if first == second:  # a tangent below, at any point; the chord above
                point = MidRad.exact(a.upper + t * (a.lower - a.upper))
                return choose(up, point * 2.0, low + high), MidRad.exact(0.0), -choose(up, point * point, low * high)
            # Of (a - l)(b - m), (u - a)(v - b) >= 0 and (a - l)(v - b), (u - a)(b - m) >= 0, a mixture of two.
            s, near, far = MidRad.exact(1.0) + -t, torch.where(up, b.lower, b.upper), torch.where(up, b.upper, b.lower)
            left, right = s * far + MidRad.exact(t) * near, s * high + low * t
            return left, right, -(s * high * far + low * t * near)

        sizes = {number: self.values[number].largest for number in products}
        constant, found = self._backwards(form, sizes, plane)
        return float((constant + (found * self.centre).sum()).lower) - self.away(_first(found * self.radius))

    def _backwards(
        self,
        form: Tensor,
        sizes: dict[int, Tensor],
        plane: Callable[[int, Tensor], tuple[MidRad, MidRad, MidRad]],
    ) -> tuple[MidRad, MidRad]:
        """A constant and a form of the input, (1,) and (1, features), from a form of the output.

        Args:
            form: (1, classes).
            sizes: of every product, the largest absolute values.
            plane: for a product and the exact form of its values, what takes the place of each value `a b`: a multiple
                of a, one of b and a constant.
        """
        at, constant = {self.graph.output: MidRad.exact(form)}, MidRad.exact(torch.zeros(1, dtype=torch.float64))

        def add(source: int, more: MidRad) -> None:
            at[source] = at[source] + more if source in at else more

        for number in range(len(self.graph.nodes) - 1, -1, -1):
            node = self.graph.nodes[number]
            if number not in at or isinstance(node, Input):
                continue
            g = at.pop(number)
            if isinstance(node, Applied):
                g, more = pull(node.map, g)
                constant = constant + more
                add(node.source, g)
            elif isinstance(node, Sum):
                for source in node.sources:
                    add(source, g)
            elif isinstance(node, Product):
                constant = constant.looser(up_sum(g.rad * sizes[number]))
                left, right, rest = plane(number, g.mid)
                constant = constant + (rest * g.mid).sum()
                add(node.left, left * g.mid)
                if node.left != node.right:
                    add(node.right, right * g.mid)
        return constant, at.get(0, MidRad.exact(torch.zeros(1, self.graph.features, dtype=torch.float64)))

    def _generators(self, form: Tensor) -> float:
        algebra, output, _ = self.walked
        value = (MidRad.exact(form) * MidRad(output.centre, output.slack)).sum()
        away = 0.0
        for name, index in enumerate(algebra.index):
            rows = output.written(name, len(index))
            away += self._away(name, MidRad.exact(form).times(rows.T)) * MORE
        return float(value.lower) - away

    def _away(self, name: int, moved: MidRad) -> float:
        """At least the largest value of minus a form of the generators of a name, (1, generators)."""
        if name or self.ball is None:
            return float(up_sum(moved.largest))
        index, whole = self.walked[0].index[0], torch.zeros_like(self.centre[0])
        return self.away(MidRad(whole.index_copy(0, index, moved.mid[0]), whole.index_copy(0, index, moved.rad[0])))

    @cached_property
    def rows(self) -> list[tuple[Tensor, Tensor]]:
        """Of each product the generators of its factors, (generators, size), those of the names before it."""
        algebra, found = self.walked[0], list[tuple[Tensor, Tensor]]()
        for place, one in enumerate(algebra.factors, 1):
            names = list(enumerate(map(len, algebra.index[:place])))
            A = torch.cat([one.left.written(*name) for name in names])
            square = one.left is one.right
            found.append((A, A if square else torch.cat([one.right.written(*name) for name in names])))
        return found

    def _joint(self, form: Tensor, step: Layers | Whole) -> float:
        algebra, _, sizes = self.walked
        products = [number for number, node in enumerate(self.graph.nodes) if isinstance(node, Product)]
        places, g, lost = {number: k for k, number in enumerate(products)}, dict[int, Tensor](), 0.0

        counts, index = [len(one) for one in algebra.index], algebra.index
        moves = [torch.zeros(count, dtype=torch.float64) for count in counts]

        def centre(number: int, form: Tensor) -> tuple[MidRad, MidRad, MidRad]:
            nonlocal lost
            place, one = places[number], algebra.factors[places[number]]
            a, b, loose = MidRad.exact(one.left.centre), MidRad.exact(one.right.centre), one.loose
            constant = -(a * b)
            if isinstance(step, Layers) and step.scale[place] is None:  # its remainder stays a generator
                constant = constant + one.middle
                moves[place + 1] = form[0, one.index] * one.radius[0, one.index]
                loose = loose + one.radius.index_fill(1, one.index, U * float(one.radius.amax()) + LEAST)
            else:
                g[place] = form[0]
            lost += float(up_sum(form.abs() * loose * MORE + LEAST)) * MORE
            return (a * 2.0 if one.left is one.right else b), a, constant

        constant, found = self._backwards(form, sizes, centre)
        constant = constant + (found * self.centre).sum()
        v = torch.cat([_gathered(block, one) for block, one in zip(step.v, index, strict=True)])
        if isinstance(step, Layers):
            d = torch.zeros_like(v)
            for place, scale in enumerate(step.scale):
                if scale is not None and place in g:
                    n = sum(counts[: place + 1])
                    d[:n] = (d[:n] + self._dominating(place, g[place], scale)) * MORE
        else:
            d = torch.cat([_gathered(block, one) for block, one in zip(step.d, index, strict=True)])
            d = (d + self._deficit(g, d)) * MORE
        # q and its slope at v.
        q, slope = (MidRad.exact(d) * v * v).sum(), MidRad.exact(2 * d) * v
        for place, weight in g.items():
            A, B = self.rows[place]
            n = len(A)
            a = MidRad.exact(v[:n]).times(A)
            b = a if A is B else MidRad.exact(v[:n]).times(B)
            q = q + (a * b * weight).sum()
            more = (a * weight * 2.0).times(A.T) if A is B else (b * weight).times(A.T) + (a * weight).times(B.T)
            slope = slope + _padded(more, len(v))
        first, whole = counts[0], torch.zeros_like(self.centre[0])
        slope = slope + torch.cat(moves)
        near = MidRad(*(whole.index_copy(0, index[0], part[:first]) for part in (slope.mid, slope.rad)))
        away = self.away(_first(found * self.radius) + near) + float(up_sum(slope.largest[first:]))
        cost = (
            float(up_sum(d))
            if self.ball is None
            else float(d[:first].amax() if first else 0.0) + float(up_sum(d[first:]))
        )
        return float((constant + -q).lower) - (away + cost + lost) * MORE

    def _dominating(self, place: int, g: Tensor, scale: float) -> Tensor:
        """A diagonal with which the terms of one product are convex, (generators,): the file's multiple of `s`.

        The terms that pull down are `-n_i (r_i.u)^2`, with `n_i = |g_i| / 4w_i` and `r_i = w_i A_i -+ B_i`, or for a
        square `n_i = -g_i` and `r_i = A_i`. `lam diag(s) - sum_i n_i r_i r_i'` is positive semidefinite if lam is at
        least the largest eigenvalue of `X X'`, `X_ji = sqrt(n_i / s_j) r_ij`.
        """
        A, B = self.rows[place]
        one = self.walked[0].factors[place]
        if one.left is one.right:
            used = g < 0
            rows, sizes = A[:, used], A[:, used].abs()
            n = -g[used]
        else:
            used = g != 0
            w, sign = one.weights[0, used], g[used].sign()
            rows, sizes = w * A[:, used] - sign * B[:, used], w * A[:, used].abs() + B[:, used].abs()
            n = (g[used].abs() / (4 * w)) * MORE + 2.0**-900
        if not rows.numel():
            return A.new_zeros(len(A))
        first = len(self.walked[0].index[0])
        absolute = rows.abs()
        if self.ball is None:
            s = (absolute * (n * absolute.sum(0))).sum(1)
        else:  # by Cauchy's inequality, constant on the input's generators
            near = absolute[:first].square().sum(0).sqrt()
            norms = n * (near + absolute[first:].sum(0))
            s = torch.cat([(norms * near).sum().expand(first), (absolute[first:] * norms).sum(1)])
        s = s + s.mean() * 1e-3 + 2.0**-900
        roots = (n.sqrt(), 1 / s.sqrt())
        if not bool((roots[0] < 2.0**100).all() and (roots[1] < 2.0**100).all()):
            return A.new_full((len(A),), inf)
        X = rows * roots[0] * roots[1].unsqueeze(1)
        # What X is off, in the Frobenius norm.
        wrong = 16 * U * float(length((sizes * roots[0] * roots[1].unsqueeze(1)).flatten(), 0)) + X.numel() * 2.0**-700
        K = X.T @ X if X.shape[1] <= X.shape[0] else X @ X.T
        K = (K + K.T) / 2
        error = off(max(X.shape) + 8) * float(up_sum(X.square().flatten())) * MORE
        top, guess = inf, float(torch.linalg.eigvalsh(K)[-1]) * (1 + 1e-9)
        for more in (1.0, 1 + 1e-6, 1 + 1e-3, 1.03):
            lam = min(scale, guess) * more
            lack = psd_deficit(lam * torch.eye(len(K), dtype=K.dtype) - K, error + 4 * U * lam)
            top = min(top, lam + lack)
            if lack < 1e-6 * lam:
                break
        root: float = (max(0.0, top) * MORE) ** 0.5
        return s * ((root + wrong) ** 2 * MORE) * MORE

    def _deficit(self, g: dict[int, Tensor], d: Tensor) -> float:
        """What `Q = diag(d) + sum_i g_i (A_i B_i' + B_i A_i') / 2` lacks to be positive semidefinite, at most."""
        H, error = torch.zeros(len(d), len(d), dtype=torch.float64), 0.0
        for place, weight in g.items():
            A, B = self.rows[place]
            n, root = len(A), weight.abs().sqrt()
            H[:n, :n] += (A * weight) @ B.T
            norms = [float(length((rows * root).flatten(), 0)) for rows in (A, B)]
            least = LEAST * float(length(B.flatten(), 0))  # of products that underflow
            error += off(A.shape[1] + 8 + len(g)) * norms[0] * norms[1] * MORE + least
        Q = H / 2 + H.T / 2
        Q.diagonal().add_(d)
        return psd_deficit(Q, (error + 8 * U * float(length(Q.flatten(), 0))) * MORE)


def _first(value: MidRad) -> MidRad:
    return MidRad(value.mid[0], value.rad[0])


def _padded(value: MidRad, size: int) -> MidRad:
    short = size - len(value.mid)
    return MidRad(*(torch.nn.functional.pad(part, (0, short)) for part in (value.mid, value.rad)))


def _gathered(block: Vector | None, index: Tensor) -> Tensor:
    if block is None:
        return torch.zeros(len(index), dtype=torch.float64)
    return torch.tensor(block, dtype=torch.float64)[index]


def down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    near = float(value)
    return near if Fraction(near) <= value else nextafter(near, -inf)


def _shares(p: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Part of a form that is best left to the ball, the rest to the limits; by bisection, any is sound."""
    least, most = 0.0, float(p.norm())
    if not most > 0:
        return torch.zeros_like(p)
    for _ in range(50):
        lam = (least + most) / 2
        outside = float((p / lam).clamp(low, high).norm()) > 1 if lam > 0 else True
        least, most = (lam, most) if outside else (least, lam)
    inside = torch.minimum(torch.maximum(p / most, low), high)
    return inside * most
