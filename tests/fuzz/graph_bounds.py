"""Bounds of random graphs against rational arithmetic, each by itself: no attack comes before them.

    python tests/fuzz/graph_bounds.py --count 10000 --seed 7

A case is a graph of products, sums, convolutions, poolings and selections with weights of float32 or float64, scaled
by powers of ten from 1e-30 to 1e30; an input; a box, or an l_2 ball cut by a domain or not; and a form of the outputs.
Every bound (intervals, planes backwards, the best planes, generators, the joint bounds of the last and of all layers,
and the semidefinite one) must be finite or -inf, and not above the form at corners or random points, and where the
joint bounds are least, in fractions. The diagonals of the joint bounds must make their terms convex, which points do
not show. A third of the cases merge generators into the slack; half of them have generators in float32; and maps are
merged, or written out as sparse matrices, or applied to all generators.
"""

import json
import math
import random
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.campaigns import asked, numbers
from helpers.graphs import F64, random_graph
from polybound.certificates.bounds import zonotopes as zonotopes_module
from polybound.certificates.bounds.graphs import GraphBoxes, backward_bounds, interval_bounds, optimised_bounds
from polybound.certificates.bounds.joint import Backward, last_products, layered, semidefinite
from polybound.certificates.bounds.zonotopes import Maps, walked_in
from polybound.certificates.input_sets import input_set
from polybound.models import Fractions

torch.set_num_threads(1)


class Network:
    """What the checks of inputs ask for."""

    def __init__(self, graph):
        self.shape, self.features, self.classes = graph.shape, graph.features, graph.classes

    def takes(self, shape):
        return tuple(shape) in (tuple(self.shape), (self.features,))


BOXES = 6
"""Boxes or balls of every graph; each with a form of its own is a case."""


def bounds_of(graph, inputs, forms, most, dtype):
    """Every bound of the forms, one for each set, and points of the sets where bounds are least."""
    rows = torch.arange(len(forms))
    boxes = GraphBoxes.over(graph, *inputs.outer)
    ball = (inputs.x, inputs.r, inputs.limits(rows)) if inputs.norm == "2" else None
    zonotopes = walked_in(dtype, boxes, most, Maps(graph), ball)
    backward, last = Backward.over(zonotopes, rows, forms), last_products(graph)
    found = {
        "interval": interval_bounds(boxes, forms),
        "backward": backward_bounds(boxes, forms, ball=ball),
        "alpha": optimised_bounds(boxes, forms, 1, ball)[0].detach(),
        "generators": backward.expansion(rows, [False] * len(last)).bound,
        "backward on zonotopes": backward_bounds(zonotopes.boxes, forms, ball=ball),
    }
    for name in ("last", "layers", "semidefinite"):
        found[name] = torch.full_like(forms[:, 0], -math.inf)
    x = inputs.x.clone()
    for row in range(len(forms)):
        if not all(last):
            found["last"][row] = layered(backward.expansion(rows[row : row + 1], last), steps=2)[0]
        given = backward.expansion(rows[row : row + 1], [True] * len(last))
        found["layers"][row], d, touch = layered(given, steps=2)
        if lacks(given, d):
            found["layers"][row] = math.nan
        x[row, zonotopes.inputs.index] += zonotopes.inputs.values[row] * touch[0, : given.inputs]
        if row < 2:
            found["semidefinite"][row] = semidefinite(given, d, touch, steps=2, enough=-math.inf)[0]
    return found, inputs.inside(rows, x)


def lacks(given, d):
    """Whether the terms with the diagonal are not convex, by far more than rounding: corners would hardly notice."""
    count = d.shape[1]
    whole = torch.zeros(count, count, dtype=F64)
    for layer in given.layers:
        n = len(layer.A)
        whole[:n, :n] += (layer.A * layer.g[0]) @ layer.B.T
    whole = (whole + whole.T) / 2 + torch.diag(d[0])
    size = float(whole.abs().max())
    if not 0 < size < math.inf:
        return False
    return float(torch.linalg.eigvalsh(whole / size)[0]) < -1e-9


def case(number, pick, generator):
    """The cases of one graph: what was found wrong, which bounds were finite, and the norm."""
    dtype = pick([torch.float32, F64])
    graph = random_graph(pick, most=10, dtype=dtype, degree=16).double()
    scale = 10.0 ** pick([-30, -15, -6, -2, 2, 6, 15, 30]) if pick(range(2)) else 1.0
    share = pick([1.0, 0.3])

    def scaled(t):
        return t * scale if t.is_floating_point() and random.Random(t.numel() + number).random() < share else t

    graph = graph.transform(scaled)
    size = 10.0 ** pick([-3, 0, 0, 0, 2])
    x = size * (2 * torch.rand(BOXES, graph.features, generator=generator, dtype=F64) - 1)
    radii = [pick([0.0, 1e-15, 1e-9, 1e-3, 0.03, 0.3, 1.0]) for _ in range(BOXES)]
    eps = size * torch.tensor(radii, dtype=F64)
    if pick(range(3)) == 0:  # some entries stay as they are
        moving = (torch.rand(BOXES, graph.features, generator=generator) < 0.5).to(F64)
        eps = (eps.unsqueeze(1) * moving).reshape(BOXES, *graph.shape)
    norm = pick(["inf", "2"])
    inputs = input_set(Network(graph), x.reshape(BOXES, *graph.shape), eps, None, pick([None, (-size, size)]), norm)
    forms = torch.randn(BOXES, graph.classes, generator=generator, dtype=F64)
    most, dtype = pick([10**6, 10**6, pick(range(1, 12))]), pick([torch.float32, F64])
    zonotopes_module._MATRIX, zonotopes_module._SPARSE = pick([(2**24, 0.1), (2**24, 1.0), (0, 0.1)])
    found, least = bounds_of(graph, inputs, forms, most, dtype)
    rows = torch.arange(BOXES)
    if norm == "inf":
        u = torch.randint(0, 3, x.shape, generator=generator).to(F64) - 1
        far = x + (inputs.outer[1] - inputs.outer[0]) * u
    else:
        u = torch.randn(x.shape, generator=generator, dtype=F64)
        far = inputs.point(rows, u / u.norm(dim=1, keepdim=True).clamp_min(1e-300))
    wrong = []
    for points in (least, inputs.inside(rows, far)):
        for row, (point, form) in enumerate(zip(points.tolist(), forms.tolist(), strict=True)):
            values = graph.evaluate(Fractions(), [Fraction(v) for v in point])
            exact = sum(Fraction(w) * value for w, value in zip(form, values, strict=True))
            for name, bound in found.items():
                value = float(bound[row])
                if math.isnan(value) or value == math.inf or (value > -math.inf and Fraction(value) > exact):
                    wrong.append((name, row, value))
    finite = Counter({name: int(torch.isfinite(bound).sum()) for name, bound in found.items()})
    return wrong, finite, norm


def main():
    given = asked(__doc__)
    finite, kinds, wrong = Counter(), Counter(), 0
    for number in numbers(-(-given.count // BOXES), given.seconds):
        rng = random.Random(given.seed * 10**9 + number)
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        found, fine, norm = case(number, rng.choice, generator)
        finite.update(fine)
        kinds[norm] += BOXES
        if found:
            wrong += len({row for _, row, _ in found})
            print(f"graph {number} of seed {given.seed}: {sorted(set(found))[:4]}", flush=True)
        if (number + 1) % 200 == 0:
            print(f"{sum(kinds.values())} cases, {wrong} wrong", flush=True)
    report = {"cases": sum(kinds.values()), "kinds": kinds, "finite": finite, "wrong": wrong}
    print(json.dumps(report), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
