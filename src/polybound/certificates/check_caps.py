"""Steps of proofs about parts of a ball, in ball arithmetic; `polybound.certificates.caps` says what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polybound.certificates.arb_algebra import Arb, Vector, add, arb, dot, largest, vector
from polybound.certificates.enclosure_regions import Ball, Box, RefusedError
from polybound.certificates.enclosures import Expansion

__all__ = ["beyond_cap", "cap_ball", "moving", "within_whole"]


def moving(ball: Ball, node: dict[str, Any]) -> list[int]:
    """The coordinates that a step is in; they must be all that move in the ball."""
    on = [int(d) for d in node["on"]]
    if len(set(on)) != len(on) or any(r > 0 and d not in on for d, r in enumerate(ball.r)):
        raise RefusedError("a step leaves out coordinates that move")
    return on


def within_whole(expansion: Expansion, ball: Ball, whole: Ball, on: list[int], node: dict[str, Any]) -> Expansion:
    """The form plus `nu (||a + b u||^2 - 1) / 2`, which is not positive in the whole ball."""
    nu = arb(float(node.get("nu", 0.0)))
    if not nu >= 0:
        raise RefusedError("a step's multiplier is negative")
    if nu == 0:
        return expansion
    a = [_ratio(arb(ball.x[d]) - arb(whole.x[d]), whole.r[d]) for d in on]
    b = [_ratio(arb(ball.r[d]), whole.r[d]) for d in on]
    G = [g + nu * u * v for g, u, v in zip(expansion.G, a, b, strict=True)]
    H = [
        [value + nu * b[d] * b[d] if d == e else value for e, value in enumerate(row)]
        for d, row in enumerate(expansion.H)
    ]
    return replace(expansion, g0=expansion.g0 + nu * (dot(a, a) - 1) / 2, G=G, H=H)


def beyond_cap(expansion: Expansion, node: dict[str, Any]) -> Expansion:
    """The form plus `kappa (d.u - s)`, which is not positive outside of the cap."""
    kappa, s, d = arb(float(node["kappa"])), arb(float(node["s"])), vector(node["d"])
    if not (kappa >= 0 and s >= 0) or len(d) != len(expansion.G):
        raise RefusedError("a cap has a negative multiplier or height, or its direction does not fit")
    return replace(expansion, g0=expansion.g0 - kappa * s, G=add(expansion.G, [kappa * v for v in d]))


def cap_ball(ball: Ball, box: Box, on: list[int], node: dict[str, Any]) -> Ball:
    """The ball that a step says to hold a cap; refused unless it does."""
    s, d = arb(float(node["s"])), vector(node["d"])
    x, r = list(ball.x), list(ball.r)
    for coordinate, centre, radius in zip(on, node["centre"], node["radii"], strict=True):
        x[coordinate], r[coordinate] = float(centre), float(radius)
    # In the new ball, a point of the cap is e + t (u - s d), and ||u - s d||^2 <= 1 - s^2 (2 - ||d||^2).
    e: Vector = []
    t: Vector = []
    for place, coordinate in enumerate(on):
        new, old = r[coordinate], ball.r[coordinate]
        if new > 0:
            e.append((arb(ball.x[coordinate]) + arb(old) * s * d[place] - arb(x[coordinate])) / arb(new))
            t.append(arb(old) / arb(new))
        elif new != 0 or old != 0 or x[coordinate] != ball.x[coordinate]:
            raise RefusedError("a ball that is to hold a cap has no radius where the cap moves")
    left = (1 - s * s * (2 - dot(d, d))).max(arb(0))
    if not dot(e, e).abs_upper().sqrt() + largest(t) * left.sqrt() <= 1:
        raise RefusedError("a cap leaves the ball that is to hold it")
    return Ball.within(x, r, [box.lower, box.upper])


def _ratio(away: Arb, r: float) -> Arb:
    return away / arb(r) if r > 0 else arb(0)
