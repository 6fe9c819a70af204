"""An independent check of certificates, in ball arithmetic: it shares no code with the search that made them.

The schema decides what a file may look like; here every claim is proven again. Each step proves what its class in
`schema` says, from numbers that need not be believed: a bad number only makes the bound worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, nextafter

import flint
import torch

from polybound.certificates.proofs import schema
from polybound.certificates.proofs.arb import (
    PRECISION,
    Arb,
    Ball,
    Box,
    Rows,
    Vector,
    add,
    arb,
    dominance,
    dot,
    largest,
    product,
    psd_deficit,
    radii,
    times,
    transposed,
    vector,
)
from polybound.certificates.proofs.enclosures import Enclosures, Expansion
from polybound.certificates.proofs.exact import exact_forms, exact_logits, exact_sides
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork


def prove(
    claims: schema.Claims, model: PolynomialNetwork, on_progress: Callable[[int, int, str], None] | None = None
) -> list[str]:
    """Prove all claims about a model; returns the status of each image.

    Args:
        claims: what to prove.
        model: the model.
        on_progress: called as `on_progress(done, total, text)`, with numbers of images.

    Raises:
        RefusedError: a claim is not proven.
    """
    found: list[str] = []
    with flint.ctx.workprec(PRECISION):
        checker = Checker(model, claims)
        for number, image in enumerate(claims.images):
            try:
                found.append(checker.check(image))
            except schema.RefusedError as error:
                raise schema.RefusedError(f"image {number}: {error}") from error
            if on_progress is not None:
                on_progress(len(found), len(claims.images), "")
    return found


Form = tuple[Vector, Arb]
"""Weights of the last product and a constant: `w.y_k + constant`."""


@dataclass(frozen=True)
class _Region:
    """The inputs that a claim is about.

    Attributes:
        lower, upper: the sides of the box, exactly.
        box: the same, rounded outwards.
        ball: the ball within the box; None if the claim is about all of the box.
    """

    lower: list[Fraction]
    upper: list[Fraction]
    box: Box
    ball: Ball | None

    @staticmethod
    def of(claim: schema.Claim, claims: schema.Claims) -> _Region:
        lower, upper = exact_sides(claim, claims.domain)
        outer = Box(tuple(_down(v) for v in lower), tuple(-_down(-v) for v in upper))
        ball = (
            Ball.within(claim.x, claim.radii, claims.domain) if claims.norm == "2" and claim.radii is not None else None
        )
        return _Region(lower, upper, outer, ball)

    def place(self, point: tuple[float, ...], what: str) -> None:
        """Refuse a point that is outside of the box or of the ball."""
        if not all(a <= Fraction(v) <= b for v, a, b in zip(point, self.lower, self.upper, strict=True)):
            raise schema.RefusedError(f"{what} lies outside of its box")
        if self.ball is not None and not _distance(self.ball, point) <= 1:
            raise schema.RefusedError(f"{what} lies outside of its ball")


class Checker:
    """Proves the claims about one model, image by image."""

    def __init__(self, model: PolynomialNetwork, claims: schema.Claims) -> None:
        self.claims = claims
        self.factors = factors = model.factors().double()
        if factors.lead:
            raise PolyboundError("certificates are about one model; take model.run(e) of a stack")
        if not all(torch.isfinite(parameter).all() for parameter in model.state_dict().values()):
            raise PolyboundError("the model's weights are not all finite")
        self.enclosures = Enclosures(factors, claims.stretch, claims.norms, claims.tops)

    def check(self, claim: schema.Verified | schema.Falsified | schema.Undecided | schema.Bounded) -> str:
        """Refuse an image's claim unless it holds; returns its status."""
        try:
            region = _Region.of(claim, self.claims)
            if isinstance(claim, schema.Verified):
                for rival, proof in claim.proofs:
                    self._prove(proof, region, self.enclosures.margin(claim.label, rival))
                return "verified"
            if isinstance(claim, schema.Falsified):
                region.place(claim.point, "a counterexample")
                logits = self.enclosures.logits(vector(claim.point))
                if not logits[claim.label] < logits[claim.rival]:
                    exact = exact_logits(self.factors, torch.tensor(claim.point, dtype=torch.float64))
                    if exact[claim.label] > exact[claim.rival]:
                        raise schema.RefusedError("a counterexample is classified as its label")
                return "falsified"
            if isinstance(claim, schema.Bounded):
                self._intervals(claim, region)
                return "bounded" if all((*claim.lower, *claim.upper)) else "unbounded"
        except (OverflowError, ZeroDivisionError) as error:
            raise schema.RefusedError("a certificate's numbers leave the range of float64") from error
        return "undecided"

    def _intervals(self, claim: schema.Bounded, region: _Region) -> None:
        """Prove that every form is within its proven ends, and attains the others at the points that are named."""
        rows = zip(claim.lower, claim.upper, claim.lowest, claim.highest, strict=True)
        for (weights, constant), (lower, upper, lowest, highest) in zip(self.claims.forms or (), rows, strict=True):
            w, at = self.enclosures.form(vector(weights), arb(constant))
            if lower is not None:
                end, proof = lower
                self._prove(proof, region, (w, at - arb(end)))
            if upper is not None:
                end, proof = upper
                self._prove(proof, region, ([-value for value in w], arb(end) - at))
            for attained, sign in ((lowest, 1), (highest, -1)):
                if attained is None:
                    continue
                end, point = attained
                region.place(point, "a point where a value is attained")
                value = dot(vector(weights), self.enclosures.logits(vector(point))) + arb(constant)
                if sign * value <= sign * arb(end):
                    continue
                a, b = (torch.tensor(part, dtype=torch.float64) for part in ([weights], [constant]))
                (exact,) = exact_forms(self.factors, torch.tensor(point, dtype=torch.float64), a, b)
                if not sign * exact <= sign * Fraction(end):
                    raise schema.RefusedError("a value is not attained where the file says")

    def _prove(self, proof: schema.Proof, region: _Region, form: Form) -> None:
        """Prove that a form is positive over what the box and the ball, if there is one, have in common."""
        stack, whole = [(0, region.box, region.ball)], region.ball
        while stack:
            index, box, ball = stack.pop()
            step = proof[index]
            if isinstance(step, schema.Split):
                d, at = step.coordinate, step.at
                stack.append((step.low, box.with_sides([(d, box.lower[d], at)]), ball))
                stack.append((step.high, box.with_sides([(d, at, box.upper[d])]), ball))
            elif isinstance(step, schema.Narrow):
                stack.append((step.then, self._narrowed(form, step, box, whole), ball))
            elif isinstance(step, schema.Cap):
                stack.append((step.then, box, self._capped(form, step, box, _given(ball), _given(whole))))
            elif isinstance(step, schema.Second):
                _positive(self._second(form, step, box)[1], "a bound of second order")
            elif isinstance(step, schema.Trust):
                _positive(self._trusted(form, step, _given(ball), _given(whole)), "a bound over a ball")
            elif isinstance(step, schema.First):
                place = _given(ball) if step.ball else box
                what = "a bound over a ball" if step.ball else "a bound of first order"
                _positive(self.enclosures.first(place, *form, slopes=step.slopes), what)
            elif isinstance(step, schema.Outside):
                x = _given(whole).x
                nearest = tuple(min(max(v, low), high) for v, low, high in zip(x, box.lower, box.upper, strict=True))
                if not _distance(_given(whole), nearest) > 1:
                    raise schema.RefusedError("a box that is left out meets the ball")
            else:
                raise schema.RefusedError(f"a step by {type(step).__name__} is about deep networks")

    def _second(self, form: Form, step: schema.Second, box: Box) -> tuple[Expansion, Arb, Vector]:
        """The expansion over a box, the lower bound that mu and v prove, and the slopes p of its separable form."""
        moves = {d for d, (low, high) in enumerate(zip(box.lower, box.upper, strict=True)) if high > low}
        if not moves <= set(step.on):
            raise schema.RefusedError("a step leaves out coordinates that move")
        expansion = self.enclosures.second(box, *form, list(step.on))
        mu, v = vector(step.mu), vector(step.v)
        H, R = (_absorbed(expansion), arb(0)) if step.absorbed else (expansion.H, expansion.R)
        M = _shifted(H, mu)
        missing = dominance(M)
        if not missing <= arb(2) ** -40 * largest(radii(M)):
            # More than what is rounded: mu is below what dominance asks for, and Cholesky may show that it is enough.
            missing = missing.min(psd_deficit(M))
        Mv = times(M, v)
        p = add(expansion.G, Mv)
        # |u - v| <= 2 by entries, so that (u - v)'M(u - v) / 2 is at least -2 n missing.
        value = expansion.g0 - R - dot(v, Mv) / 2 - 2 * len(mu) * missing
        for slope, bend in zip(p, mu, strict=True):
            if bend < 0 and not abs(slope) >= -bend:
                # Opens upwards, with its vertex inside (or nearly: it is never above the ends).
                value = value + slope * slope / (2 * bend)
            else:
                value = value - abs(slope) - bend / 2
        return expansion, value, p

    def _narrowed(self, form: Form, step: schema.Narrow, box: Box, whole: Ball | None) -> Box:
        """The smaller box of a step; refused unless the form outside of it is positive, or not less than within."""
        narrowed = box.with_sides(step.sides)
        expansion, lower, p = self._second(form, step.bound, box)
        for d, low, high in step.sides:
            i = step.bound.on.index(d)
            if d not in step.monotone:
                _prove_cut(box, d, low, high, p[i], arb(step.bound.mu[i]), -lower)
                continue
            if whole is not None:
                raise schema.RefusedError("a coordinate is fixed at its end, which may lie outside of the ball")
            away = sum((abs(value) for value in expansion.H[i]), arb(0)) + expansion.rest[i]
            at_lower, at_upper = low == high == box.lower[d], low == high == box.upper[d]
            if not ((at_lower and expansion.G[i] > away) or (at_upper and expansion.G[i] < -away)):
                raise schema.RefusedError("a coordinate is not monotone")
        return narrowed

    def _trusted(self, form: Form, step: schema.Trust, ball: Ball, whole: Ball, cap: schema.Cap | None = None) -> Arb:
        """The lower bound of the trust-region problem that lam, nu and v prove over a ball, or outside of a cap."""
        on = step.on
        if any(r > 0 and d not in on for d, r in enumerate(ball.r)):
            raise schema.RefusedError("a step leaves out coordinates that move")
        expansion = self.enclosures.second(ball, *form, list(on))
        if step.nu > 0:
            # The form plus `nu (||a + b u||^2 - 1) / 2`, which is not positive in the whole ball.
            nu, zero = arb(step.nu), arb(0)
            sizes = [(d, arb(whole.r[d])) for d in on]
            a = [(arb(ball.x[d]) - arb(whole.x[d])) / r if r > 0 else zero for d, r in sizes]
            b = [arb(ball.r[d]) / r if r > 0 else zero for d, r in sizes]
            G = [g + nu * u * v for g, u, v in zip(expansion.G, a, b, strict=True)]
            H = _shifted(expansion.H, [nu * value * value for value in b])
            expansion = replace(expansion, g0=expansion.g0 + nu * (dot(a, a) - 1) / 2, G=G, H=H)
        if cap is not None:
            # The form plus `kappa (d.u - s)`, which is not positive outside of the cap.
            kappa, d = arb(cap.kappa), vector(cap.d)
            G = add(expansion.G, [kappa * value for value in d])
            expansion = replace(expansion, g0=expansion.g0 - kappa * arb(cap.s), G=G)
        lam, v = arb(step.lam), vector(step.v)
        H, R = (_absorbed(expansion), arb(0)) if step.absorbed else (expansion.H, expansion.R)
        M = _shifted(H, [lam] * len(v))
        Mv = times(M, v)
        # ||u - v||^2 <= 2 (1 + ||v||^2).
        lost = lam / 2 + dot(v, Mv) / 2 + (1 + dot(v, v)) * psd_deficit(M)
        return expansion.g0 - R - lost - ball.away(add(expansion.G, Mv), list(on))

    def _capped(self, form: Form, step: schema.Cap, box: Box, ball: Ball, whole: Ball) -> Ball:
        """The ball that a step says to hold a cap; refused unless it does, and the form is positive outside of it."""
        _positive(self._trusted(form, step.bound, ball, whole, step), "a bound outside of a cap")
        s, d = arb(step.s), vector(step.d)
        x, r = list(ball.x), list(ball.r)
        # In the new ball, a point of the cap is e + t (u - s d), and ||u - s d||^2 <= 1 - s^2 (2 - ||d||^2).
        e: Vector = []
        t: Vector = []
        for along, coordinate, centre, radius in zip(d, step.bound.on, step.centre, step.radii, strict=True):
            old = arb(ball.r[coordinate])
            if radius > 0:
                e.append((arb(ball.x[coordinate]) + old * s * along - arb(centre)) / arb(radius))
                t.append(old / arb(radius))
            elif old > 0 or centre != ball.x[coordinate]:
                raise schema.RefusedError("a ball that is to hold a cap has no radius where the cap moves")
            x[coordinate], r[coordinate] = centre, radius
        left = (1 - s * s * (2 - dot(d, d))).max(arb(0))
        if not dot(e, e).abs_upper().sqrt() + largest(t) * left.sqrt() <= 1:
            raise schema.RefusedError("a cap leaves the ball that is to hold it")
        return Ball.within(tuple(x), tuple(r), (box.lower, box.upper))


