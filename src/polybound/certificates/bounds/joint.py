r"""Bounds of a margin by all second-order terms of its products together.

With the zonotopes of all factors, `a = c_a + A u` and `b = c_b + B u` up to their slacks, one walk backwards through
the centres gives, exactly,

    margin = constant + l.u + sum_i g_i (A_i.u)(B_i.u),

g_i being the derivative by product i. The sum is over the products of the last layer, or over all; the remainders of
the others are generators, and so in l. Bounding each term by itself is what zonotopes do. Together they cancel: with a
diagonal `d` for which `quadratic part + sum_j d_j u_j^2` is convex,

    margin >= constant - sum(d) - q(v) - |l + 2 Q v|_1,    q(u) = u'Qu = sum_i g_i (A_i.u)(B_i.u) + sum_j d_j u_j^2,

for any v: the tangent plane of a convex function lies below it, and `u_j^2 <= 1`. Any v will do, and one near the
minimiser is best. `layered` takes the diagonal layer by layer: with `(A_i.u)(B_i.u) = ((p_i.u)^2 - (q_i.u)^2) / 4w_i`
only the terms of one sign pull down, `N = sum_i |g_i| / 4w_i r_i r_i'`, r_i being q_i or p_i. For a positive s,

    N <= lam diag(s),    lam = lambda_max(K),    K_ij = sqrt(n_i n_j) r_i' diag(s)^-1 r_j,

where K is as large as the layer. Taking `s = sum_i n_i |r_i|_1 |r_i|` has lam <= 1, which is interval arithmetic.
`semidefinite` writes Q itself out, as large as the generators are many, with all its terms of both signs, and moves
the diagonal towards where it helps most, as the second order of chains does.

Over l_2 balls the input's generators have norm 1 together: d is constant on them, and counts once.

Proofs: lam is a guess, and that `lam I - K` is positive semidefinite is proven by Cholesky. What K, the rows p and q,
and the value and slope of the tangent are rounded by is at most a small multiple of the roundoff times
`sum_i |g_i| (w |A_i| + |B_i|)^2 / 4w`, for |u| <= 1, and is taken off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from polybound.certificates.bounds.balls import nearest
from polybound.certificates.bounds.graphs import Forms, pull
from polybound.certificates.bounds.quadratic import least_eigenvalues, psd_deficit, spectral_shift
from polybound.certificates.bounds.zonotopes import INPUT, Factors, Walked, Zonotope
from polybound.models import Graph, Input, Product

_U = 2.0**-52
"""Twice the unit roundoff."""

_LEAST = 2.0**-900

_ENTRIES = 2**21
"""Entries that the Gram matrices may have together whose eigenvalues are found at once."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The second-order terms of one product, `sum_i g_i (A_i.u)(B_i.u)`; A and B are one object for a square.

    Attributes:
        A: (generators, units); the first generators of all.
        B: the same of the other factor.
        g: (rows, units).
        reach: bounds of `|A_i|_1` and `|B_i|_1`, (units,) each, for a ball too.
    """

    A: Tensor
    B: Tensor
    g: Tensor
    reach: tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Expansion:
    """`constant + l.u + sum over layers` for some forms of the outputs, up to `lost`; with layers, of one image.

    Attributes:
        constant: (rows,).
        linear: l, (rows, generators); the input's generators come first.
        layers: the products that are bounded together.
        lost: (rows,).
        inputs: generators of the input.
        limits: for a ball, the limits of the input's generators, of the first form's image.
        found: the walk.
        images: of each form, by number in the walk, (rows,).
    """

    constant: Tensor
    linear: Tensor
    layers: list[Layer]
    lost: Tensor
    inputs: int
    limits: tuple[Tensor, Tensor] | None
    found: Walked
    images: Tensor

    @property
    def bound(self) -> Tensor:
        """Lower bounds by the linear part alone, (rows,), where no product is bounded jointly."""
        away = self.away(self.linear)
        return (self.constant - away - self.off(away)).nan_to_num(-torch.inf, -torch.inf, -torch.inf)

    def cost(self, d: Tensor) -> Tensor:
        """The largest `sum_j d_j u_j^2`, (rows,), for d >= 0."""
        if self.limits is None:
            return d.sum(1)
        first = d[:, : self.inputs].amax(1)
        return first + d[:, self.inputs :].sum(1)

    def away(self, form: Tensor) -> Tensor:
        """The largest value of a form of the generators, (rows,)."""
        first = self.found.away(form[:, : self.inputs], self.images)
        return first + form[:, self.inputs :].abs().sum(1)

    def inside(self, u: Tensor) -> Tensor:
        """The nearest generators that are allowed."""
        first, rest = u[:, : self.inputs], u[:, self.inputs :].clamp(-1, 1)
        first = first.clamp(-1, 1) if self.limits is None else nearest(first, self.limits)
        return torch.cat([first, rest], 1)

    def flat(self, s: Tensor) -> Tensor:
        """A pattern of a diagonal as the set needs it: constant over the input's generators of a ball."""
        if self.limits is None:
            return s
        first = s[:, : self.inputs].amax(1, keepdim=True).expand(-1, self.inputs)
        return torch.cat([first, s[:, self.inputs :]], 1)

    def rows(self, some: Tensor) -> Expansion:
        """Some of the forms."""
        layers = [replace(layer, g=layer.g[some]) for layer in self.layers]
        kept = {name: getattr(self, name)[some] for name in ("constant", "linear", "lost", "images")}
        return replace(self, layers=layers, **kept)

    def single(self) -> Expansion:
        """The same in float32, for guesses; balls stay in float64."""
        if self.limits is not None:
            return self
        layers = []
        for one in self.layers:
            A = one.A.float()
            layers.append(replace(one, A=A, B=A if one.A is one.B else one.B.float(), g=one.g.float()))
        return replace(self, linear=self.linear.float(), layers=layers)

    def off(self, size: Tensor) -> Tensor:
        """What a bound of these terms is rounded by at most, (rows,), `size` being all other numbers that are added."""
        count, least = self.linear.shape[1], 1.0
        for layer in self.layers:
            a, b = layer.reach
            w, count = _weights(layer), count + len(a)
            size = size + 8 * (layer.g.abs() @ ((w * a + b).square() / w))
            least += float(a.sum() + b.sum())
        size = size + self.constant.abs() + self.linear.abs().sum(1)
        return self.lost * (1 + 2.0**-20) + (count + 64) * 4 * _U * size + _LEAST * least


