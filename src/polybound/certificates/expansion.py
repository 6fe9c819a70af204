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

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polybound.certificates.network import Network
from polybound.certificates.quadratic import absolute_rows
from polybound.certificates.regions import CUBE, Region
from polybound.certificates.single import UNDERFLOW, fits_single, single_error
from polybound.certificates.slopes import Slopes, input_slopes
from polybound.theory import ULP

__all__ = ["GRAM_UNITS", "First", "Second", "first_order", "second_order", "slopes_over", "split_sum"]


@dataclass(frozen=True, eq=False)
class First:
    """`|g(u) - g0 - G.u| <= R` over a region of u: g0 and R are (boxes, rivals), G (boxes, rivals, features)."""

    g0: Tensor
    G: Tensor
    R: Tensor


@dataclass(frozen=True, eq=False)
class Second:
    """`|g(u) - g0 - G.u - u'Hu/2| <= R` over a region of u, in the n coordinates that move; one row a box.

    Attributes:
        g0: (boxes,).
        G: (boxes, n).
        H: (boxes, n, n), exactly symmetric.
        R: (boxes,).
        rest: bound by entries of `dg/du - G - Hu`, (boxes, n).
        parts: for each product of three and more, its weights ell_n (boxes, units) and slopes A_n, B_n.
        quick: whether products are computed in single precision where that pays; what it loses is in R and `rest`.
    """

    g0: Tensor
    G: Tensor
    H: Tensor
    R: Tensor
    rest: Tensor
    parts: list[tuple[Tensor, Slopes, Slopes]]
    quick: bool = False

    def rows(self, rows: Tensor) -> Second:
        """Some of the boxes."""
        parts = [(ell[rows], A.rows(rows), B.rows(rows)) for ell, A, B in self.parts]
        return Second(self.g0[rows], self.G[rows], self.H[rows], self.R[rows], self.rest[rows], parts, self.quick)

    def absorbed(self) -> tuple[Tensor, Tensor]:
        r"""`H - Q` and R' with `g(u) >= g0 + G.u + u'(H - Q)u/2 - R'`: the remainder as a quadratic form.

        `|t s| <= (tau t^2 + s^2 / tau) / 2` for every tau > 0, so that

            R(u) >= -u'Qu/2,   Q = sum_n sum_m ell_nm (tau a_nm a_nm' + b_nm b_nm' / tau),

        a_nm and b_nm being the rows of `A_n` and `B_n`, scaled by r, and tau the ratio of their norms. Like those of
        H, the entries of Q cancel over the units before absolute values are taken. R' is what rounding asks for.
        """
        forms = []
        for ell, A, B in self.parts:
            tau = ((B.squares() + 2.0**-500) / (A.squares() + 2.0**-500)).sqrt()
            forms += [A.times((ell * tau).sqrt()), B.times((ell / tau).sqrt())]
        if not forms:
            return self.H, torch.zeros_like(self.R)
        widths = sum((form.radius(CUBE).square().sum(-1) for form in forms), torch.zeros_like(self.R))
        units = sum(form.units for form in forms)
        off = (widths + absolute_rows(self.H).sum(-1)) * ((units + self.H.shape[-1] + 16) * ULP)
        quick = self.quick and fits_single(widths)
        found = type(forms[0]).quick_products(forms, forms) if quick else None
        if found is None:
            Q = type(forms[0]).products(forms, forms)
        else:
            Q = found
            off = off + widths * single_error(units) + units * UNDERFLOW * Q.shape[-1] ** 2
        return self.H - (Q + Q.transpose(1, 2)) / 2, off


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


@dataclass(frozen=True, eq=False)
class _Term:
    """A summand of `B_n r u`: `scale` times a vector of entries at most `radius` and of l2 norm at most `norm`."""

    scale: Tensor
    radius: Tensor
    norm: Tensor


