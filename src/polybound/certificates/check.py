"""An independent check of certificates, in ball arithmetic: it shares no arithmetic with what made them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import torch

from polybound.certificates.balls import (
    Ball,
    Map,
    Rows,
    Vector,
    arb,
    dominance,
    lack,
    product,
    times,
    transposed,
    vector,
    zeros,
)
from polybound.certificates.exact import exact_margin
from polybound.errors import PolyboundError
from polybound.models.affine import Identity
from polybound.models.base import PolynomialNetwork

__all__ = ["Checker"]


@dataclass(frozen=True)
class _Box:
    lower: list[float]
    upper: list[float]

    def with_sides(self, sides: list[list[float]]) -> _Box:
        lower, upper = list(self.lower), list(self.upper)
        for coordinate, low, high in sides:
            d = int(coordinate)
            if not self.lower[d] <= low <= high <= self.upper[d]:
                raise _RefusedError("a box does not lie in the one before it")
            lower[d], upper[d] = low, high
        return _Box(lower, upper)


class _RefusedError(PolyboundError):
    """A certificate is not proven."""


@dataclass(frozen=True)
class _Expansion:
    """Balls of everything that `polybound.certificates.expansion` defines, over one box and for one rival."""

    g0: Ball
    G: Vector
    H: Rows
    R: Ball
    rest: Vector
    parts: list[tuple[Vector, Rows, Rows]]  # ell_n, rows of A_n and of B_n, both scaled by the radii


class Checker:
    """Proves the certificates of one model anew.

    Args:
        model: the model.
        domain: the inputs' domain, or None.
        stretch: for each factor, a diagonal said to dominate `A_n' A_n`; proven before it is used.
        norms: for each map in between, a number said to be at least its spectral norm; likewise.
    """

    def __init__(
        self, model: PolynomialNetwork, domain: list[float] | None, stretch: list[list[float]], norms: list[float]
    ) -> None:
        self.factors = model.factors().double()
        self.domain = domain
        self.k = self.factors.degree
        self.A = [Map(a) for a in self.factors.A]
        self.S = [None if isinstance(s, Identity) else Map(s) for s in self.factors.S]
        self.s1 = vector(self.factors.s1.tolist())
        self.C = Map(self.factors.C)
        self._last: tuple[_Box, _Factors] | None = None
        self.stretch = [vector(mu) for mu in stretch]
        self.norms = vector(norms)
        if len(self.stretch) != self.k or len(self.norms) != self.k - 1:
            raise _RefusedError("its constants do not fit the model")
        for A, mu in zip(self.A, self.stretch, strict=True):
            _prove_stretch(A.rows, mu)
        for S, norm in zip(self.S, self.norms, strict=True):
            _prove_norm(None if S is None else S.rows, norm)

    def check(self, entry: dict[str, Any]) -> None:
        """Refuse an image's certificate, unless it holds."""
        x, label = [float(v) for v in entry["x"]], int(entry["label"])
        if len(x) != len(self.A[0].rows[0]):
            raise _RefusedError("an input does not fit the model")
        box = self._ball(x, float(entry["eps"]))
        if entry["status"] == "falsified":
            self._counterexample(entry, box, label)
        elif entry["status"] == "verified":
            outer = _Box([_down(v) for v in box[0]], [_up(v) for v in box[1]])
            for rival in range(len(self.C.rows)):
                if rival != label:
                    self._prove(entry["proofs"][str(rival)], outer, label, rival)
        elif entry["status"] != "undecided":
            raise _RefusedError(f"there is no status {entry['status']!r}")

    def _ball(self, x: list[float], eps: float) -> tuple[list[Fraction], list[Fraction]]:
        low, high = ([Fraction(v) + s * Fraction(eps) for v in x] for s in (-1, 1))
        if eps < 0:
            raise _RefusedError("a negative radius")
        if self.domain is not None:
            least, most = (Fraction(side) for side in self.domain)
            low, high = [max(v, least) for v in low], [min(v, most) for v in high]
        return low, high

    def _counterexample(self, entry: dict[str, Any], box: tuple[list[Fraction], list[Fraction]], label: int) -> None:
        point, rival = [float(v) for v in entry["counterexample"]], int(entry["rival"])
        if rival == label or not all(a <= Fraction(v) <= b for v, a, b in zip(point, *box, strict=True)):
            raise _RefusedError("a counterexample lies outside of its box")
        logits = self._logits(vector(point))
        if logits[label] < logits[rival]:
            return
        if exact_margin(self.factors, torch.tensor(point, dtype=torch.float64), label, rival) > 0:
            raise _RefusedError("a counterexample is classified as its label")

    def _logits(self, x: Vector) -> Vector:
        y = _mul(self.A[0](x), self.s1)
        for A, S in zip(self.A[1:], self.S, strict=True):
            y = _mul(A(x), y if S is None else S(y))
        return self.C(y)

    def _prove(self, node: dict[str, Any], box: _Box, label: int, rival: int) -> None:
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
                raise _RefusedError("a proof ends before it is complete")

    def _step(self, node: dict[str, Any], box: _Box, label: int, rival: int) -> _Box | None:
        """Prove one step; returns the box that is left, None if nothing is."""
        w = [a - b for a, b in zip(self.C.rows[label], self.C.rows[rival], strict=True)]
        constant = self.C.constant[label] - self.C.constant[rival]
        if node["by"] in ("first", "point"):
            if not self._first(box, w, constant) > 0:
                raise _RefusedError(f"a bound of first order against class {rival} is not positive")
            return None
        on = {int(d): i for i, d in enumerate(node["on"])}
        if any(high > low and d not in on for d, (low, high) in enumerate(zip(box.lower, box.upper, strict=True))):
            raise _RefusedError("a step leaves out coordinates that move")
        expansion = self._second(box, w, constant, list(on))
        mu, v = vector(node["mu"]), vector(node["v"])
        lower, p = _bound(expansion, mu, v, absorb=node["by"] == "absorbed")
        if "box" not in node:
            if not lower > 0:
                raise _RefusedError(f"a bound of second order against class {rival} is not positive")
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

    def _factors(self, box: _Box) -> _Factors:
        if self._last is None or self._last[0] is not box:
            self._last = box, _Factors(self, box)
        return self._last[1]

    def _first(self, box: _Box, w: Vector, constant: Ball) -> Ball:
        f = self._factors(box)
        g0 = _dot(w, _mul(f.h[-1], f.q[-1])) + constant
        G = zeros(len(f.r))
        R = arb(0)
        lam, ell = w, zeros(len(w))
        for n in reversed(range(self.k)):
            G = _add(G, self.A[n].back(_mul(lam, f.q[n])))
            R = R + f.sum_of_products(n, _add(_abs(lam), ell))
            if n > 0:
                ell = self._back(_add(_mul(ell, f.size[n]), _mul(_abs(lam), f.rho[n])), n, absolute=True)
                lam = self._back(_mul(lam, f.h[n]), n)
        return g0 - _dot(_abs(G), f.r) - R

    def _back(self, y: Vector, n: int, absolute: bool = False) -> Vector:
        S = self.S[n - 1]
        return y if S is None else S.back(y, absolute)

    def _second(self, box: _Box, w: Vector, constant: Ball, on: list[int]) -> _Expansion:
        f = self._factors(box)
        A = [[[row[d] * f.r[d] for d in on] for row in a.rows] for a in self.A]
        B: list[Rows] = [[zeros(len(on)) for _ in self.s1]]
        beyond = [zeros(len(self.s1))]
        for n in range(1, self.k):
            slope = _combine(A[n - 1], f.q[n - 1], B[n - 1], f.h[n - 1])
            wider = _add(_mul(beyond[n - 1], f.size[n - 1]), _mul(f.rho[n - 1], _radii(B[n - 1])))
            S = self.S[n - 1]
            B.append(slope if S is None else product(S.rows, slope))
            beyond.append(wider if S is None else S.spread(wider))
        g0 = _dot(w, _mul(f.h[-1], f.q[-1])) + constant
        G, rest, R = zeros(len(on)), zeros(len(on)), arb(0)
        left: Rows = []
        right: Rows = []
        parts: list[tuple[Vector, Rows, Rows]] = []
        lam, ell, second = w, zeros(len(w)), zeros(len(w))
        L: Rows = [zeros(len(on)) for _ in w]
        for n in reversed(range(self.k)):
            G = _add(G, times(transposed(A[n]), _mul(lam, f.q[n])))
            bend = _add(_mul(ell, _add(_radii(B[n]), beyond[n])), _mul(_abs(lam), beyond[n]))
            bend = _add(bend, _mul(second, _abs(f.q[n])))
            rest = _add(rest, times(transposed([_abs(row) for row in A[n]]), bend))
            if n == 0:
                break
            left += [[weight * v for v in row] for weight, row in zip(lam, A[n], strict=True)]
            right += B[n]
            if n < self.k - 1:
                parts.append((ell, A[n], B[n]))
                R = R + f.sum_of_products(n, ell)
            second = self._back(_add(_mul(second, f.size[n]), _mul(f.rho[n], _radii(L))), n, absolute=True)
            L = _combine(A[n], lam, L, f.h[n])
            S = self.S[n - 1]
            L = L if S is None else product(transposed(S.rows), L)
            lam = self._back(_mul(lam, f.h[n]), n)
            ell = _add(_radii(L), second)
        K = product(transposed(left), right) if left else [zeros(len(on)) for _ in on]
        H = [_add(row, column) for row, column in zip(K, transposed(K), strict=True)]
        return _Expansion(g0, G, H, R, rest, parts)


