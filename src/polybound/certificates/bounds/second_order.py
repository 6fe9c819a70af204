"""The margin over a box to second order; `first_order` has the identity that it rests on, and all the names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.bounds.first_order import Factored, First, next_slope, slopes_over
from polybound.certificates.bounds.quadratic import (
    absolute_rows,
    descend,
    diagonally_dominant,
    least_separable,
    minorant,
    spectral_shift,
)
from polybound.certificates.bounds.slopes import CUBE, Region, Slopes, input_slopes
from polybound.certificates.forms import Cells
from polybound.certificates.network import PreparedNetwork
from polybound.theory import ULP


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
    """

    g0: Tensor
    G: Tensor
    H: Tensor
    R: Tensor
    rest: Tensor
    parts: list[tuple[Tensor, Slopes, Slopes]]

    def rows(self, rows: Tensor) -> Second:
        """Some of the boxes."""
        parts = [(ell[rows], A.rows(rows), B.rows(rows)) for ell, A, B in self.parts]
        return Second(self.g0[rows], self.G[rows], self.H[rows], self.R[rows], self.rest[rows], parts)

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
        Q = type(forms[0]).products(forms, forms)
        return torch.sub(self.H, Q + Q.transpose(1, 2), alpha=0.5), off


def second_order(
    net: PreparedNetwork,
    c: Tensor,
    r: Tensor,
    w: Tensor,
    constant: Tensor,
    active: Tensor,
    *,
    region: Region = CUBE,
    loose: Second | None = None,
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
        loose: the same boxes' expansion, if products of two forms are to be bounded together, which takes longer: R and
            the weights become smaller, H stays as it is; only over the cube.
    """
    shared = len(c) > 1 and bool((c == c[:1]).all()) and bool((r == r[:1]).all())
    if shared:
        c, r = c[:1], r[:1]
    box = Factored(net, c, r, region)
    A = input_slopes(net, r, active)

    # Forwards: the slopes B_n, how far `B_n r u` moves, and a bound of `q_n(u) - q_n - B_n r u`.
    B: list[Slopes] = []
    across, beyond = [torch.zeros_like(box.q[0])], [torch.zeros_like(box.q[0])]
    for n in range(1, net.degree):
        B.append(next_slope(box, n, A[n - 1], B[-1] if B else None))
        box.take_slopes(n, B[-1])
        rho = box.rho[n - 1]
        beyond.append(net.radius_between(beyond[-1] * (box.size[n - 1] + rho) + rho * across[-1], n))
        across.append(B[-1].radius(region))

    # Backwards: lambda_n and ell_n; L_n, how far `L_n u` moves, and a bound of `lambda_n(u) - lambda_n - L_n u`.
    lam, ell = w, torch.zeros_like(w)
    L: Slopes | None = None
    moved = second = ell
    g0 = (w * box.h[-1] * box.q[-1]).sum(-1) + constant
    G = c.new_zeros(len(w), len(active))
    rest, R = torch.zeros_like(G), torch.zeros_like(g0)
    left: list[Slopes] = []
    parts: list[tuple[Tensor, Slopes, Slopes]] = []
    for n in reversed(range(net.degree)):
        G = G + net.A[n].adjoint(lam * box.q[n])[:, active]
        # What `lambda_n(u) q_n(u)` has beyond first order, unit by unit.
        bend = lam.abs() * beyond[n] + second * box.q[n].abs()
        bend = bend if n == 0 else bend + ell * (across[n] + beyond[n])
        rest = rest + net.absolute_A[n].adjoint(bend)[:, active]
        if n == 0:
            break
        rho = box.rho[n]
        left.append(A[n].times(lam))
        if n < net.degree - 1:
            rivals = 0 if shared else 1  # the boxes' dimension, or one more
            R = R + box.sum_of_products(n, ell.unsqueeze(rivals)).squeeze(rivals)
            parts.append((ell, A[n], B[n - 1]))
        both = rho * moved
        if loose is not None and L is not None:
            both = torch.minimum(both, _product_radius(A[n], L, rho, moved, len(active)))
        second = net.back(second * (box.size[n] + rho) + both, n, absolute=True)
        lam = net.back(lam * box.h[n], n)
        if n > 1:  # the first factor is not multiplied by anything that moves
            L = left[-1] if L is None else left[-1].plus(L, box.h[n])
            L = L.back(net.S[n - 1])
            moved = L.radius(region)
            ell = moved + second

    radius = r[:, active]
    if loose is not None:
        H = loose.H
    else:
        X = type(left[0]).products(left, B[::-1]) if left else G.new_zeros(*G.shape, G.shape[-1])
        H = X + X.transpose(1, 2)
    return Second(g0, G * radius, H, R, rest * radius, parts)


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


# Lower bounds of linear forms of the logits over boxes, and what each bound excludes of its box.


@dataclass(frozen=True, eq=False)
class Bounded:
    """`g(u) >= constant + sum_d (p_d u_d - mu_d u_d^2 / 2)` over a cell, u in [-1, 1] in its active coordinates.

    Attributes:
        lower: the least value of the right side, proven and rounded down, (N,).
        p: (N, n).
        mu: (N, n).
        v: the point where it is (nearly) taken, (N, n).
        active: (n,).
        absorbed: whether the remainder was absorbed for this bound, (N,).
        bend: how much of the remainder each coordinate has a part in, (N, n); it proves nothing.
    """

    lower: Tensor
    p: Tensor
    mu: Tensor
    v: Tensor
    active: Tensor
    absorbed: Tensor
    bend: Tensor

    def rows(self, rows: Tensor) -> Bounded:
        """Some of the cells."""
        some = {name: getattr(self, name)[rows] for name in ("lower", "p", "mu", "v", "absorbed", "bend")}
        return replace(self, **some)

    def put(self, rows: Tensor, other: Bounded) -> Bounded:
        """The bounds, replaced for some of the cells."""
        names = ("lower", "p", "mu", "v", "absorbed", "bend")
        return replace(self, **{name: getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in names})

    def step(self, index: int) -> dict[str, Any]:
        """The step of a proof that bounds one of the cells."""
        values = {"on": self.active, "v": self.v[index], "mu": self.mu[index]}
        by = "absorbed" if self.absorbed[index] else "second"
        return {"by": by} | {name: tensor.tolist() for name, tensor in values.items()}

    def loss(self) -> Tensor:
        """The loss of the bound in each coordinate: the distance of its parabola from its chord, and the remainder."""
        return self.mu.clamp_min(0.0) * (1.0 - self.v.square()).clamp_min(0.0) / 2 + self.bend


def lower_first(net: PreparedNetwork, first: First, slack: Tensor) -> Tensor:
    """`g0 - sum_d |G_d| - R`, rounded down: (boxes, forms)."""
    total = first.G.abs().sum(-1) + first.R
    return rounded_down(first.g0, total, slack, net)


def rounded_down(g0: Tensor, total: Tensor, slack: Tensor, net: PreparedNetwork) -> Tensor:
    """`g0 - total`, less all that can have been rounded in it; never NaN."""
    off = slack + (g0.abs() + total) * (4 * net.roundings * ULP)
    return torch.nan_to_num((g0 - total) - off, nan=-torch.inf)


def by_second(net: PreparedNetwork, cells: Cells, spectral: bool = True, tight: bool = False) -> tuple[Bounded, Second]:
    """The bounds of second order, each only for the cells that the one before it left open.

    1. H made diagonally dominant, the remainder subtracted as a number.
    2. The remainder absorbed into H, which is then made diagonally dominant.
    3. The same with the least multiple of that shift that a Cholesky decomposition proves to be enough; with
       `spectral` only, since it takes several times as long as the others.

    With `tight`, the last bound has smaller weights of the remainder, which the check of proofs does not know.
    """
    c, r = cells.centre()
    active = cells.moving()
    second = second_order(net, c, r, cells.w, cells.constant, active)
    best = _dominant(net, cells, second, second.H, second.R, -second.G.sign(), active, absorbed=False)
    rows = torch.nonzero(best.lower <= cells.level).squeeze(1)
    if not len(rows):
        return best, second
    cells, some, last = cells[rows], second.rows(rows), best.rows(rows)
    H, R = some.absorbed()
    last = _better(last, _dominant(net, cells, some, H, R, last.v, active, absorbed=True))
    last = replace(last, bend=(some.H - H).abs().sum(-1) / 2)
    hard = torch.nonzero(last.lower <= cells.level).squeeze(1)
    if spectral and len(hard) and len(active) > 1:
        less, H, R = some.rows(hard), H[hard], R[hard]
        if tight:
            c, r = cells[hard].centre()
            less = second_order(net, c, r, cells.w[hard], cells.constant[hard], active, loose=less)
            H, R = less.absorbed()
        found = _spectral(net, cells[hard], less, H, R, last.v[hard], active)
        last = last.put(hard, _better(last.rows(hard), found))
    return best.put(rows, last), second


def _dominant(
    net: PreparedNetwork, cells: Cells, second: Second, H: Tensor, R: Tensor, v: Tensor, active: Tensor, absorbed: bool
) -> Bounded:
    mu, rows, size = diagonally_dominant(H)
    v = descend(second.G, H, mu, rows, v, steps=2)
    return _bounded(net, cells, second, R, (H, mu, torch.zeros_like(R), v, size), active, absorbed)


def _spectral(
    net: PreparedNetwork, cells: Cells, second: Second, H: Tensor, R: Tensor, v: Tensor, active: Tensor
) -> Bounded:
    """The best of some diagonals: a semidefinite program's dual, a few steps towards its optimum.

    At the optimum the leading eigenvectors weigh each coordinate by what a unit of its shift costs, `(1 - v_d^2) / 2`;
    until then, the pattern moves from where it costs more to where it helps more.
    """
    mu, rows, size = diagonally_dominant(H)
    pattern = mu.clamp_min(0.0) + rows.mean(-1, keepdim=True) * 0.05 + 2.0**-900
    found: list[Bounded] = []
    for turn in range(PATTERNS):
        mu, deficit, mass = spectral_shift(H, pattern)
        v = descend(second.G, H, mu, rows, v, steps=12)
        last = _bounded(net, cells, second, R, (H, mu, deficit, v, size), active, absorbed=True)
        found.append(_better(found[-1], last) if found else last)
        lower = found[-1].lower
        left = lower <= cells.level
        if turn > 0:
            # Go on where at this pace an open cell could be closed in the turns that are left.
            left = left & (lower + PATTERNS * (lower - found[-2].lower) > cells.level)
        if not bool(left.any()):
            break
        cost = mu.clamp_min(0.0) * (1.0 - v.square()).clamp_min(0.0)
        cost = cost / cost.sum(-1, keepdim=True).clamp_min(2.0**-900)
        step = 0.5 / (1 + turn / 15) * (mass - cost) / (mass + cost).clamp_min(1e-12)
        pattern = pattern * torch.exp(step)
    return found[-1]


PATTERNS = 8
"""Diagonals that the spectral bound tries."""


def _bounded(
    net: PreparedNetwork,
    cells: Cells,
    second: Second,
    R: Tensor,
    shifted: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    active: Tensor,
    absorbed: bool,
) -> Bounded:
    """The bound of an expansion with what `minorant` takes of H, mu, the deficit of `H + diag(mu)`, v and H's size."""
    _, mu, _, v, _ = shifted
    base, p = minorant(second.G, *shifted)
    total = torch.nan_to_num(R - least_separable(base, p, mu), nan=torch.inf)
    off = (second.G.abs().sum(-1) + R) * (4 * net.roundings * ULP)
    lower = rounded_down(second.g0, total, cells.slack + off, net)
    return Bounded(lower, p, mu, v, active, torch.full_like(lower, absorbed, dtype=torch.bool), torch.zeros_like(p))


def _better(a: Bounded, b: Bounded) -> Bounded:
    """Row by row the better of two bounds."""
    wins = b.lower > a.lower
    rows = wins.unsqueeze(-1)
    p, mu, v = (torch.where(rows, y, x) for x, y in ((a.p, b.p), (a.mu, b.mu), (a.v, b.v)))
    absorbed = torch.where(wins, b.absorbed, a.absorbed)
    return Bounded(torch.maximum(a.lower, b.lower), p, mu, v, a.active, absorbed, a.bend)


def shrink(cells: Cells, bounded: Bounded, target: Tensor | float) -> Cells:
    r"""Cut off what cannot hold a point with `g <= target`.

    Let D = target - lower. With all other coordinates at their best, moving `u_d` by delta from the end where its
    parabola is least costs `(|p_d| + mu_d) delta - mu_d delta^2 / 2`; where that exceeds D, g exceeds the target. For
    mu_d >= 0 the cost is concave in delta, so what exceeds D at delta and at the far end, 2, does so in between.
    """
    lacking = (target - bounded.lower).unsqueeze(-1) * (1 + 2.0**-30) + 2.0**-900
    size, mu = bounded.p.abs(), bounded.mu.clamp_min(0.0)
    slope = size + mu
    root = (slope.square() - 2 * mu * lacking).clamp_min(0.0).sqrt()
    delta = (2 * lacking / (slope + root).clamp_min(2.0**-900)) * (1 + 2.0**-20)
    # Rounded down, also where the two terms nearly cancel.
    cost = (slope * delta - mu * delta.square() / 2) * (1 - 2.0**-30) - slope * delta * (8 * ULP)
    sound = (bounded.mu >= 0) & (delta < 2) & (cost > lacking) & (2 * size * (1 - 2.0**-30) > lacking) & (lacking > 0)
    lower, upper = cells.lower.clone(), cells.upper.clone()
    low, high = lower[:, bounded.active], upper[:, bounded.active]
    r = cells.centre()[1][:, bounded.active]
    width = r * delta * (1 + 2.0**-30) + (low.abs() + high.abs()) * (4 * ULP)
    lower[:, bounded.active] = torch.where(sound & (bounded.p < 0), torch.maximum(low, high - width), low)
    upper[:, bounded.active] = torch.where(sound & (bounded.p > 0), torch.minimum(high, low + width), high)
    return replace(cells, lower=lower, upper=upper)


def fix_monotone(net: PreparedNetwork, cells: Cells) -> Cells:
    """The cells without the coordinates along which their forms rise or fall everywhere, as first order shows it.

    Along those the least value is at an end, at which they are fixed. `monotone` sees more of them, and takes longer.
    """
    c, r = cells.centre()
    slope, away = slopes_over(net, c, r, cells.w)
    away = away * (1 + 4 * net.roundings * ULP) + (net.degree * cells.slack).unsqueeze(-1)
    lower = torch.where(slope < -away, cells.upper, cells.lower)
    return replace(cells, lower=lower, upper=torch.where(slope > away, cells.lower, cells.upper))


def monotone(net: PreparedNetwork, cells: Cells, second: Second) -> Tensor:
    """Where the form rises (1) or falls (-1) along a coordinate all over the cell; 0 elsewhere: (N, n).

    `dg/du_d` lies within `G_d +- (sum_e |H_de| + rest_d)`, and float64 is off by less than `degree * slack`: the
    derivative of P by `x_d`, times `x_d`, is at most k times P.
    """
    _, rows, _ = diagonally_dominant(second.H)
    off = (net.degree * cells.slack).unsqueeze(-1)
    away = (rows + second.rest) * (1 + 4 * net.roundings * ULP) + off
    return torch.where(second.G.abs() > away, second.G.sign(), 0.0)
