"""An independent check of certificates, in ball arithmetic: it shares no arithmetic with what made them."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nextafter
from typing import Any

import torch

from polybound.certificates.arb_algebra import (
    Arb,
    Rows,
    Vector,
    add,
    arb,
    dominance,
    dot,
    lack,
    largest,
    product,
    times,
    transposed,
    vector,
)
from polybound.certificates.enclosure_regions import Ball, Box, RefusedError
from polybound.certificates.enclosures import Enclosures, Expansion
from polybound.certificates.exact import exact_margin
from polybound.models import PolynomialNetwork

__all__ = ["Checker"]

Numbers = float | list[float]
"""One number for all features, or one for each."""


class Checker:
    """Proves the certificates of one model anew.

    Args:
        model: the model.
        domain: the inputs' domain, two numbers or two lists of one for each feature; or None.
        stretch: of the squares, as `Enclosures` takes it.
        norms: of the mixing matrices, as `Enclosures` takes them.
        tops: of the maps of the input, likewise; None if there are no balls.
    """

    def __init__(
        self,
        model: PolynomialNetwork,
        domain: list[Numbers] | None,
        stretch: list[list[float]],
        norms: list[float],
        tops: list[float] | None = None,
    ) -> None:
        self.factors = model.factors().double()
        self.domain = None if domain is None else [self._exactly(side) for side in domain]
        self.enclosures = Enclosures(self.factors, stretch, norms, tops)
        self.ball: Ball | None = None

    def check(self, entry: dict[str, Any]) -> None:
        """Refuse an image's certificate, unless it holds."""
        x, label = [float(v) for v in entry["x"]], int(entry["label"])
        if len(x) != self.factors.features:
            raise RefusedError("an input does not fit the model")
        box = self._box(entry, [Fraction(v) for v in x])
        self.ball = self._ball(entry, x)
        if entry["status"] == "falsified":
            self._counterexample(entry, box, label)
        elif entry["status"] == "verified":
            outer = Box([_down(v) for v in box[0]], [_up(v) for v in box[1]])
            for rival in range(self.factors.C.outputs):
                if rival != label:
                    self._prove(entry["proofs"][str(rival)], outer, label, rival)
        elif entry["status"] != "undecided":
            raise RefusedError(f"there is no status {entry['status']!r}")

    def _exactly(self, values: Numbers) -> list[Fraction]:
        """One number for each feature, from one for all or a list of them."""
        each = values if isinstance(values, list) else [values] * self.factors.features
        if len(each) != self.factors.features:
            raise RefusedError("a box does not fit the model")
        return [Fraction(float(value)) for value in each]

    def _box(self, entry: dict[str, Any], x: list[Fraction]) -> tuple[list[Fraction], list[Fraction]]:
        if ("box" in entry) == ("eps" in entry):
            raise RefusedError("a box must have either sides or radii")
        if "box" in entry:
            low, high = (self._exactly(list(side)) for side in entry["box"])
        else:
            eps = self._exactly(entry["eps"])
            if any(value < 0 for value in eps):
                raise RefusedError("a negative radius")
            low, high = ([v + s * e for v, e in zip(x, eps, strict=True)] for s in (-1, 1))
            if self.domain is not None:
                least, most = self.domain
                low = [max(v, end) for v, end in zip(low, least, strict=True)]
                high = [min(v, end) for v, end in zip(high, most, strict=True)]
        if any(not a <= v <= b for a, v, b in zip(low, x, high, strict=True)):
            raise RefusedError("an input lies outside of its box or of the domain")
        return low, high

    def _ball(self, entry: dict[str, Any], x: list[float]) -> Ball | None:
        """The ball that an entry is about, within its box; None if it is about all of the box."""
        norm = entry.get("norm", "inf")
        if norm == "inf":
            return None
        if norm != "2" or "eps" not in entry or not self.enclosures.tops:
            raise RefusedError("a ball needs the norm 2, radii and norms")
        r = [float(value) for value in self._exactly(entry["eps"])]
        domain = None if self.domain is None else [[float(v) for v in side] for side in self.domain]
        return Ball.within(x, r, domain)

    def _counterexample(self, entry: dict[str, Any], box: tuple[list[Fraction], list[Fraction]], label: int) -> None:
        point, rival = [float(v) for v in entry["counterexample"]], int(entry["rival"])
        if rival == label or not all(a <= Fraction(v) <= b for v, a, b in zip(point, *box, strict=True)):
            raise RefusedError("a counterexample lies outside of its box")
        if self.ball is not None and not _distance(self.ball, point) <= 1:
            raise RefusedError("a counterexample lies outside of its ball")
        logits = self.enclosures.logits(vector(point))
        if logits[label] < logits[rival]:
            return
        if exact_margin(self.factors, torch.tensor(point, dtype=torch.float64), label, rival) > 0:
            raise RefusedError("a counterexample is classified as its label")

    def _prove(self, node: dict[str, Any], box: Box, label: int, rival: int) -> None:
        """Prove that the margin is positive over a box, by the tree of steps that begins with `node`."""
        stack = [(node, box)]
        while stack:
            node, box = stack.pop()
            if ("by" in node and "split" not in node) or "box" in node:
                narrowed = self._step(node, box, label, rival)
                if narrowed is None:
                    continue
                stack.append((node["then"], narrowed))
            elif "split" in node:
                d, at = int(node["split"][0]), float(node["split"][1])
                stack.append((node["low"], box.with_sides([[d, box.lower[d], at]])))
                stack.append((node["high"], box.with_sides([[d, at, box.upper[d]]])))
            else:
                raise RefusedError("a proof ends before it is complete")

    def _step(self, node: dict[str, Any], box: Box, label: int, rival: int) -> Box | None:
        """Prove one step; returns the box that is left, None if nothing is."""
        w, constant = self.enclosures.margin(label, rival)
        if node["by"] in ("ball", "ball slopes", "trust", "trust absorbed", "outside"):
            self._prove_in_ball(node, box, w, constant, rival)
            return None
        if node["by"] in ("first", "slopes", "point"):
            if not self.enclosures.first(box, w, constant, slopes=node["by"] == "slopes") > 0:
                raise RefusedError(f"a bound of first order against class {rival} is not positive")
            return None
        on = {int(d): i for i, d in enumerate(node["on"])}
        if any(high > low and d not in on for d, (low, high) in enumerate(zip(box.lower, box.upper, strict=True))):
            raise RefusedError("a step leaves out coordinates that move")
        expansion = self.enclosures.second(box, w, constant, list(on))
        mu, v = vector(node["mu"]), vector(node["v"])
        if len(mu) != len(on) or len(v) != len(on) or not all(abs(value) <= 1 for value in v):
            raise RefusedError("a step's point lies outside of its box")
        lower, p = _bound(expansion, mu, v, absorb=node["by"] == "absorbed")
        if "box" not in node:
            if not lower > 0:
                raise RefusedError(f"a bound of second order against class {rival} is not positive")
            return None
        narrowed = box.with_sides(node["box"])
        fixed = {int(d) for d in node.get("monotone", [])}
        for coordinate, low, high in node["box"]:
            d = int(coordinate)
            i = on[d]
            if d in fixed:
                _prove_monotone(
                    expansion, i, at_lower=low == high == box.lower[d], at_upper=low == high == box.upper[d]
                )
            else:
                _prove_cut(box, d, low, high, p[i], mu[i], -lower)
        return narrowed

    def _prove_in_ball(self, node: dict[str, Any], box: Box, w: Vector, constant: Arb, rival: int) -> None:
        """Prove that the margin is positive over the image's ball, or that the box has no point of it."""
        ball = self.ball
        if ball is None:
            raise RefusedError("a step about a ball in a proof about a box")
        if node["by"] == "outside":
            nearest = [min(max(v, low), high) for v, low, high in zip(ball.x, box.lower, box.upper, strict=True)]
            if not _distance(ball, nearest) > 1:
                raise RefusedError("a box that is left out meets the ball")
            return
        if node["by"] in ("ball", "ball slopes"):
            lower = self.enclosures.first(ball, w, constant, slopes=node["by"] == "ball slopes")
        else:
            on = [int(d) for d in node["on"]]
            if len(set(on)) != len(on) or any(r > 0 and d not in on for d, r in enumerate(ball.r)):
                raise RefusedError("a step leaves out coordinates that move")
            expansion = self.enclosures.second(ball, w, constant, on)
            lower = _trusted(expansion, ball, on, node)
        if not lower > 0:
            raise RefusedError(f"a bound over a ball against class {rival} is not positive")