class _Factors:
    """Balls of what no rival has a part in: h_n, rho_n, q_n, the radii, and the summands of `B_n r u`."""

    def __init__(self, checker: Checker, box: _Box) -> None:
        low, high = vector(box.lower), vector(box.upper)
        c = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        self.r = [(b - a) / 2 for a, b in zip(low, high, strict=True)]
        self.h = [A(c) for A in checker.A]
        self.rho = [A.spread(self.r) for A in checker.A]
        self.size = [_add(_abs(h), rho) for h, rho in zip(self.h, self.rho, strict=True)]
        squares = [v * v for v in self.r]
        self.reach = [_dot(mu, squares).sqrt() for mu in checker.stretch]
        self.q = [checker.s1]
        self.terms: list[list[tuple[Vector, Vector, Ball]]] = [[]]
        for n in range(1, checker.k):
            y = _mul(self.h[n - 1], self.q[n - 1])
            terms = [(_mul(scale, _abs(self.h[n - 1])), radius, norm) for scale, radius, norm in self.terms[n - 1]]
            terms.append((_abs(self.q[n - 1]), self.rho[n - 1], self.reach[n - 1]))
            S = checker.S[n - 1]
            if S is not None:
                total, norm = zeros(len(y)), arb(0)
                for scale, radius, length in terms:
                    total = _add(total, _mul(scale, radius))
                    norm = norm + _largest(scale) * length
                spread = S.spread(total)
                terms = [([arb(1)] * len(spread), spread, norm * checker.norms[n - 1])]
            self.q.append(y if S is None else S(y))
            self.terms.append(terms)

    def sum_of_products(self, n: int, weight: Vector) -> Ball:
        """A bound of `sum_m weight_m |t_nm (B_n r u)_m|`."""
        total = arb(0)
        for scale, radius, norm in self.terms[n]:
            total = total + _split_sum(_mul(weight, scale), _mul(self.rho[n], radius), self.reach[n] * norm)
        return total