def last_products(graph: Graph) -> list[bool]:
    """Of each product, whether no other one depends on it."""
    followed: set[int] = set()
    last: list[bool] = []
    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        if isinstance(node, Product):
            last.append(number not in followed)
        if isinstance(node, Product) or number in followed:
            followed |= set(node.sources)
    return last[::-1]


@dataclass(frozen=True, eq=False)
class Backward:
    """One walk backwards through the centres of a graph's values, for some forms of the outputs.

    Attributes:
        found: the walk forwards.
        images: of each form, by number in that walk, (rows,).
        constant: (rows,).
        linear: by the generators of the input, (rows, inputs).
        slopes: by each product, (rows, size).
        lost: (rows,).
    """

    found: Walked
    images: Tensor
    constant: Tensor
    linear: Tensor
    slopes: list[Tensor]
    lost: Tensor

    @classmethod
    def over(cls, found: Walked, images: Tensor, forms: Tensor) -> Backward:
        """The margins `forms . f` (rows, classes)."""
        graph, rows = found.boxes.graph, len(forms)
        pulled = Forms(found.boxes.of(images), forms)
        products = [number for number, node in enumerate(graph.nodes) if isinstance(node, Product)]
        slopes = {number: forms.new_zeros(rows, graph.sizes[number]) for number in products}
        for number in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[number]
            if number not in pulled.at or isinstance(node, Input):
                continue
            if not isinstance(node, Product):
                pull(pulled, number, 0.0)
                continue
            factor, form = found.factors[products.index(number)], pulled.at.pop(number)
            a, b = factor.left.centre[images], factor.right.centre[images]
            slopes[number] = form
            pulled.shift(form, -(a * b))
            if node.left == node.right:
                pulled.add(node.left, form * (2 * a))
            else:
                pulled.add(node.left, form * b)
                pulled.add(node.right, form * a)
            s, t = factor.left.rough, factor.right.rough
            loose = s * (factor.right.reach + t) + t * factor.left.reach
            pulled.lost = pulled.lost + (form.abs() * loose[images]).sum(1) * (1 + 2.0**-20)
        start, index = found.start, found.inputs.index
        form = pulled.at.get(0, forms.new_zeros(rows, graph.features))
        pulled.shift(form, start.centre[images])
        slack = (start.slack + 8 * _U * start.reach)[images]
        pulled.lost = pulled.lost + (form.abs() * slack).sum(1) * (1 + 2.0**-20)
        linear = form[:, index] * found.inputs.values[images]
        return cls(found, images, pulled.constant, linear, [slopes[number] for number in products], pulled.lost)

    def expansion(self, some: Tensor, joint: list[bool]) -> Expansion:
        """Some of the forms, with the terms of some products kept: then all of one image."""
        found, images = self.found, self.images[some]
        constant, lost, linear = self.constant[some], self.lost[some], [self.linear[some]]
        layers: list[Layer] = []
        counts = {INPUT: linear[0].shape[1]}
        for one, kept, slopes in zip(found.factors, joint, self.slopes, strict=True):
            slope, width = slopes[some], one.radius[images]
            linear.append(slope.new_zeros(len(some), len(one.index)))
            if kept:
                layers.append(_layer(one, int(images[0]), slope, counts, found.ball is not None))
            else:
                middle = one.middle[images]
                constant = constant + (slope * middle).sum(1)
                linear[-1] = (slope * width)[:, one.index]
                rest = width.index_fill(1, one.index, 0.0) + 8 * _U * width
                rest = rest + (slope.shape[1] + 8) * _U * middle.abs()
                lost = lost + (slope.abs() * rest).sum(1) * (1 + 2.0**-20)
            counts[one.name] = len(one.index)
        limits = None
        if found.ball is not None:
            low, high = (side[images[0], found.inputs.index] for side in found.ball[2])
            limits = low, high
        return Expansion(constant, torch.cat(linear, 1), layers, lost, counts[INPUT], limits, found, images)