def _distance(ball: Ball, point: list[float]) -> Fraction:
    """`sum_d ((point_d - x_d) / r_d)^2`; 2 where a coordinate moves that has no radius."""
    total = Fraction(0)
    for value, x, r in zip(point, ball.x, ball.r, strict=True):
        if value != x:
            total += ((Fraction(value) - Fraction(x)) / Fraction(r)) ** 2 if r > 0 else 2
    return total


def _trusted(expansion: Expansion, ball: Ball, on: list[int], node: dict[str, Any]) -> Arb:
    """The lower bound of the trust-region problem that lam and v prove."""
    lam, v = arb(float(node["lam"])), vector(node["v"])
    if not lam >= 0 or len(v) != len(on):
        raise RefusedError("a step's multiplier is negative, or its point does not fit")
    H, R = (_absorbed(expansion), arb(0)) if node["by"] == "trust absorbed" else (expansion.H, expansion.R)
    M = [[value + lam if d == e else value for e, value in enumerate(row)] for d, row in enumerate(H)]
    Mv = times(M, v)
    # ||u - v||^2 <= 2 (1 + ||v||^2).
    lost = lam / 2 + dot(v, Mv) / 2 + (1 + dot(v, v)) * lack(M).max(arb(0))
    return expansion.g0 - R - lost - ball.away(add(expansion.G, Mv), on)


