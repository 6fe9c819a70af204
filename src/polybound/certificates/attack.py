"""Counterexamples: projected steps on the margin, and their exact confirmation."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.certificates.cells import Cells
from polybound.certificates.exact import exact_margin
from polybound.certificates.network import Network

__all__ = ["confirm", "descend_margin", "margins"]

_STEPS = (2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.12, 0.12, 0.06, 0.06, 0.03)


def margins(net: Network, x: Tensor, cells: Cells) -> Tensor:
    """The margin of each cell at a point of its own, in float64: (N,)."""
    return _value_and_gradient(net, x, cells, gradient=False)[0]


def _value_and_gradient(net: Network, x: Tensor, cells: Cells, gradient: bool = True) -> tuple[Tensor, Tensor]:
    h = [x @ At + b for At, b in zip(net.At, net.b, strict=True)]
    q = [net.s1.expand(len(x), -1)]
    for n in range(1, net.degree):
        q.append(net.between(h[n - 1] * q[n - 1], n))
    value = (cells.w * h[-1] * q[-1]).sum(-1) + cells.constant
    slope = torch.zeros_like(x)
    if gradient:
        lam = cells.w
        for n in reversed(range(net.degree)):
            slope = slope + (lam * q[n]) @ net.At[n].T
            if n > 0:
                lam = net.back(lam * h[n], n)
    return value, slope


def descend_margin(
    net: Network, cells: Cells, start: Tensor, steps: tuple[float, ...] = _STEPS
) -> tuple[Tensor, Tensor]:
    """Signed gradient steps within each cell from given points: the least margin seen, (N,), and where.

    The first steps are as long as the box is wide: they go from corner to corner, where a nearly linear margin has
    its least value.
    """
    radius = (cells.upper - cells.lower) / 2
    x, best, where = start, torch.full((len(cells),), torch.inf, dtype=torch.float64), start
    for step in (*steps, 0.0):
        value, slope = _value_and_gradient(net, x, cells, gradient=step > 0.0)
        better = value < best
        best = torch.where(better, value, best)
        where = torch.where(better.unsqueeze(-1), x, where)
        x = torch.minimum(torch.maximum(x - step * radius * slope.sign(), cells.lower), cells.upper)
    return best, where


def confirm(net: Network, x: Tensor, label: int, rival: int) -> bool:
    """Whether `f_label(x) <= f_rival(x)`, of the real polynomial at the float64 point x, (features,)."""
    logits = net(x.unsqueeze(0))[0]
    slack = net.slack(x.abs().unsqueeze(0))[0]
    margin, off = float(logits[label] - logits[rival]), 2 * float(slack[label] + slack[rival])
    if abs(margin) > off:
        return margin < 0
    return exact_margin(net.factors, x, label, rival) <= 0