def _layer(one: Factors, image: int, g: Tensor, counts: dict[int, int], ball: bool) -> Layer:
    size, root = one.left.centre.shape[1], (counts[INPUT] ** 0.5 + 1 if ball else 1.0)

    def written(value: Zonotope) -> Tensor:
        parts = []
        for name, count in counts.items():
            given = value.generators.get(name)
            if given is None:
                parts.append(g.new_zeros(count, size))
            else:
                part = given[image] if isinstance(given, Tensor) else given.of(image).written(size, g.dtype)[0]
                parts.append(part.double())
        return torch.cat(parts)

    A = written(one.left)
    B = A if one.left is one.right else written(one.right)
    return Layer(A, B, g, (one.left.reach[image] * root, one.right.reach[image] * root))


def _weights(layer: Layer) -> Tensor:
    """W of each unit: any is sound; the ratio of both factors' sizes is best if they have nothing in common."""
    a, b = layer.reach
    return ((b + _LEAST) / (a + _LEAST)).sqrt().clamp(2.0**-300, 2.0**300)


def layered(given: Expansion, steps: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Lower bounds (rows,) by a diagonal of each layer, that diagonal, and where the tangent touches."""
    d = torch.zeros_like(given.linear)
    for layer in given.layers:
        n = len(layer.A)
        w, square = _weights(layer), layer.A is layer.B
        if square:  # pulls down where g is negative
            minus = plus = layer.A
            weight = (-layer.g).clamp_min(0.0)
            pairs = [(plus, weight)]
        else:
            minus, plus = layer.A * w - layer.B, layer.A * w + layer.B
            weight = layer.g.abs() / (4 * w)
            # More weight is sound, and numbers that underflow would be none.
            weight = torch.where(layer.g != 0, weight.clamp_min(2.0**-1000), 0.0)
            pairs = [(minus, weight * (layer.g > 0)), (plus, weight * (layer.g <= 0))]
        s = d.new_zeros(len(d), n)
        for part, factor in pairs:
            absolute = part.abs()
            first = part[: given.inputs].norm(dim=0) if given.limits is not None else absolute[: given.inputs].sum(0)
            norms = first + absolute[given.inputs :].sum(0)
            own = s[:, : given.inputs]
            s = s + (factor * norms) @ absolute.T
            if given.limits is not None:  # by Cauchy's inequality, constant on the input's generators
                s[:, : given.inputs] = own + ((factor * norms) @ first).unsqueeze(1)
        # One pattern for all forms: what is multiplied by it is then multiplied once.
        s = s / s.sum(1, keepdim=True).clamp_min(_LEAST)
        s = given.flat(s.mean(0, keepdim=True) + 1e-3 / n)
        # Of each unit what some form needs, q_i or p_i.
        signs = layer.g > 0 if not square else torch.zeros_like(layer.g, dtype=torch.bool)
        needed = torch.stack([((weight > 0) & (signs == sign)).any(0) for sign in (True, False)])
        if bool(needed.any()):
            place = (needed.flatten().cumsum(0) - 1).clamp_min(0).reshape(needed.shape)
            columns = torch.cat([minus[:, needed[0]], plus[:, needed[1]]], 1) / s.sqrt().T
            live = needed.any(0)
            chosen = torch.where(signs, place[0], place[1])[:, live]
            d[:, :n] += _largest_eigenvalues(columns, chosen, weight[:, live]).unsqueeze(1) * s * (1 + 8 * _U)
    v = _minimiser(given, d, given.inside(-given.linear.sign()), steps)
    return _tangent(given, d, v), d, v


def semidefinite(
    given: Expansion, d: Tensor, v: Tensor, turns: int = 10, steps: int = 10, enough: float = 0.0
) -> tuple[float, Tensor, Tensor]:
    """A lower bound of one form by a diagonal for all layers at once, which moves; that diagonal; and where it touches.

    The bound is -inf where it is not enough.

    The diagonal moves by the rule of chains: at the optimum the leading eigenvectors weigh each coordinate by what a
    unit of its shift costs. Eigenvalues are guessed; that `H / 2 + diag(mu) / 2`, the Q of above, is positive
    semidefinite but for a deficit is proven by Cholesky, once the bound would be enough.

    Args:
        given: one form, with the terms of all products.
        d: a diagonal to start from, as `layered` finds it, (1, generators).
        v: where its tangent touches.
        turns: diagonals that are tried.
        steps: towards the point where each of their tangents touches.
        enough: what the bound must be above.
    """
    quick = given.single()
    pattern = given.flat(d + d.mean() * 0.01 + _LEAST)
    pattern = pattern / pattern.mean()
    best, before = -torch.inf, -torch.inf
    for turn in range(turns):
        root = pattern.to(quick.linear.dtype).sqrt()
        least, size, mass = least_eigenvalues(partial(_scaled, quick, root), root)
        mu = pattern * torch.maximum(least + 1e-3 * size, 1e-6 * size).double().unsqueeze(1)
        v = _minimiser(given, mu / 2, v, steps)
        before, best = best, max(best, float(_tangent(given, mu / 2, v)))
        if best > enough:
            return _proven(given, mu, v)
        # Go on where at this pace the form could be closed in the turns that are left.
        if turn > 0 and not best + (turns - turn) * (best - before) > enough:
            break
        price = mu.clamp_min(0.0) * (1.0 - v.square()).clamp_min(0.0)
        price, mass = price / price.sum(1, keepdim=True).clamp_min(_LEAST), mass.double()
        moved = 0.5 / (1 + turn / 2) * (mass - price) / (mass + price).clamp_min(1e-12)
        pattern = given.flat(pattern * torch.exp(moved))
    return -torch.inf, d, v


def _scaled(given: Expansion, root: Tensor, u: Tensor) -> Tensor:
    return _times(given, u / root)[1] / root


def _proven(given: Expansion, mu: Tensor, v: Tensor) -> tuple[float, Tensor, Tensor]:
    """The bound of a diagonal that is widened until Cholesky proves it."""
    H = v.new_zeros(1, v.shape[1], v.shape[1])
    for layer in given.layers:
        n = len(layer.A)
        half = (layer.A * layer.g) @ layer.B.T
        H[0, :n, :n] += half + half.T
    for more in (1.0, 1.003, 1.03):
        deficit = psd_deficit(H + torch.diag_embed(mu * more))
        if bool(deficit < torch.inf):
            # `(u - v)'Q(u - v)` is at least half of the deficit times the square of a length of at most 2 sqrt(n).
            bound = _tangent(given, mu * more / 2, v) - 2 * v.shape[1] * deficit
            return float(torch.nextafter(bound, torch.full_like(bound, -torch.inf))), mu * more / 2, v
    return -torch.inf, mu / 2, v


def _largest_eigenvalues(columns: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
    """At least the largest eigenvalues of `X X'`, (rows,), or its trace: X are columns times roots of weights.

    A computed Gram matrix is off by at most `gamma |X'| |X|`, whose norm is at most its trace; so is the rounding
    of the entries of X themselves.

    Args:
        columns: (n, several).
        chosen: which of them each row has, (rows, units).
        weight: (rows, units).
    """
    rows, units = weight.shape
    size, root = len(columns), weight.sqrt()
    gram = columns.T @ columns if units <= size else None
    found = []
    for some in torch.split(torch.arange(rows), max(1, _ENTRIES // min(units, size) ** 2)):
        if gram is not None:
            K = gram[chosen[some].unsqueeze(2), chosen[some].unsqueeze(1)]
            K = K * root[some].unsqueeze(2) * root[some].unsqueeze(1)
        else:
            X = columns[:, chosen[some]].transpose(0, 1) * root[some].unsqueeze(1)
            K = X @ X.transpose(1, 2)
        K = (K + K.transpose(1, 2)) / 2
        mu, deficit, _ = spectral_shift(-K, torch.ones_like(K[:, 0]))
        trace = K.diagonal(dim1=1, dim2=2).sum(1)
        found.append(torch.fmin(mu.amax(1) + deficit, trace) + trace * (max(units, size) + 64) * 4 * _U + _LEAST)
    return torch.cat(found)


def _times(given: Expansion, v: Tensor) -> tuple[Tensor, Tensor]:
    """`sum_i g_i (A_i.v)(B_i.v)`, (rows,), and its slope."""
    value, slope = torch.zeros_like(v[:, 0]), torch.zeros_like(v)
    for layer in given.layers:
        n = len(layer.A)
        a = v[:, :n] @ layer.A
        if layer.A is layer.B:
            value = value + (layer.g * a * a).sum(1)
            slope[:, :n] += (2 * layer.g * a) @ layer.A.T
        else:
            b = v[:, :n] @ layer.B
            value = value + (layer.g * a * b).sum(1)
            slope[:, :n] += (layer.g * b) @ layer.A.T + (layer.g * a) @ layer.B.T
    return value, slope


def _minimiser(given: Expansion, d: Tensor, v: Tensor, steps: int) -> Tensor:
    """About where the convex function is least: accelerated projected steps. Proves nothing."""
    given = given.single()
    d, v = d.to(given.linear.dtype), v.to(given.linear.dtype)
    scale = given.flat(d + d.mean(1, keepdim=True) * 1e-2 + _LEAST)
    probe = torch.randn(d.shape, generator=torch.Generator().manual_seed(0), dtype=d.dtype)
    size = torch.ones_like(d[:, :1])
    for _ in range(4):
        probe = probe / probe.norm(dim=1, keepdim=True).clamp_min(_LEAST)
        moved = probe / scale.sqrt()
        probe = (_times(given, moved)[1] + 2 * d * moved) / scale.sqrt()
        size = probe.norm(dim=1, keepdim=True)
    rate = 1.0 / (1.5 * size.clamp_min(1e-3) * scale)
    look = v
    t = 1.0
    for _ in range(steps):
        slope = given.linear + _times(given, look)[1] + 2 * d * look
        new = given.inside(look - rate * slope)
        faster = (1 + (1 + 4 * t * t) ** 0.5) / 2
        keep = ((slope * (new - v)).sum(1, keepdim=True) <= 0).to(v.dtype)
        look = new + keep * ((t - 1) / faster) * (new - v)
        v, t = new, faster
    return v.double().nan_to_num(0.0)


def _tangent(given: Expansion, d: Tensor, v: Tensor) -> Tensor:
    value, slope = _times(given, v)
    value, slope = value + (d * v.square()).sum(1), given.linear + slope + 2 * d * v
    cost, away = given.cost(d), given.away(slope)
    off = given.off(4 * d.sum(1) + away)
    return (given.constant - cost - value - away - off).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
