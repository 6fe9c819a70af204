"""Enclosures in ball arithmetic of the expansions to first and second order that certificates are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polybound.certificates.proofs import GRAM_UNITS
from polybound.certificates.proofs.arb import (
    Arb,
    Map,
    Place,
    Rows,
    Vector,
    absolute,
    add,
    arb,
    combine,
    dot,
    largest,
    mul,
    product,
    psd_deficit,
    radii,
    times,
    transposed,
    vector,
    zeros,
)
from polybound.certificates.proofs.schema import RefusedError
from polybound.models import Factors, Identity


@dataclass(frozen=True)
class Expansion:
    """Balls of the terms of an expansion to second order, over one box and for one rival."""

    g0: Arb
    G: Vector
    H: Rows
    R: Arb
    rest: Vector
    parts: list[tuple[Vector, Rows, Rows]]  # ell_n, rows of A_n and of B_n, both scaled by the radii


class Enclosures:
    """A model's maps in arbs, and its margins over boxes.

    Args:
        factors: the model's, in float64.
        stretch: for each factor, a diagonal said to dominate `A_n' A_n`; proven before it is used.
        norms: for each map in between, a number, not negative, said to be at least its spectral norm; likewise.
        tops: the same of each factor's own map; only balls need them.
    """

    def __init__(
        self,
        factors: Factors,
        stretch: Sequence[Sequence[float]],
        norms: Sequence[float],
        tops: Sequence[float] | None = None,
    ) -> None:
        self.k = factors.degree
        self.A = [Map(a) for a in factors.A]
        self.S = [None if isinstance(s, Identity) else Map(s) for s in factors.S]
        self.s1 = vector(factors.s1.tolist())
        self.C = Map(factors.C)
        self._last: tuple[Place, _Factors] | None = None
        self.stretch = [vector(mu) for mu in stretch]
        self.norms = vector(norms)
        self.tops = None if tops is None else vector(tops)
        for A, mu in zip(self.A, self.stretch, strict=True):
            _prove_stretch(A.rows, mu)
        for S, norm in zip(self.S, self.norms, strict=True):
            _prove_norm(None if S is None else S.rows, norm)
        if self.tops is not None:
            for A, top in zip(self.A, self.tops, strict=True):
                _prove_norm(A.rows, top)

    def margin(self, label: int, rival: int) -> tuple[Vector, Arb]:
        """A margin as weights of the last product, and a constant."""
        w = [a - b for a, b in zip(self.C.rows[label], self.C.rows[rival], strict=True)]
        return w, self.C.constant[label] - self.C.constant[rival]

    def form(self, weights: Vector, constant: Arb) -> tuple[Vector, Arb]:
        """A linear form of the outputs as weights of the last product, and a constant."""
        return times(transposed(self.C.rows), weights), dot(weights, self.C.constant) + constant

    def logits(self, x: Vector) -> Vector:
        """The logits at a point."""
        y = mul(self.A[0](x), self.s1)
        for A, S in zip(self.A[1:], self.S, strict=True):
            y = mul(A(x), y if S is None else S(y))
        return self.C(y)

    def _factors(self, box: Place) -> _Factors:
        if self._last is None or self._last[0] is not box:
            self._last = box, _Factors(self, box)
        return self._last[1]

    def first(self, box: Place, w: Vector, constant: Arb, slopes: bool = False) -> Arb:
        """A lower bound of the margin over a box or ball, to first order."""
        f = self._factors(box)
        if slopes:
            self._slopes(f, self._scaled(f, range(len(f.r))))
        g0 = dot(w, mul(f.h[-1], f.q[-1])) + constant
        G = zeros(len(f.r))
        R = arb(0)
        lam, ell = w, zeros(len(w))
        for n in reversed(range(self.k)):
            G = add(G, self.A[n].back(mul(lam, f.q[n])))
            R = R + f.sum_of_products(n, add(absolute(lam), ell))
            if n > 0:
                ell = self._back(add(mul(ell, f.size[n]), mul(absolute(lam), f.rho[n])), n, absolute=True)
                lam = self._back(mul(lam, f.h[n]), n)
        return g0 - f.place.away(mul(G, f.r), list(range(len(f.r)))) - R

    def _back(self, y: Vector, n: int, absolute: bool = False) -> Vector:
        S = self.S[n - 1]
        return y if S is None else S.back(y, absolute)

    def second(self, box: Place, w: Vector, constant: Arb, on: list[int]) -> Expansion:
        """The margin over a box to second order, in the coordinates `on`."""
        f = self._factors(box)
        A = self._scaled(f, on)
        B = self._slopes(f, A)
        beyond = [zeros(len(self.s1))]
        for n in range(1, self.k):
            wider = add(mul(beyond[n - 1], f.size[n - 1]), mul(f.rho[n - 1], f.place.across(B[n - 1])))
            S = self.S[n - 1]
            beyond.append(wider if S is None else S.reach(wider))
        g0 = dot(w, mul(f.h[-1], f.q[-1])) + constant
        G, rest, R = zeros(len(on)), zeros(len(on)), arb(0)
        left: Rows = []
        right: Rows = []
        parts: list[tuple[Vector, Rows, Rows]] = []
        lam, ell, second = w, zeros(len(w)), zeros(len(w))
        L: Rows = [zeros(len(on)) for _ in w]
        for n in reversed(range(self.k)):
            G = add(G, times(transposed(A[n]), mul(lam, f.q[n])))
            bend = add(mul(ell, add(f.place.across(B[n]), beyond[n])), mul(absolute(lam), beyond[n]))
            bend = add(bend, mul(second, absolute(f.q[n])))
            rest = add(rest, times(transposed([absolute(row) for row in A[n]]), bend))
            if n == 0:
                break
            left += [[weight * v for v in row] for weight, row in zip(lam, A[n], strict=True)]
            right += B[n]
            if n < self.k - 1:
                parts.append((ell, A[n], B[n]))
                R = R + f.sum_of_products(n, ell)
            second = self._back(add(mul(second, f.size[n]), mul(f.rho[n], f.place.across(L))), n, absolute=True)
            L = combine(A[n], lam, L, f.h[n])
            S = self.S[n - 1]
            L = L if S is None else product(transposed(S.rows), L)
            lam = self._back(mul(lam, f.h[n]), n)
            ell = add(f.place.across(L), second)
        K = product(transposed(left), right) if left else [zeros(len(on)) for _ in on]
        H = [add(row, column) for row, column in zip(K, transposed(K), strict=True)]
        return Expansion(g0, G, H, R, rest, parts)

    def _scaled(self, f: _Factors, on: Iterable[int]) -> list[Rows]:
        """The rows of all A_n, scaled by the radii, in the coordinates `on`."""
        chosen = list(on)
        return [[[row[d] * f.r[d] for d in chosen] for row in a.rows] for a in self.A]

    def _slopes(self, f: _Factors, A: list[Rows]) -> list[Rows]:
        """The rows of all B_n, scaled likewise."""
        B: list[Rows] = [[zeros(len(A[0][0])) for _ in self.s1]]
        for n in range(1, self.k):
            slope = combine(A[n - 1], f.q[n - 1], B[n - 1], f.h[n - 1])
            S = self.S[n - 1]
            B.append(slope if S is None else product(S.rows, slope))
            if n > 1 and len(B[n]) <= GRAM_UNITS:
                f.whole[n] = f.place.across(B[n]), f.place.stretched(B[n])
        return B


class _Factors:
    """Balls of what no rival has a part in: h_n, rho_n, q_n, the radii, and the summands of `B_n r u`."""

    def __init__(self, owner: Enclosures, place: Place) -> None:
        self.place = place
        c, self.r = place.centre()
        self.h = [A(c) for A in owner.A]
        self.rho = place.reach(owner, self.r)
        self.size = [add(absolute(h), rho) for h, rho in zip(self.h, self.rho, strict=True)]
        self.norms = place.norms(owner, self.r)
        self.q = [owner.s1]
        self.terms: list[list[tuple[Vector, Vector, Arb]]] = [[]]
        for n in range(1, owner.k):
            y = mul(self.h[n - 1], self.q[n - 1])
            terms = [(mul(scale, absolute(self.h[n - 1])), radius, norm) for scale, radius, norm in self.terms[n - 1]]
            terms.append((absolute(self.q[n - 1]), self.rho[n - 1], self.norms[n - 1]))
            S = owner.S[n - 1]
            if S is not None:
                total, norm = zeros(len(y)), arb(0)
                for scale, radius, length in terms:
                    total = add(total, mul(scale, radius))
                    norm = norm + largest(scale) * length
                reach = S.reach(total)
                terms = [([arb(1)] * len(reach), reach, norm * owner.norms[n - 1])]
            self.q.append(y if S is None else S(y))
            self.terms.append(terms)
        self.whole: list[tuple[Vector, Arb] | None] = [None] * owner.k

    def sum_of_products(self, n: int, weight: Vector) -> Arb:
        """A bound of `sum_m weight_m |t_nm (B_n r u)_m|`."""
        total = arb(0)
        for scale, radius, norm in self.terms[n]:
            total = total + _split_sum(mul(weight, scale), mul(self.rho[n], radius), self.norms[n] * norm)
        whole = self.whole[n]
        if whole is None:
            return total
        return total.min(_split_sum(weight, mul(self.rho[n], whole[0]), self.norms[n] * whole[1]))


def _prove_stretch(A: Rows, mu: Vector) -> None:
    """`diag(mu) - A'A` is positive semidefinite exactly if `I - A diag(1/mu) A'` is (for mu > 0)."""
    if not all(value > 0 for value in mu):
        raise RefusedError("a stretch is not positive")
    columns = transposed(A)
    if len(A) <= len(mu):
        gram = product([[value / m for value, m in zip(row, mu, strict=True)] for row in A], columns)
        M = [[(1 if i == j else 0) - value for j, value in enumerate(row)] for i, row in enumerate(gram)]
    else:
        gram = product(columns, A)
        M = [[(mu[i] if i == j else 0) - value for j, value in enumerate(row)] for i, row in enumerate(gram)]
    if not psd_deficit(M) <= 0:
        raise RefusedError("a stretch is too small")


def _prove_norm(S: Rows | None, norm: Arb) -> None:
    """`norm >= ||S||_2`, of the identity if S is None."""
    if not norm >= 0:
        raise RefusedError("a norm is negative")
    if S is None:
        if not norm >= 1:
            raise RefusedError("a norm is too small")
        return
    columns = transposed(S)
    if norm * norm >= largest(radii(S)) * largest(radii(columns)):
        return  # ||S||_2^2 <= ||S||_inf ||S||_1
    small = S if len(S) <= len(columns) else columns
    gram = product(small, transposed(small))
    M = [[(norm * norm if i == j else 0) - value for j, value in enumerate(row)] for i, row in enumerate(gram)]
    if not psd_deficit(M) <= 0:
        raise RefusedError("a norm is too small")


def _split_sum(weight: Vector, products: Vector, norms: Arb) -> Arb:
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
