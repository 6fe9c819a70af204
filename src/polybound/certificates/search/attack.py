"""Points with a small form: projected steps, and the exact confirmation of what they find."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.certificates.forms import Cells, Forms
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.proofs.exact import exact_forms
from polybound.theory import ULP

__all__ = ["Members", "confirm", "descend", "enclosed", "value_and_gradient"]


_STEPS = (2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.12, 0.12, 0.06, 0.06, 0.03)

Members = tuple[Tensor, Tensor]
"""Several forms for each cell, w (N, forms, units) and constant (N, forms)."""


def value_and_gradient(
    net: PreparedNetwork, x: Tensor, cells: Cells, members: Members | None, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Each cell's form (the largest of its members, if there are any) at a point of its own, and its gradient."""
    h = [A(x) for A in net.A]
    q = [net.s1.expand(len(x), -1)]
    for n in range(1, net.degree):
        q.append(net.between(h[n - 1] * q[n - 1], n))
    last = h[-1] * q[-1]
    if members is None:
        w, value = cells.w, (cells.w * last).sum(-1) + cells.constant
    else:
        value, which = ((members[0] @ last.unsqueeze(-1)).squeeze(-1) + members[1]).max(-1)
        w = members[0][torch.arange(len(x)), which]
    slope = torch.zeros_like(x)
    if gradient:
        lam = w
        for n in reversed(range(net.degree)):
            slope = slope + net.A[n].adjoint(lam * q[n])
            if n > 0:
                lam = net.back(lam * h[n], n)
    return value, slope


def descend(
    net: PreparedNetwork, cells: Cells, start: Tensor, members: Members | None, steps: tuple[float, ...] = _STEPS
) -> tuple[Tensor, Tensor]:
    """Signed gradient steps within each cell from given points: the least form seen, (N,), and where.

    The first steps are as long as the box is wide: they go from corner to corner, where a nearly linear form has its
    least value. Of several members, the largest counts.
    """
    radius = (cells.upper - cells.lower) / 2
    x, best, where = start, torch.full((len(cells),), torch.inf, dtype=torch.float64), start
    for step in (*steps, 0.0):
        value, slope = value_and_gradient(net, x, cells, members, gradient=step > 0.0)
        better = value < best
        best = torch.where(better, value, best)
        where = torch.where(better.unsqueeze(-1), x, where)
        x = torch.minimum(torch.maximum(x - step * radius * slope.sign(), cells.lower), cells.upper)
    return best, where


def enclosed(net: PreparedNetwork, a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The forms `a f(x) + b` in float64, and how far they can be off, (points, forms) both.

    Args:
        net: the network.
        a: (forms, classes).
        b: (forms,).
        x: (points, features).
    """
    logits, slack = net(x), net.slack(x.abs())
    sizes = logits.abs() @ a.T.abs() + b.abs()
    off = slack @ a.T.abs() + sizes * ((net.classes + 4) * ULP) + 2.0**-1000
    return logits @ a.T + b, torch.nan_to_num(off, nan=torch.inf, posinf=torch.inf)


def confirm(forms: Forms, image: int, claim: int, x: Tensor) -> bool:
    """Whether all forms of a claim are at most zero, of the real polynomial at the float64 point x, (features,)."""
    a, b = forms.coefficients(image, claim)
    value, off = enclosed(forms.net, a, b, x.unsqueeze(0))
    if bool((value < -off).all()):
        return True
    if bool((value > off).any()):
        return False
    return all(exact <= 0 for exact in exact_forms(forms.net.factors, x, a, b))
