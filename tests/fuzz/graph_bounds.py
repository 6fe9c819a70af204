"""Bounds of random graphs against rational arithmetic, each by itself: no attack comes before them.

    python tests/fuzz/graph_bounds.py --count 10000 --seed 7

A case is a graph of products, sums, convolutions, poolings and selections with weights of float32 or float64, scaled
by powers of ten from 1e-30 to 1e30; an input; a box, or an l_2 ball cut by a domain or not; and some forms of the
outputs. Every bound (intervals, planes backwards, the best planes, generators, the joint bounds of the last and of all
layers, and the semidefinite one) must be finite or -inf, and not above the form at the input, at corners or random
points, and where the joint bounds are least, in fractions. A third of the cases merge generators into the slack.
"""

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.graphs import F64, random_graph
from polybound.certificates.bounds.graphs import GraphBoxes, backward_bounds, interval_bounds, optimised_bounds
from polybound.certificates.bounds.joint import expansion, last_products, layered, semidefinite
from polybound.certificates.bounds.zonotopes import generator_bounds, walked
from polybound.certificates.input_sets import input_set
from polybound.models import Fractions

torch.set_num_threads(1)


class Network:
    """What the checks of inputs ask for."""

    def __init__(self, graph):
        self.shape, self.features, self.classes = graph.shape, graph.features, graph.classes

    def takes(self, shape):
        return tuple(shape) in (tuple(self.shape), (self.features,))


def bounds_of(graph, inputs, forms, most):
    """Every bound of the forms at the one input, and points of the set where bounds are least."""
    rows = torch.zeros(len(forms), dtype=torch.long)
    boxes = GraphBoxes.over(graph, *inputs.outer)
    first = torch.zeros(1, dtype=torch.long)
    ball = (inputs.x, inputs.r, inputs.limits(first)) if inputs.norm == "2" else None
    balls = (inputs.x[rows], inputs.r[rows], inputs.limits(rows)) if inputs.norm == "2" else None
    many = boxes.of(rows)
    found = {
        "interval": interval_bounds(many, forms),
        "backward": backward_bounds(many, forms, ball=balls),
        "alpha": optimised_bounds(many, forms, 2, balls),
    }
    zonotopes = walked(boxes, most, {}, ball)
    found["generators"] = generator_bounds(zonotopes, rows, forms)
    found["alpha on zonotopes"] = optimised_bounds(zonotopes.boxes.of(rows), forms, 1, balls)
    last = last_products(graph)
    points = list(inputs.x)
    for name, joint in (("last", last), ("layers", [True] * len(last))):
        given = expansion(zonotopes, 0, forms, joint)
        found[name], d, touch = layered(given, steps=3)
        x = inputs.x.repeat(len(forms), 1)
        x[:, zonotopes.inputs.index] += zonotopes.inputs.values * touch[:, : given.inputs]
    points += list(inputs.inside(rows, x))
    row = rows[:1]
    found["semidefinite"] = torch.full((len(forms),), -math.inf, dtype=F64)
    found["semidefinite"][0] = semidefinite(given.rows(row), d[row], touch[row], turns=2, steps=3)
    return found, points


def case(number, pick, generator):
    """One case: what was found wrong, and what the case is."""
    dtype = pick([torch.float32, F64])
    graph = random_graph(pick, most=10, dtype=dtype, degree=16).double()
    scale = 10.0 ** pick([-30, -15, -6, -2, 2, 6, 15, 30]) if pick(range(2)) else 1.0
    share = pick([1.0, 0.3])

    def scaled(t):
        return t * scale if t.is_floating_point() and random.Random(t.numel() + number).random() < share else t

    graph = graph.transform(scaled)
    size = 10.0 ** pick([-3, 0, 0, 0, 2])
    x = size * (2 * torch.rand(1, graph.features, generator=generator, dtype=F64) - 1)
    radius = size * pick([0.0, 1e-15, 1e-9, 1e-3, 0.03, 0.3, 1.0])
    if pick(range(3)) == 0:  # some entries stay as they are
        moving = (torch.rand(1, graph.features, generator=generator) < 0.5).to(F64)
        eps = radius * moving.reshape(1, *graph.shape)
    else:
        eps = radius
    norm = pick(["inf", "2"])
    inputs = input_set(Network(graph), x.reshape(1, *graph.shape), eps, None, pick([None, (-size, size)]), norm)
    forms = torch.randn(2, graph.classes, generator=generator, dtype=F64)
    most = pick([10**6, 10**6, pick(range(1, 12))])
    found, points = bounds_of(graph, inputs, forms, most)
    first = torch.zeros(1, dtype=torch.long)
    for _ in range(2):
        if norm == "inf":
            u = torch.randint(0, 3, x.shape, generator=generator).to(F64) - 1
            far = x + (inputs.outer[1] - inputs.outer[0]) * u
        else:
            u = torch.randn(x.shape, generator=generator, dtype=F64)
            far = inputs.point(first, u / u.norm().clamp_min(1e-300))
        points.append(inputs.inside(first, far)[0])
    wrong = []
    for point in points:
        values = graph.evaluate(Fractions(), [Fraction(v) for v in point.tolist()])
        for row, form in enumerate(forms.tolist()):
            exact = sum(Fraction(w) * value for w, value in zip(form, values, strict=True))
            for name, bound in found.items():
                value = float(bound[row])
                if math.isnan(value) or value == math.inf or (value > -math.inf and Fraction(value) > exact):
                    wrong.append((name, value))
    finite = Counter(name for name, bound in found.items() if bool(torch.isfinite(bound[0])))
    return wrong, finite, norm


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, finite, kinds, wrong = time.monotonic() + given.seconds, Counter(), Counter(), 0
    for number in range(given.count):
        rng = random.Random(given.seed * 10**9 + number)
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        found, fine, norm = case(number, rng.choice, generator)
        finite.update(fine)
        kinds[norm] += 1
        if found:
            wrong += 1
            print(f"case {number} of seed {given.seed}: {sorted(set(found))[:4]}", flush=True)
        if (number + 1) % 1000 == 0:
            print(f"{number + 1} cases, {wrong} wrong", flush=True)
        if time.monotonic() > end:
            break
    report = {"cases": sum(kinds.values()), "kinds": kinds, "finite": finite, "wrong": wrong}
    print(json.dumps(report), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