class _Box:
    """What the expansions share: everything about the factors over a box that no rival has a part in."""

    def __init__(self, net: Network, c: Tensor, r: Tensor, region: Region = CUBE) -> None:
        self.net, self.region = net, region
        self.h = [A(c) for A in net.A]
        self.size = [h.abs() for h in self.h]
        self.rho, self.norm = region.reach(net, r), region.norms(net, r)
        self.q = [net.s1.expand(len(c), -1)]
        self.terms: list[list[_Term]] = [[]]
        for n in range(1, net.degree):
            before = self.q[n - 1]
            self.q.append(net.between(self.h[n - 1] * before, n))
            terms = [_Term(t.scale * self.size[n - 1], t.radius, t.norm) for t in self.terms[n - 1]]
            terms.append(_Term(before.abs(), self.rho[n - 1], self.norm[n - 1]))
            if net.S[n - 1] is not None:
                radius = net.spread(sum((t.scale * t.radius for t in terms), torch.zeros_like(before)), n)
                norm = sum((t.scale.amax(-1) * t.norm for t in terms), torch.zeros_like(terms[0].norm))
                terms = [_Term(torch.ones_like(radius), radius, norm * net.norms_S[n - 1])]
            self.terms.append(terms)

        self.whole: list[_Term | None] = [None] * net.degree

    def take_slopes(self, n: int, slope: Slopes) -> None:
        """Let B_n itself, scaled by r, bound what its summands bounded: they cancel in it."""
        if n > 1 and slope.units <= GRAM_UNITS:
            radius = slope.radius(self.region)
            self.whole[n] = _Term(torch.ones_like(radius), radius, self.region.stretched(slope.written()))

    def sum_of_products(self, n: int, weight: Tensor) -> Tensor:
        """A bound of `sum_m weight_m |t_nm (B_n r u)_m|`, for weights (boxes, rivals, units)."""
        total = weight.new_zeros(weight.shape[:-1])
        for term in self.terms[n]:
            total = total + self._one_product(n, term, weight)
        whole = self.whole[n]
        return total if whole is None else torch.minimum(total, self._one_product(n, whole, weight))

    def _one_product(self, n: int, term: _Term, weight: Tensor) -> Tensor:
        norms = (self.norm[n] * term.norm).unsqueeze(-1).expand(weight.shape[:-1])
        product = (self.rho[n] * term.radius).unsqueeze(1)
        return split_sum(weight * term.scale.unsqueeze(1), product, norms)


