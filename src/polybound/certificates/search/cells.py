"""Whether a box holds a point whose outputs are in a union of polytopes, for networks that are no chain.

Cells of the box are excluded by the bounds of `graph_ranges`: in every polytope one row, or the sum of all, is positive
all over them. The others are cut in two, where the rows move most. Points at which the bounds' gradient steps saw the
least values, and centres, are judged by intervals, and where those touch zero in fractions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from math import inf

import torch
from torch import Tensor

from polybound.certificates.bounds.graphs import GraphBoxes, interval_bounds
from polybound.certificates.graphs import GraphMargins, PreparedGraph, Step, graph_ranges
from polybound.certificates.input_sets import Balls, InputSet, input_set
from polybound.models import Applied, Fractions

Rows = tuple[Tensor, Tensor]
"""The outputs f with `weights f + constant <= 0` in every row."""

BRANCHED = 32
"""Boxes are cut in cells where up to this many inputs move."""

_AT_ONCE = 32
_JUDGED = 8
_EXACT = 2**18
"""Cells that are bounded together, points of them that are judged, and the entries of all maps up to which that is done
in rational arithmetic."""


def find_unsafe(
    net: PreparedGraph,
    lower: Tensor,
    upper: Tensor,
    polytopes: Sequence[Rows],
    deadline: float,
    most: float = inf,
    tree: Step | None = None,
) -> tuple[tuple[Tensor, int] | None, bool]:
    """A point of the box and the number of the polytope that its outputs are in; and whether anything is left open.

    Args:
        net: the network.
        lower: the lower side of the box, (1, features).
        upper: the upper side.
        polytopes: each with at least one row.
        deadline: on the clock of `time.perf_counter`; the whole box is looked at in any case.
        most: cells that are cut in two at most.
        tree: where it is written how the box was cut, and what excludes each polytope of one row from each cell.
    """
    # Of several rows, the sum as well: where it is positive, one of them is.
    wider = [(torch.cat([a, a.sum(0, keepdim=True)]), torch.cat([b, b.sum(0, keepdim=True)])) for a, b in polytopes]
    rows = [pair if len(pair[0]) == 1 else more for pair, more in zip(polytopes, wider, strict=True)]
    weights, constants = (torch.cat(parts) for parts in zip(*rows, strict=True))
    of = torch.tensor([k for k, (a, _) in enumerate(rows) for _ in range(len(a))])
    cells, first = [(lower, upper, {} if tree is None else tree)], True
    while cells:
        if not first and (time.perf_counter() > deadline or most <= 0):
            return None, True
        some, cells = cells[-_AT_ONCE:], cells[:-_AT_ONCE]
        low, high = (torch.cat(sides) for sides in zip(*((low, high) for low, high, _ in some), strict=True))
        inputs = input_set(net, None, None, (low, high), None)
        steps: dict[tuple[int, int], Step] | None = None if tree is None else {}
        bound, _, where = graph_ranges(net, inputs, weights, constants, "auto" if first else "crown", steps)
        for (cell, row), step in (steps or {}).items():
            if bound[cell, row] > 0:
                some[cell][2][str(row)] = step
        open_ = torch.stack([(bound[:, of == k] <= 0).all(1) for k in range(len(polytopes))], 1)
        points = torch.cat([where, inputs.x.unsqueeze(1)], 1)
        for k, pair in enumerate(polytopes):
            found = _unsafe_point(net, points[open_[:, k]].flatten(0, 1), pair)
            if found is not None:
                return (found, k), False
        for cell in open_.any(1).nonzero().flatten().tolist():
            halves = _halves(net, low[cell], high[cell], weights)
            if halves is None:  # one point, whose outputs are too close to tell
                return None, True
            place, low_side, high_side = halves
            node: Step = {"split": [place, float(high_side[0][0, place])], "low": {}, "high": {}}
            some[cell][2].update(node)
            cells += [(*low_side, node["low"]), (*high_side, node["high"])]
            most -= 1
        first = False
    return None, False


def branch(
    net: PreparedGraph, inputs: InputSet, labels: Tensor, found: GraphMargins, budget: float, most: float
) -> None:
    """Branch and bound of the images that are open and in whose boxes few inputs move, one after another.

    Args:
        net: the network.
        inputs: boxes; balls are left as they are.
        labels: of the images.
        found: what the stages before found, and where the rest goes.
        budget: seconds for each image.
        most: cells that are cut in two for each image at most.
    """
    if isinstance(inputs, Balls) or budget <= 0 or most <= 0:
        return
    few = (inputs.outer[1] > inputs.outer[0]).sum(1) <= BRANCHED
    for image in (few & (found.bound <= 0).any(1)).nonzero().flatten().tolist():
        if image in found.counterexample:
            continue
        begun, label = time.perf_counter(), int(labels[image])
        rivals = (found.bound[image] <= 0).nonzero().flatten()
        forms = torch.eye(net.classes, dtype=torch.float64)
        rows = [((forms[label] - forms[rival]).unsqueeze(0), forms.new_zeros(1)) for rival in rivals.tolist()]
        lower, upper = (side[image : image + 1] for side in inputs.outer)
        tree: Step | None = None if found.proofs is None else {}
        point, open_ = find_unsafe(net, lower, upper, rows, begun + budget, most, tree)
        if point is not None:
            x = inputs.inside(torch.tensor([image]), point[0].unsqueeze(0))[0]
            if meets(net, x, rows[point[1]]):
                found.counterexample[image] = x, int(rivals[point[1]])
        elif not open_:  # every cell has a bound above zero, and so one of the least positive number
            found.bound[image, rivals] = 5e-324
            if found.proofs is not None and tree is not None:
                found.proofs.update({(image, int(rival)): _tree_of(tree, row) for row, rival in enumerate(rivals)})
        if not open_ and (point is None or image in found.counterexample):
            found.stage[image] = "branch"
        taken = time.perf_counter() - begun
        found.spent[image] += taken
        found.cost["branch"] = found.cost.get("branch", 0.0) + taken


def _tree_of(cell: Step, row: int) -> Step:
    """The proof of one of the rows over a cell."""
    # No recursion: a tree may be deep.
    root: Step = {}
    stack = [(cell, root)]
    while stack:
        cell, made = stack.pop()
        if str(row) in cell:
            made.update(cell[str(row)])
        else:
            made.update(split=cell["split"], low={}, high={})
            stack += [(cell[side], made[side]) for side in ("low", "high")]
    return root


def _unsafe_point(net: PreparedGraph, points: Tensor, rows: Rows) -> Tensor | None:
    """One of some points whose outputs provably meet all conditions."""
    if not len(points):
        return None
    values = net.graph(points) @ rows[0].T + rows[1]
    largest = values.amax(1)
    near = largest <= 1e-9 * (1.0 + values.abs().amax(1))
    for place in largest.argsort()[:_JUDGED].tolist():
        if near[place] and meets(net, points[place], rows):
            return points[place]
    return None


def meets(net: PreparedGraph, point: Tensor, rows: Rows) -> bool:
    """Whether the network's outputs at a point provably meet all conditions."""
    weights, constants = rows
    x = point.reshape(1, -1)
    boxes = GraphBoxes.over(net.graph, x, x).of(torch.zeros(len(weights), dtype=torch.long))
    highest = torch.nextafter(constants - interval_bounds(boxes, -weights), torch.full_like(constants, torch.inf))
    if bool((highest <= 0).all()):
        return True
    lowest = torch.nextafter(constants + interval_bounds(boxes, weights), torch.full_like(constants, -torch.inf))
    entries = sum(node.map.inputs * node.map.outputs for node in net.graph.nodes if isinstance(node, Applied))
    if bool((lowest > 0).any()) or entries > _EXACT:
        return False
    logits = net.graph.evaluate(Fractions(), [Fraction(value) for value in point.reshape(-1).tolist()])
    return all(
        sum((Fraction(w) * y for w, y in zip(row, logits, strict=True)), Fraction(constant)) <= 0
        for row, constant in zip(weights.tolist(), constants.tolist(), strict=True)
    )


def _halves(
    net: PreparedGraph, lower: Tensor, upper: Tensor, weights: Tensor
) -> tuple[int, tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """The input that moves the rows most, and the cell cut in two there; None where no float lies between its sides."""
    middle = lower + (upper - lower) / 2
    free = (lower < middle) & (middle < upper)
    if not bool(free.any()):
        return None
    with torch.enable_grad():
        leaf = middle.unsqueeze(0).requires_grad_()
        slopes = [torch.autograd.grad((net.graph(leaf) @ row).sum(), leaf)[0] for row in weights[:8]]
    moves = torch.cat(slopes).abs().nan_to_num(0.0, 0.0, 0.0).amax(0) * (upper - lower)
    moves = moves + 1e-9 * (upper - lower) * (1 + moves.amax())
    place = int(torch.where(free, moves, -1.0).argmax())
    one, other = upper.clone(), lower.clone()
    one[place] = other[place] = middle[place]
    return place, (lower.unsqueeze(0), one.unsqueeze(0)), (other.unsqueeze(0), upper.unsqueeze(0))