def _given(ball: Ball | None) -> Ball:
    if ball is None:
        raise schema.RefusedError("a step about a ball in a proof about a box")
    return ball


def _positive(lower: Arb, what: str) -> None:
    if not lower > 0:
        raise schema.RefusedError(f"{what} is not positive")


def _shifted(H: Rows, mu: Vector) -> Rows:
    """`H + diag(mu)`."""
    return [[value + mu[d] if d == e else value for e, value in enumerate(row)] for d, row in enumerate(H)]


def _absorbed(expansion: Expansion) -> Rows:
    """H less squares that are together at least the remainder: `2 |a.u| |b.u| <= tau (a.u)^2 + (b.u)^2 / tau`."""
    forms: Rows = []
    for ell, A, B in expansion.parts:
        for weight, a, b in zip(ell, A, B, strict=True):
            sizes = [float(sum((u * u for u in row), arb(0)).mid()) for row in (a, b)]
            tau = arb(((sizes[1] + 1e-150) / (sizes[0] + 1e-150)) ** 0.5)
            first, second = (weight * tau).sqrt(), (weight / tau).sqrt()
            forms += [[first * u for u in a], [second * u for u in b]]
    if not forms:
        return expansion.H
    Q = product(transposed(forms), forms)
    return [[h - q for h, q in zip(x, y, strict=True)] for x, y in zip(expansion.H, Q, strict=True)]


