"""Claims bounded by the baselines: one relaxation of the whole box, no search."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from polybound.certificates.balls import Balls
from polybound.certificates.baselines import (
    crown_bound,
    interval_bound,
    lipschitz_bound,
    lipschitz_in_ball,
    zonotope_bound,
)
from polybound.certificates.boxes import centre
from polybound.certificates.forms import Forms
from polybound.certificates.inputs import Boxes
from polybound.certificates.ledger import Ledger
from polybound.certificates.regions import length

__all__ = ["relax"]

_RELAXATIONS = {
    "crown": crown_bound,
    "zonotope": zonotope_bound,
    "interval": interval_bound,
    "lipschitz": lipschitz_bound,
}
_CHUNK = 32
_ENTRIES = 2**24  # of the rows that a linear relaxation sends back through the network, one for each unit


def relax(
    forms: Forms,
    boxes: Boxes,
    ledger: Ledger,
    method: str,
    on_progress: Callable[[int], None] | None = None,
    balls: Balls | None = None,
) -> None:
    """Bound all forms by one of the baselines, and enter the bounds as those of first order.

    Over balls, if there are any, by the Lipschitz constant.
    """
    net = forms.net
    units = max(A.outputs for A in net.A)
    chunk = max(1, min(_CHUNK, _ENTRIES // units**2))
    for start in range(0, len(boxes.x), chunk):
        begun = time.perf_counter()
        images = torch.arange(start, min(start + chunk, len(boxes.x)))
        x, lower, upper = (t[images] for t in (boxes.x, *boxes.outer))
        block = forms.block(images, net.slack(torch.maximum(lower.abs(), upper.abs())))
        if balls is None:
            bound = _RELAXATIONS[method](net, *centre(lower, upper), block.w, block.constant, block.slack)
        else:
            far = length(torch.maximum(lower.abs(), upper.abs()))
            bound = lipschitz_in_ball(net, x, balls.r[images], far, block.w, block.constant, block.slack)
        ledger.see_inputs(images, x, forms.values(images, net(x)), block.slack)
        ledger.first(images, torch.where(block.asked, bound, torch.inf))
        ledger.charge(method, images, begun)
        if on_progress is not None:
            on_progress(int(images[-1]) + 1)