def _bound(expansion: _Expansion, mu: Vector, v: Vector, absorb: bool) -> tuple[Ball, Vector]:
    """The lower bound that mu and v prove, and the slopes p of its separable form."""
    n = len(mu)
    H, R = (_absorbed(expansion), arb(0)) if absorb else (expansion.H, expansion.R)
    M = [[value + mu[d] if d == e else value for e, value in enumerate(row)] for d, row in enumerate(H)]
    missing = dominance(M)
    if not missing < arb(2) ** -40 * (1 + _largest(mu) if mu else arb(1)):
        missing = lack(M)
    Mv = times(M, v)
    p = _add(expansion.G, Mv)
    value = expansion.g0 - R - _dot(v, Mv) / 2 - 2 * n * missing
    for slope, bend in zip(p, mu, strict=True):
        if bend < 0 and not abs(slope) >= -bend:
            # Opens upwards, with its vertex inside (or nearly: it is never above the ends).
            value = value + slope * slope / (2 * bend)
        else:
            value = value - abs(slope) - bend / 2
    return value, p


def _absorbed(expansion: _Expansion) -> Rows:
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


def _prove_cut(box: _Box, d: int, low: float, high: float, p: Ball, mu: Ball, lacking: Ball) -> None:
    r = (arb(box.upper[d]) - arb(box.lower[d])) / 2
    if high < box.upper[d] and low == box.lower[d] and p > 0:
        delta = (arb(high) - arb(box.lower[d])) / r
    elif low > box.lower[d] and high == box.upper[d] and p < 0:
        delta = (arb(box.upper[d]) - arb(low)) / r
    else:
        raise _RefusedError("a box is cut on the wrong side")
    cost = (abs(p) + mu) * delta - mu * delta * delta / 2
    if not (mu >= 0 and cost > lacking and 2 * abs(p) > lacking):
        raise _RefusedError("a box is cut too far")