def _prove_cut(box: Box, d: int, low: float, high: float, p: Arb, mu: Arb, lacking: Arb) -> None:
    """Refuse a cut of a box unless all that is cut off has a positive form."""
    r = (arb(box.upper[d]) - arb(box.lower[d])) / 2
    if high < box.upper[d] and low == box.lower[d] and p > 0:
        delta = (arb(high) - arb(box.lower[d])) / r
    elif low > box.lower[d] and high == box.upper[d] and p < 0:
        delta = (arb(box.upper[d]) - arb(low)) / r
    else:
        raise schema.RefusedError("a box is cut on the wrong side")
    cost = (abs(p) + mu) * delta - mu * delta * delta / 2
    if not (mu >= 0 and cost > lacking and 2 * abs(p) > lacking):
        raise schema.RefusedError("a box is cut too far")


def _distance(ball: Ball, point: tuple[float, ...]) -> Fraction:
    """`sum_d ((point_d - x_d) / r_d)^2`; 2 where a coordinate moves that has no radius."""
    total = Fraction(0)
    for value, x, r in zip(point, ball.x, ball.r, strict=True):
        if value != x:
            total += ((Fraction(value) - Fraction(x)) / Fraction(r)) ** 2 if r > 0 else 2
    return total


def _down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    near = float(value)
    return near if Fraction(near) <= value else nextafter(near, -inf)
