"""The margin over a box to second order; `expansion` has the identity that it rests on, and all the names."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polybound.certificates.expansion import Factored, next_slope
from polybound.certificates.network import Network
from polybound.certificates.quadratic import absolute_rows
from polybound.certificates.regions import CUBE, Region
from polybound.certificates.single import UNDERFLOW, fits_single, single_error
from polybound.certificates.slopes import Slopes, input_slopes
from polybound.theory import ULP

__all__ = ["Second", "second_order"]


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
    box = Factored(net, c, r, region)
    A = input_slopes(net, r, active)
    B, across, beyond = _forwards(box, A)
    back = _Backwards(box, w, len(active) if tight else None)
    g0 = (w * box.h[-1] * box.q[-1]).sum(-1) + constant
    G = c.new_zeros(len(w), len(active))
    rest, R = torch.zeros_like(G), torch.zeros_like(g0)
    left: list[Slopes] = []
    sizes: list[tuple[Tensor, Tensor]] = []
    parts: list[tuple[Tensor, Slopes, Slopes]] = []
    for n in reversed(range(net.degree)):
        G = G + net.A[n].adjoint(back.lam * box.q[n])[:, active]
        rest = rest + net.absolute_A[n].adjoint(back.bend(n, across[n], beyond[n]))[:, active]
        if n == 0:
            break
        left.append(A[n].times(back.lam))
        sizes.append((back.lam.abs() * box.rho[n], across[n]))
        if n < net.degree - 1:
            rivals = 0 if shared else 1  # the boxes' dimension, or one more
            R = R + box.sum_of_products(n, back.ell.unsqueeze(rivals)).squeeze(rivals)
            parts.append((back.ell, A[n], B[n - 1]))
        back.step(n, A[n], left[-1])
    radius = r[:, active]
    found = Second(g0, G * radius, G.new_zeros(*G.shape, 0), R, rest * radius, parts, quick)
    return _with_hessian(found, left, B[::-1], sizes)


class _Backwards:
    """Lambda_n at the centre and what bounds it over the box, from the last factor back.

    Args:
        box: the factors over the boxes.
        w: lambda of the last factor, (boxes, units).
        together: None, or the number of features that move, if products of two forms are bounded together.

    Attributes:
        lam: lambda_n.
        ell: a bound of `|lambda_n(u) - lambda_n|`.
    """

    def __init__(self, box: Factored, w: Tensor, together: int | None) -> None:
        self.box, self.together = box, together
        self.lam, self.ell = w, torch.zeros_like(w)
        self._L: Slopes | None = None
        self._moved = self._second = self.ell  # how far L_n u moves; a bound of lambda_n(u) - lambda_n - L_n u

    def bend(self, n: int, across: Tensor, beyond: Tensor) -> Tensor:
        """A bound of what `lambda_n(u) q_n(u)` has beyond first order, unit by unit."""
        bend = self.lam.abs() * beyond + self._second * self.box.q[n].abs()
        return bend if n == 0 else bend + self.ell * (across + beyond)

    def step(self, n: int, A: Slopes, slope: Slopes) -> None:
        """Go back to factor n - 1; slope is A_n times lambda_n."""
        box, net = self.box, self.box.net
        rho = box.rho[n]
        both = rho * self._moved
        if self.together is not None and self._L is not None:
            both = torch.minimum(both, _product_radius(A, self._L, rho, self._moved, self.together))
        self._second = net.back(self._second * (box.size[n] + rho) + both, n, absolute=True)
        self.lam = net.back(self.lam * box.h[n], n)
        if n > 1:  # the first factor is not multiplied by anything that moves
            L = slope if self._L is None else slope.plus(self._L, box.h[n])
            step = net.S[n - 1]
            self._L = L if step is None else L.back(step)
            self._moved = self._L.radius(box.region)
            self.ell = self._moved + self._second


def _with_hessian(found: Second, left: list[Slopes], right: list[Slopes], sizes: list[tuple[Tensor, Tensor]]) -> Second:
    """The expansion with its H, the sum of the products of both sides' forms, whose l_1 norms are `sizes`."""
    if not left:
        return replace(found, H=found.G.new_zeros(*found.G.shape, found.G.shape[-1]))
    quick = found.quick and all(fits_single(size.amax(-1)) for pair in sizes for size in pair)
    X = type(left[0]).quick_products(left, right) if quick else None
    if X is not None:
        return _less_single(found, X, sizes, left, right)
    X = type(left[0]).products(left, right)
    return replace(found, H=X + X.transpose(1, 2))


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


def _forwards(box: Factored, A: list[Slopes]) -> tuple[list[Slopes], list[Tensor], list[Tensor]]:
    """The slopes B_n from the second factor on; how far `B_n r u` moves; a bound of `q_n(u) - q_n - B_n r u`."""
    net, zero = box.net, torch.zeros_like(box.q[0])
    B: list[Slopes] = []
    across, beyond = [zero], [zero]
    for n in range(1, net.degree):
        B.append(next_slope(box, n, A[n - 1], B[-1] if B else None))
        box.take_slopes(n, B[-1])
        rho = box.rho[n - 1]
        beyond.append(net.spread(beyond[-1] * (box.size[n - 1] + rho) + rho * across[-1], n))
        across.append(B[-1].radius(box.region))
    return B, across, beyond
