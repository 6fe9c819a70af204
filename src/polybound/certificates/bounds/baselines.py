"""Bounds to compare with: a global Lipschitz constant, intervals and linear relaxations of the products.

Each returns proven lower bounds of the margins `w.y_k + constant` over boxes `x = c + r * u`, (boxes, rivals), less
`PreparedNetwork.slack` and what the last subtraction rounds. They form the same sums of products as the expansion
does, of terms that are never larger than those of the network in absolute values, so that the same slack covers them.
"""

from __future__ import annotations

import time
from math import inf, sqrt

import torch
from torch import Tensor

from polybound.certificates.bounds.graphs import GraphBoxes, backward_bounds, interval_bounds
from polybound.certificates.bounds.slopes import length
from polybound.certificates.input_sets import Balls, centre
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.boxes import Progress
from polybound.certificates.search.proof_state import ProofState
from polybound.models import Bounded, Graph, Product
from polybound.theory import ULP, lipschitz


def _down(net: PreparedNetwork, value: Tensor, size: Tensor, slack: Tensor) -> Tensor:
    return torch.nan_to_num(value - slack - size * (4 * net.roundings * ULP), nan=-torch.inf)


def lipschitz_bound(
    net: PreparedNetwork, x: Tensor, r: Tensor, far: Tensor, w: Tensor, constant: Tensor, slack: Tensor, norm: str
) -> Tensor:
    """The margin at x less the Lipschitz constant (row-wise) of a margin times the largest radius.

    Args:
        net: the network.
        x: centres, (sets, features).
        r: radii, (sets, features).
        far: upper bounds of the norms of the sets' points.
        w: (sets, rivals, units).
        constant: (sets, rivals).
        slack: as `PreparedNetwork` gives it.
        norm: of the sets, "inf" or "2".
    """
    value = lipschitz(net.factors, inf if norm == "inf" else 2, method="rowwise", radius=float(far.max())).value
    margin = (w * net.last_product(x).unsqueeze(1)).sum(-1) + constant
    # A margin is a difference of two outputs.
    away = (2 if norm == "inf" else sqrt(2)) * torch.as_tensor(value, dtype=torch.float64) * r.amax(-1, keepdim=True)
    return _down(net, margin - away, margin.abs() + away, slack)


def graph_bound(
    net: PreparedNetwork, lower: Tensor, upper: Tensor, w: Tensor, constant: Tensor, slack: Tensor, planes: bool
) -> Tensor:
    """Intervals of the products, merged with the last rows; or planes through the products, backwards.

    Of the two planes below each product and their mean, the one that serves a rival best is taken for all products. The
    ranges of the factors in between come from the same planes, unit by unit.
    """
    boxes = GraphBoxes.over(net.products, lower, upper)
    boxes = _tightened(boxes) if planes else boxes
    images, rivals = w.shape[:2]
    bound = _best_planes if planes else interval_bounds
    rows = boxes.of(torch.arange(images).repeat_interleave(rivals))
    value = bound(rows, w.reshape(images * rivals, -1)).reshape(images, rivals) + constant
    return _down(net, value, value.abs(), slack * (3.0**net.degree if planes else 1.0))


def _best_planes(boxes: GraphBoxes, forms: Tensor) -> Tensor:
    return torch.stack([backward_bounds(boxes, forms, share) for share in (0.5, 0.0, 1.0)]).amax(0)


def _tightened(boxes: GraphBoxes) -> GraphBoxes:
    """The boxes, tighter for all that is a product, or a map of one, and is multiplied again."""
    graph, images = boxes.graph, len(boxes.values[0].lower)
    values, inner = list(boxes.values), set[int]()
    for number, node in enumerate(graph.nodes):
        if isinstance(node, Product) or inner.intersection(node.sources):
            inner.add(number)
        if number not in inner or not any(isinstance(graph.nodes[use], Product) for use in graph.uses[number]):
            continue
        end = number + 1
        here = GraphBoxes(Graph(graph.nodes[:end], number), tuple(values[:end]), boxes.sizes[:end])
        eye = torch.eye(graph.sizes[number], dtype=torch.float64)
        ends = []
        for some in torch.split(eye, max(1, _ENTRIES // (images * sum(graph.sizes)))):
            rows, forms = here.of(torch.arange(images).repeat_interleave(len(some))), some.repeat(images, 1)
            ends.append([sign * _best_planes(rows, sign * forms).reshape(images, -1) for sign in (1.0, -1.0)])
        low, high = (torch.cat(parts, 1) for parts in zip(*ends, strict=True))
        values[number] = Bounded(torch.maximum(low, values[number].lower), torch.minimum(high, values[number].upper))
    return GraphBoxes(graph, tuple(values), boxes.sizes)


_ENTRIES = 2**24
"""Numbers that the boxes of a block of units may have."""


def relax(state: ProofState, method: str, on_progress: Progress | None = None) -> None:
    """Bound all forms by one of the baselines, without a search, and enter the bounds as those of first order.

    Over balls, that is the Lipschitz constant.
    """
    forms, inputs, net = state.forms, state.inputs, state.forms.net
    for start in range(0, len(inputs), 32):
        begun = time.perf_counter()
        images = torch.arange(start, min(start + 32, len(inputs)))
        x, (lower, upper) = inputs.x[images], (side[images] for side in inputs.outer)
        corner = torch.maximum(lower.abs(), upper.abs())
        block = forms.of_images(images, net.slack(corner))
        c, r = centre(lower, upper)
        about = block.w, block.constant, block.slack
        if method == "lipschitz" and isinstance(inputs, Balls):
            bound = lipschitz_bound(net, x, inputs.r[images], length(corner), *about, "2")
        elif method == "lipschitz":
            bound = lipschitz_bound(net, c, r, (c.abs() + r) * (1 + 4 * ULP), *about, "inf")
        else:
            bound = graph_bound(net, lower, upper, *about, planes=method == "crown")
        state.see_inputs(images, x, forms.values(images, net(x)), block.slack)
        state.first(images, torch.where(block.asked, bound, torch.inf))
        state.charge(method, images, begun)
        if on_progress is not None:
            on_progress(int(images[-1]) + 1, len(inputs), "")