def _prove_monotone(expansion: _Expansion, i: int, at_lower: bool, at_upper: bool) -> None:
    away = sum((abs(value) for value in expansion.H[i]), arb(0)) + expansion.rest[i]
    if not ((at_lower and expansion.G[i] > away) or (at_upper and expansion.G[i] < -away)):
        raise _RefusedError("a coordinate is not monotone")


def _prove_stretch(A: Rows, mu: Vector) -> None:
    """`diag(mu) - A'A` is positive semidefinite exactly if `I - A diag(1/mu) A'` is (for mu > 0)."""
    if not all(value > 0 for value in mu):
        raise _RefusedError("a stretch is not positive")
    if len(mu) != len(A[0]):
        raise _RefusedError("its constants do not fit the model")
    columns = transposed(A)
    if len(A) <= len(mu):
        gram = product([[value / m for value, m in zip(row, mu, strict=True)] for row in A], columns)
        M = [[(1 if i == j else 0) - value for j, value in enumerate(row)] for i, row in enumerate(gram)]
    else:
        gram = product(columns, A)
        M = [[(mu[i] if i == j else 0) - value for j, value in enumerate(row)] for i, row in enumerate(gram)]
    if not lack(M) <= 0:
        raise _RefusedError("a stretch is too small")


def _prove_norm(S: Rows | None, norm: Ball) -> None:
    if S is None:
        if not norm >= 1:
            raise _RefusedError("a norm is too small")
        return
    columns = transposed(S)
    if norm * norm >= _largest(_radii(S)) * _largest(_radii(columns)):
        return  # ||S||_2^2 <= ||S||_inf ||S||_1
    small = S if len(S) <= len(columns) else columns
    gram = product(small, transposed(small))
    M = [[(norm * norm if i == j else 0) - value for j, value in enumerate(row)] for i, row in enumerate(gram)]
    if not lack(M) <= 0:
        raise _RefusedError("a norm is too small")


def _split_sum(weight: Vector, products: Vector, norms: Ball) -> Ball:
    """`min over theta of theta norms + sum_m max(0, weight_m - theta) product_m`; every theta gives a bound."""
    order = sorted(range(len(weight)), key=lambda m: -float(weight[m].mid()))
    theta, total, limit = 0.0, 0.0, float(norms.mid())
    for m in order:
        total += float(products[m].mid())
        if total >= limit:
            theta = max(0.0, float(weight[m].mid()))
            break
    cut = arb(theta)
    return cut * norms + sum(((w - cut).max(arb(0)) * p for w, p in zip(weight, products, strict=True)), arb(0))


def _add(a: Vector, b: Vector) -> Vector:
    return [u + v for u, v in zip(a, b, strict=True)]


def _mul(a: Vector, b: Vector) -> Vector:
    return [u * v for u, v in zip(a, b, strict=True)]


def _dot(a: Vector, b: Vector) -> Ball:
    return sum((u * v for u, v in zip(a, b, strict=True)), arb(0))


def _largest(values: Vector) -> Ball:
    largest = arb(0)
    for value in values:
        largest = largest.max(value)
    return largest


def _radii(rows: Rows) -> Vector:
    return [sum((abs(v) for v in row), arb(0)) for row in rows]


def _abs(values: Vector) -> Vector:
    return [abs(value) for value in values]


def _combine(A: Rows, a: Vector, B: Rows, b: Vector) -> Rows:
    """`diag(a) A + diag(b) B`."""
    return [[u * s + v * t for u, v in zip(x, y, strict=True)] for x, y, s, t in zip(A, B, a, b, strict=True)]


def _down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    near = float(value)
    return near if Fraction(near) <= value else nextafter(near, -inf)


def _up(value: Fraction) -> float:
    return -_down(-value)