def first_order(
    net: Network,
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
    box = _Box(net, c, r, region)
    if slopes:
        B = None
        for n, A in enumerate(input_slopes(net, r, torch.arange(net.features))[:-1], 1):
            B = _next_slope(box, n, A, B)
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


def slopes_over(net: Network, c: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of `w.y_k` over boxes `x = c + r * u`: `|dg/du - G| <= away`, (boxes, features) both.

    `dg/du = r A_n^T (lambda_n(u) q_n(u))`, summed over n, with both factors in intervals: much looser than second order
    gives it, and as cheap as first order.

    Args:
        net: the network.
        c: centres (boxes, features).
        r: radii (boxes, features).
        w: (boxes, units).
    """
    box = _Box(net, c, r)
    spread = [torch.zeros_like(box.q[0])]  # of q_n(u) about q_n
    for n in range(1, net.degree):
        wider = spread[n - 1] * (box.size[n - 1] + box.rho[n - 1]) + box.rho[n - 1] * box.q[n - 1].abs()
        spread.append(net.spread(wider, n))
    G, away = torch.zeros_like(c), torch.zeros_like(c)
    lam, ell = w.unsqueeze(1), torch.zeros_like(w).unsqueeze(1)
    for n in reversed(range(net.degree)):
        at, off = lam.squeeze(1), ell.squeeze(1)
        G = G + net.A[n].adjoint(at * box.q[n])
        away = away + net.absolute_A[n].adjoint(off * (box.q[n].abs() + spread[n]) + at.abs() * spread[n])
        if n > 0:
            lam, ell = _one_back(box, n, lam, ell)
    return G * r, away * r


def _one_back(box: _Box, n: int, lam: Tensor, ell: Tensor) -> tuple[Tensor, Tensor]:
    """Lambda and ell of the factor before n, both (boxes, rivals, units)."""
    size, rho = box.size[n].unsqueeze(1), box.rho[n].unsqueeze(1)
    before = box.net.back(lam * box.h[n].unsqueeze(1), n)
    return before, box.net.back(ell * (size + rho) + lam.abs() * rho, n, absolute=True)


def second_order(
    net: Network,
    c: Tensor,
    r: Tensor,
    w: Tensor,
    constant: Tensor,
    active: Tensor,
    *,
    region: Region = CUBE,
    quick: bool = False,
    tight: bool = False,
) -> Second:
    """Margins `w.y_k(x) + constant` to second order over boxes `x = c + r * u`; one w for each box.

    The entries of H cancel over the units before absolute values are taken, which is where the tightness is. The first
    order of `lambda_n(u) - lambda_n` is a matrix L_n as B_n is, so that the factors of a unit cancel in `ell_n` too.
    Where all boxes are the same (the rivals of one image), what no w has a part in is computed once.

    Args:
        net: the network.
        c: centres (boxes, features).
        r: radii (boxes, features), zero outside of `active`.
        w: (boxes, units).
        constant: (boxes,).
        active: indices of the coordinates that move.
        region: what u ranges over.
        quick: whether H may be computed in single precision; only over the cube.
        tight: whether products of two forms are bounded together, which takes longer; only over the cube.
    """
    shared = len(c) > 1 and bool((c == c[:1]).all()) and bool((r == r[:1]).all())
    if shared:
        c, r = c[:1], r[:1]
    box = _Box(net, c, r, region)
    h, q, rho, size = box.h, box.q, box.rho, box.size
    A = input_slopes(net, r, active)
    B, across, beyond = _forwards(box, A)
    g0 = (w * h[-1] * q[-1]).sum(-1) + constant
    G = c.new_zeros(len(w), len(active))
    rest, R = torch.zeros_like(G), torch.zeros_like(g0)
    left: list[Slopes] = []
    lams: list[Tensor] = []
    parts: list[tuple[Tensor, Slopes, Slopes]] = []
    L: Slopes | None = None
    lam, ell = w, torch.zeros_like(w)
    moved = second = ell  # how far L_n u moves, and a bound of lambda_n(u) - lambda_n - L_n u
    for n in reversed(range(net.degree)):
        G = G + net.A[n].adjoint(lam * q[n])[:, active]
        bend = lam.abs() * beyond[n] + second * q[n].abs()
        if n > 0:
            bend = bend + ell * (across[n] + beyond[n])
        rest = rest + net.absolute_A[n].adjoint(bend)[:, active]
        if n == 0:
            break
        left.append(A[n].times(lam))
        lams.append(lam)
        if n < net.degree - 1:
            rivals = 0 if shared else 1  # the boxes' dimension, or one more
            R = R + box.sum_of_products(n, ell.unsqueeze(rivals)).squeeze(rivals)
            parts.append((ell, A[n], B[n - 1]))
        both = rho[n] * moved
        if tight and L is not None:
            both = torch.minimum(both, _product_radius(A[n], L, rho[n], moved, len(active)))
        second = net.back(second * (size[n] + rho[n]) + both, n, absolute=True)
        lam = net.back(lam * h[n], n)
        if n > 1:  # the first factor is not multiplied by anything that moves
            L = left[-1] if L is None else left[-1].plus(L, h[n])
            step = net.S[n - 1]
            L = L if step is None else L.back(step)
            moved = L.radius(region)
            ell = moved + second
    radius = r[:, active]
    exact = Second(g0, G * radius, G.new_zeros(0), R, rest * radius, parts, quick)
    if not left:
        return replace(exact, H=G.new_zeros(*G.shape, len(active)))
    sizes = [(at.abs() * rho[n], across[n]) for n, at in zip(range(net.degree - 1, 0, -1), lams, strict=True)]
    quick = quick and all(fits_single(size.amax(-1)) for pair in sizes for size in pair)
    X = type(left[0]).quick_products(left, B[::-1]) if quick else None
    if X is not None:
        return _less_single(exact, X, sizes, left, B[::-1])
    X = type(left[0]).products(left, B[::-1])
    return replace(exact, H=X + X.transpose(1, 2))


def _product_radius(a: Slopes, b: Slopes, reach: Tensor, moved: Tensor, n: int) -> Tensor:
    r"""How far the product of two linear forms moves over the cube, (boxes, units).

    With any tau > 0, `x = tau a.u` and `y = b.u / tau`, the product is `((x + y)^2 - (x - y)^2) / 4`: no more than a
    quarter of the square of `||tau a + b / tau||_1` or `||tau a - b / tau||_1`. Where the forms have little to do with
    each other, this is half of the product of their radii.

    Args:
        a: the forms.
        b: the other forms.
        reach: the radii of a.
        moved: the radii of b.
        n: how many features move.
    """
    tau = ((moved + 2.0**-500) / (reach + 2.0**-500)).sqrt()
    one = a.times(tau.expand_as(moved))
    longest = torch.maximum(one.plus(b, 1 / tau).radius(CUBE), one.plus(b, -1 / tau).radius(CUBE))
    return longest.square() * ((1 + (2 * n + 32) * ULP) / 4) + 2.0**-900


def _less_single(
    exact: Second, X: Tensor, sizes: list[tuple[Tensor, Tensor]], left: list[Slopes], right: list[Slopes]
) -> Second:
    r"""The expansion with H from a product X in single precision, and what that can be off.

    `|X - exact| <= c sum_m |a_m| |b_m|'` for the forms of both sides. So `u'Xu = u'Hu/2` is off by at most
    `c sum_m ||a_m||_1 ||b_m||_1`, and entry d of `Hu` by `c sum_m (|a_md| ||b_m||_1 + |b_md| ||a_m||_1)`.

    Args:
        exact: all but H.
        X: the product, in single precision.
        sizes: the l_1 norms of both sides' forms, (boxes, units) each.
        left: the forms.
        right: those of the other side.
    """
    units, n = sum(slopes.units for slopes in left), X.shape[-1]
    c, floor = single_error(units), units * UNDERFLOW * n**2
    R, rest = exact.R + floor, exact.rest + 2 * floor
    for a, b, (long, wide) in zip(left, right, sizes, strict=True):
        R = R + (long * wide).sum(-1) * c
        rest = rest + (a.absolute_sum(wide.expand_as(long)) + b.absolute_sum(long)) * c
    return replace(exact, H=(X + X.transpose(1, 2)).double(), R=R, rest=rest)


def _forwards(box: _Box, A: list[Slopes]) -> tuple[list[Slopes], list[Tensor], list[Tensor]]:
    """The slopes B_n from the second factor on; how far `B_n r u` moves; a bound of `q_n(u) - q_n - B_n r u`."""
    net, zero = box.net, torch.zeros_like(box.q[0])
    B: list[Slopes] = []
    across, beyond = [zero], [zero]
    for n in range(1, net.degree):
        B.append(_next_slope(box, n, A[n - 1], B[-1] if B else None))
        box.take_slopes(n, B[-1])
        rho = box.rho[n - 1]
        beyond.append(net.spread(beyond[-1] * (box.size[n - 1] + rho) + rho * across[-1], n))
        across.append(B[-1].radius(box.region))
    return B, across, beyond


def _next_slope(box: _Box, n: int, A: Slopes, B: Slopes | None) -> Slopes:
    """B_n from the slopes of the factor before it; none before the first."""
    slope = A.times(box.q[n - 1])
    slope = slope if B is None else slope.plus(B, box.h[n - 1])
    step = box.net.S[n - 1]
    return slope if step is None else slope.through(step)


GRAM_UNITS = 512
"""Up to this many units, Gram matrices of slopes are formed for each box."""
