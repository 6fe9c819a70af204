"""What one step of a proof proves, in ball arithmetic: bounds of second order, cuts and monotone coordinates."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

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
from polybound.certificates.enclosures import Expansion

__all__ = ["bound_of", "distance", "prove_cut", "prove_monotone", "trusted"]


def distance(ball: Ball, point: list[float]) -> Fraction:
    """`sum_d ((point_d - x_d) / r_d)^2`; 2 where a coordinate moves that has no radius."""
    total = Fraction(0)
    for value, x, r in zip(point, ball.x, ball.r, strict=True):
        if value != x:
            total += ((Fraction(value) - Fraction(x)) / Fraction(r)) ** 2 if r > 0 else 2
    return total


def trusted(expansion: Expansion, ball: Ball, on: list[int], node: dict[str, Any]) -> Arb:
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


def bound_of(expansion: Expansion, mu: Vector, v: Vector, absorb: bool) -> tuple[Arb, Vector]:
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


def prove_cut(box: Box, d: int, low: float, high: float, p: Arb, mu: Arb, lacking: Arb) -> None:
    """Refuse a cut of a box unless all that is cut off has a positive form."""
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


def prove_monotone(expansion: Expansion, i: int, at_lower: bool, at_upper: bool) -> None:
    """Refuse to fix a coordinate unless the form is least at that end."""
    away = sum((abs(value) for value in expansion.H[i]), arb(0)) + expansion.rest[i]
    if not ((at_lower and expansion.G[i] > away) or (at_upper and expansion.G[i] < -away)):
        raise RefusedError("a coordinate is not monotone")
