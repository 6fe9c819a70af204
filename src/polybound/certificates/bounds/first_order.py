"""The margin over a box: an exact identity of second order, and what bounds it in float64.

Write `x = c + r * u` with u in [-1, 1]^d, `h_n = A_n c + b_n` and `t_n(u) = A_n (r * u)`, so that factor n is `h_n +
t_n`. Let `q_n` be what factor n is multiplied by at the centre (`q_1 = s_1`, `q_n = S_n(h_(n-1) q_(n-1))`) and `B_n`
its derivative (`B_1 = 0`, `B_n = S_n (h_(n-1) B_(n-1) + q_(n-1) A_(n-1))`). Let `lambda_n(u)` be the derivative of the
margin `w.y_k` by `y_n` at u: `lambda_k = w`, `lambda_(n-1)(u) = S_n^T (lambda_n(u) (h_n + t_n(u)))`. Then, exactly,

    g(u) = g0 + G.u + sum_n sum_m lambda_nm(u) t_nm(u) (B_n r u)_m.                                                  (*)

For `q_n(u) - q_n - B_n r u`, the part of second order and above, is `S_n((h + t) (the part before) + t B r u)` with all
of h, t and B those of factor n - 1; unroll it from the last factor down. With `|lambda_n(u) - lambda_n| <= ell_n` the
sum in (*) is `u'Hu/2 + R(u)`, where `H = sum_n A_n^T diag(lambda_n) B_n + transposed` (scaled by r) and

    R(u) = sum_n sum_m (lambda_n(u) - lambda_n)_m t_nm(u) (B_n r u)_m.

Absolute values by entries, `rho_n = |A_n| r` for t_n, bound such a sum of products unit by unit, as if every unit
could see its own worst u. But u is common to all: by Cauchy and Schwarz, `sum_m |t_m| |s_m| <= ||t||_2 ||s||_2`, which
with `||A_n (r u)||_2^2 <= sum_d mu_d r_d^2` is several times smaller for a hundred units of 784 inputs. `split_sum`
takes the best of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polybound.certificates.bounds.slopes import CUBE, Region, Slopes, input_slopes
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.proofs import GRAM_UNITS
from polybound.models import Identity


@dataclass(frozen=True, eq=False)
class First:
    """`|g(u) - g0 - G.u| <= R` over a region of u: g0 and R are (boxes, rivals), G (boxes, rivals, features)."""

    g0: Tensor
    G: Tensor
    R: Tensor


def split_sum(weight: Tensor, product: Tensor, norms: Tensor) -> Tensor:
    r"""Bound `sum_m weight_m |t_m s_m|` where `|t_m s_m| <= product_m` and `||t||_2 ||s||_2 <= norms`.

    For every theta >= 0 it is at most `theta * norms + sum_m max(0, weight_m - theta) * product_m`, the least of which
    is taken at the weight where the sum of the products above it passes `norms`.

    >>> import torch
    >>> float(split_sum(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor(1.5)))
    3.5
    """
    ordered, index = weight.sort(-1, descending=True)
    passed = product.expand_as(weight).gather(-1, index).cumsum(-1) >= norms.unsqueeze(-1)
    theta = torch.where(passed, ordered, 0.0).amax(-1)
    return theta * norms + ((weight - theta.unsqueeze(-1)).clamp_min(0.0) * product).sum(-1)


Term = tuple[Tensor, Tensor, Tensor]
"""A summand of `B_n r u`: a scale times a vector, with a bound of its entries and one of its l_2 norm."""


class Factored:
    """The factors over boxes: everything in the expansions that is the same for all rivals."""

    def __init__(self, net: PreparedNetwork, c: Tensor, r: Tensor, region: Region = CUBE) -> None:
        self.net, self.region = net, region
        self.h = [A(c) for A in net.A]
        self.size = [h.abs() for h in self.h]
        self.rho, self.norm = region.reach(net, r), region.norms(net, r)
        self.q = [net.s1.expand(len(c), -1)]
        self.terms: list[list[Term]] = [[]]
        for n in range(1, net.degree):
            before = self.q[n - 1]
            self.q.append(net.between(self.h[n - 1] * before, n))
            terms = [(scale * self.size[n - 1], radius, norm) for scale, radius, norm in self.terms[n - 1]]
            terms.append((before.abs(), self.rho[n - 1], self.norm[n - 1]))
            if not isinstance(net.S[n - 1], Identity):
                reach = sum((scale * radius for scale, radius, _ in terms), torch.zeros_like(before))
                total = sum((scale.amax(-1) * norm for scale, _, norm in terms), torch.zeros_like(self.norm[0]))
                reach = net.radius_between(reach, n)
                terms = [(torch.ones_like(reach), reach, total * net.norms_S[n - 1])]
            self.terms.append(terms)
        self.whole: list[Term | None] = [None] * net.degree

    def take_slopes(self, n: int, slope: Slopes) -> None:
        """Let B_n itself, scaled by r, bound what its summands bounded: they cancel in it."""
        if n > 1 and slope.units <= GRAM_UNITS:
            radius = slope.radius(self.region)
            self.whole[n] = (torch.ones_like(radius), radius, self.region.stretched(slope.written()))

    def sum_of_products(self, n: int, weight: Tensor) -> Tensor:
        """A bound of `sum_m weight_m |t_nm (B_n r u)_m|`, for weights (boxes, rivals, units)."""

        def one(term: Term) -> Tensor:
            scale, radius, norm = term
            norms = (self.norm[n] * norm).unsqueeze(-1).expand(weight.shape[:-1])
            return split_sum(weight * scale.unsqueeze(1), (self.rho[n] * radius).unsqueeze(1), norms)

        total = sum(map(one, self.terms[n]), weight.new_zeros(weight.shape[:-1]))
        whole = self.whole[n]
        return total if whole is None else torch.minimum(total, one(whole))


def first_order(
    net: PreparedNetwork,
    c: Tensor,
    r: Tensor,
    w: Tensor,
    constant: Tensor,
    *,
    slopes: bool = False,
    region: Region = CUBE,
) -> First:
    """Margins `w.y_k(x) + constant` to first order over boxes `x = c + r * u`.

    In (*), `|lambda_n(u)| <= |lambda_n| + ell_n`. With `slopes`, the matrices B_n are formed, once for all rivals, and
    their norms and radii bounded as they are: some milliseconds a box, for norms a third as large at high degrees.

    Args:
        net: the network.
        c: centres (boxes, features).
        r: radii (boxes, features).
        w: (boxes, rivals, units).
        constant: (boxes, rivals).
        slopes: whether to form the matrices B_n.
        region: what u ranges over.
    """
    box = Factored(net, c, r, region)
    if slopes:
        B = None
        for n, A in enumerate(input_slopes(net, r, torch.arange(net.features))[:-1], 1):
            B = next_slope(box, n, A, B)
            box.take_slopes(n, B)
    g0 = (w * (box.h[-1] * box.q[-1]).unsqueeze(1)).sum(-1) + constant
    G = c.new_zeros(*w.shape[:2], net.features)
    R = torch.zeros_like(g0)
    lam, ell = w, torch.zeros_like(w)
    for n in reversed(range(net.degree)):
        G = G + net.A[n].adjoint(lam * box.q[n].unsqueeze(1))
        R = R + box.sum_of_products(n, lam.abs() + ell)
        if n > 0:
            lam, ell = _one_back(box, n, lam, ell)
    return First(g0, G * r.unsqueeze(1), R)


def slopes_over(net: PreparedNetwork, c: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of `w.y_k` over boxes `x = c + r * u`: `|dg/du - G| <= away`, (boxes, features) both.

    `dg/du = r A_n^T (lambda_n(u) q_n(u))`, summed over n, with both factors in intervals: much looser than second order
    gives it, and as cheap as first order.

    Args:
        net: the network.
        c: centres (boxes, features).
        r: radii (boxes, features).
        w: (boxes, units).
    """
    box = Factored(net, c, r)
    spread = [torch.zeros_like(box.q[0])]  # of q_n(u) about q_n
    for n in range(1, net.degree):
        wider = spread[n - 1] * (box.size[n - 1] + box.rho[n - 1]) + box.rho[n - 1] * box.q[n - 1].abs()
        spread.append(net.radius_between(wider, n))
    G, away = torch.zeros_like(c), torch.zeros_like(c)
    lam, ell = w.unsqueeze(1), torch.zeros_like(w).unsqueeze(1)
    for n in reversed(range(net.degree)):
        at, off = lam.squeeze(1), ell.squeeze(1)
        G = G + net.A[n].adjoint(at * box.q[n])
        away = away + net.absolute_A[n].adjoint(off * (box.q[n].abs() + spread[n]) + at.abs() * spread[n])
        if n > 0:
            lam, ell = _one_back(box, n, lam, ell)
    return G * r, away * r


def _one_back(box: Factored, n: int, lam: Tensor, ell: Tensor) -> tuple[Tensor, Tensor]:
    """Lambda and ell of the factor before n, both (boxes, rivals, units)."""
    size, rho = box.size[n].unsqueeze(1), box.rho[n].unsqueeze(1)
    before = box.net.back(lam * box.h[n].unsqueeze(1), n)
    return before, box.net.back(ell * (size + rho) + lam.abs() * rho, n, absolute=True)


def next_slope(box: Factored, n: int, A: Slopes, B: Slopes | None) -> Slopes:
    """B_n from the slopes of the factor before it; none before the first."""
    slope = A.times(box.q[n - 1])
    slope = slope if B is None else slope.plus(B, box.h[n - 1])
    return slope.through(box.net.S[n - 1])