def _bound(expansion: Expansion, mu: Vector, v: Vector, absorb: bool) -> tuple[Arb, Vector]:
    """The lower bound that mu and v prove, and the slopes p of its separable form."""
    n = len(mu)
    H, R = (_absorbed(expansion), arb(0)) if absorb else (expansion.H, expansion.R)
    M = [[value + mu[d] if d == e else value for e, value in enumerate(row)] for d, row in enumerate(H)]
    missing = dominance(M)
    if not missing < arb(2) ** -40 * (1 + largest(mu) if mu else arb(1)):
        missing = lack(M)
    Mv = times(M, v)
    p = add(expansion.G, Mv)
    value = expansion.g0 - R - dot(v, Mv) / 2 - 2 * n * missing
    for slope, bend in zip(p, mu, strict=True):
        if bend < 0 and not abs(slope) >= -bend:
            # Opens upwards, with its vertex inside (or nearly: it is never above the ends).
            value = value + slope * slope / (2 * bend)
        else:
            value = value - abs(slope) - bend / 2
    return value, p


def _absorbed(expansion: Expansion) -> Rows:
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
    r = (arb(box.upper[d]) - arb(box.lower[d])) / 2
    if high < box.upper[d] and low == box.lower[d] and p > 0:
        delta = (arb(high) - arb(box.lower[d])) / r
    elif low > box.lower[d] and high == box.upper[d] and p < 0:
        delta = (arb(box.upper[d]) - arb(low)) / r
    else:
        raise RefusedError("a box is cut on the wrong side")
    cost = (abs(p) + mu) * delta - mu * delta * delta / 2
    if not (mu >= 0 and cost > lacking and 2 * abs(p) > lacking):
        raise RefusedError("a box is cut too far")


def _prove_monotone(expansion: Expansion, i: int, at_lower: bool, at_upper: bool) -> None:
    away = sum((abs(value) for value in expansion.H[i]), arb(0)) + expansion.rest[i]
    if not ((at_lower and expansion.G[i] > away) or (at_upper and expansion.G[i] < -away)):
        raise RefusedError("a coordinate is not monotone")


def _down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    near = float(value)
    return near if Fraction(near) <= value else nextafter(near, -inf)


def _up(value: Fraction) -> float:
    return -_down(-value)
