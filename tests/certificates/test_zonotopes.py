"""Zonotopes and joint bounds of graphs: judged in fractions, and against what they are said to be tighter than."""

import math
from fractions import Fraction
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.graphs import F64, graphs
from polybound.certificates.bounds import zonotopes
from polybound.certificates.bounds.graphs import (
    GraphBoxes,
    backward_bounds,
    interval_bounds,
    nearest_planes,
    optimised_bounds,
)
from polybound.certificates.bounds.joint import Backward, last_products, layered, semidefinite
from polybound.certificates.bounds.zonotopes import Maps, walked, walked_in
from polybound.models import Builder, Conv, Dense, Fractions, Product


def point_of(x, radius, norm, generator):
    """A point of the box or ball, its coordinates as float64, provably inside."""
    if norm == "inf":
        u = torch.randint(-1, 2, x.shape, generator=generator).to(F64)
        return torch.maximum(torch.minimum(x + radius * u, x + radius), x - radius)
    u = torch.randn(x.shape, generator=generator, dtype=F64)
    return x + radius * (1 - 1e-12) * u / u.norm().clamp_min(1e-300)


PATHS = [{"_SPARSE": 0.1}, {"_SPARSE": 1.0}, {"_MATRIX": 0}]
"""Maps merged and written out, as sparse matrices, or applied to all generators."""


def bounds_of(graph, x, radius, forms, norm="inf", most=10**6, dtype=F64):
    """All bounds of the forms at one input, by name."""
    lower, upper = x - radius, x + radius
    boxes = GraphBoxes.over(graph, lower, upper)
    ball = None
    if norm == "2":
        ball = x, torch.full_like(x, radius), (-torch.ones_like(x), torch.ones_like(x))
    found = walked_in(dtype, boxes, most, Maps(graph), ball)
    last, every = last_products(graph), torch.arange(len(forms))
    backward = Backward.over(found, torch.zeros_like(every), forms)
    bounds = {"generators": backward.expansion(every, [False] * len(last)).bound}
    bounds["last"], _, _ = layered(backward.expansion(every, last), steps=5)
    whole = backward.expansion(every, [True] * len(last))
    bounds["layers"], d, touch = layered(whole, steps=5)
    bounds["semidefinite"] = torch.tensor(
        [semidefinite(whole.rows(r), d[r], touch[r], enough=-math.inf)[0] for r in every.split(1)], dtype=F64
    )
    # What a tangent proves does not depend on where it touches.
    bounds["anywhere"], *_ = layered(whole, steps=0)
    each = GraphBoxes.over(graph, lower.expand(len(forms), -1), upper.expand(len(forms), -1))
    bounds |= {"interval": interval_bounds(each, forms), "backward": backward_bounds(each, forms)}
    bounds["nearest"] = backward_bounds(each, forms, nearest_planes(each))
    bounds["optimised"] = optimised_bounds(each, forms, 2)[0].detach()
    return bounds


@given(
    graphs(most=10, degree=12),
    st.integers(0, 99),
    st.sampled_from([0.0, 1e-12, 1e-3, 0.3]),
    st.sampled_from(["inf", "2"]),
    st.sampled_from([2, 10**6]),
    st.sampled_from([1e-30, 1.0, 1e30]),
    st.sampled_from([torch.float32, F64]),
    st.sampled_from(PATHS),
)
def test_bounds_are_below_every_value_in_fractions(graph, seed, radius, norm, most, scale, dtype, path):
    generator = torch.Generator().manual_seed(seed)
    graph = graph.double().transform(lambda t: t * scale if t.is_floating_point() and seed % 3 == 0 else t)
    x = 2 * torch.rand(1, graph.features, generator=generator, dtype=F64) - 1
    forms = torch.randn(2, graph.classes, generator=generator, dtype=F64)
    with mock.patch.multiple(zonotopes, **path):
        bounds = bounds_of(graph, x, radius, forms, norm, most, dtype)
    for _ in range(3):
        point = point_of(x, radius, norm, generator)
        values = graph.evaluate(Fractions(), [Fraction(v) for v in point[0].tolist()])
        for row in range(2):
            exact = sum(Fraction(w) * value for w, value in zip(forms[row].tolist(), values, strict=True))
            for name, bound in bounds.items():
                assert bound[row] == -math.inf or Fraction(float(bound[row])) <= exact, name


def squares(weights, constant=0.0):
    """`sum of (w.x)^2` over rows w, less 2 times the last, and a constant."""
    builder = Builder()
    y = builder.affine(Dense(weights), builder.input((weights.shape[1],)))
    last = torch.ones(1, len(weights), dtype=F64)
    last[0, -1] = -1.0
    return builder.finish(builder.affine(Dense(last, torch.full((1,), constant, dtype=F64)), builder.product(y, y)))


def test_rows_cancel_before_norms_are_taken():
    # (x + y) (x - y) over the unit square: 1 and -1 by polarisation, where the factors by themselves give 4 and -4.
    builder = Builder()
    x = builder.input((2,))
    left = builder.affine(Dense(torch.tensor([[1.0, 1.0]], dtype=F64)), x)
    right = builder.affine(Dense(torch.tensor([[1.0, -1.0]], dtype=F64)), x)
    graph = builder.finish(builder.product(left, right))
    zero, forms = torch.zeros(1, 2, dtype=F64), torch.tensor([[1.0], [-1.0]], dtype=F64)
    assert torch.allclose(bounds_of(graph, zero, 1.0, forms)["generators"], torch.tensor([-1.0, -1.0], dtype=F64))


def test_terms_that_cancel_are_bounded_together():
    # 16 squares of directions that are nearly orthogonal, all pulling down: one by one they lose far more.
    weights = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0), dtype=F64)).Q
    graph = squares(weights, -17.5)  # at most -1.5
    zero, forms = torch.zeros(1, 16, dtype=F64), -torch.ones(1, 1, dtype=F64)
    found = bounds_of(graph, zero, 1.0, forms)
    assert float(found["generators"]) < -60 and -2.5 < float(found["layers"]) < 3
    ball = bounds_of(graph, zero, 1.0, forms, "2")
    assert 16.49 < float(ball["layers"]) < 16.51


@example(graph=squares(torch.eye(3, dtype=F64)), seed=0)
@given(graphs(most=10, degree=12), st.integers(0, 99))
def test_what_is_taken_together_is_no_looser(graph, seed):
    generator = torch.Generator().manual_seed(seed)
    graph = graph.double()
    x = torch.rand(1, graph.features, generator=generator, dtype=F64)
    forms = torch.randn(2, graph.classes, generator=generator, dtype=F64)
    found = bounds_of(graph, x, 0.05, forms)
    merged = bounds_of(graph, x, 0.05, forms, most=1)
    slack = 1e-9 * (1 + found["generators"].abs())
    assert bool((merged["generators"] <= found["generators"] + slack).all())
    # One product at a time: the joint diagonal is never more than interval arithmetic's.
    if sum(isinstance(node, Product) for node in graph.nodes) == 1:
        assert bool((found["layers"] >= 2 * found["generators"].clamp_max(0.0) - slack).all())


def image_network():
    """Convolutions around two products, on images of 6 x 6."""
    torch.manual_seed(0)
    builder = Builder()
    x = builder.input((1, 6, 6))

    def conv(channels, source, shape):
        return builder.affine(Conv(torch.randn(channels, shape[0], 3, 3, dtype=F64) / 3, None, shape), source)

    x = conv(4, x, (1, 6, 6))
    x = builder.product(conv(4, x, (4, 6, 6)), conv(4, x, (4, 6, 6)))
    x = conv(4, x, (4, 6, 6))
    x = builder.product(conv(4, x, (4, 6, 6)), conv(4, x, (4, 6, 6)))
    return builder.finish(builder.affine(Dense(torch.randn(3, 144, dtype=F64) / 12), x))


@pytest.mark.parametrize("path", PATHS)
def test_single_precision_loses_little_of_the_bounds(path):
    graph, x, forms = image_network(), torch.full((1, 36), 0.5, dtype=F64), torch.eye(3, dtype=F64)
    whole = bounds_of(graph, x, 0.1, forms)
    with mock.patch.multiple(zonotopes, **path):
        fast = bounds_of(graph, x, 0.1, forms, dtype=torch.float32)
    value = graph(x)[0]
    for name in ("generators", "last", "layers"):
        lost = whole[name] - fast[name]
        assert bool((lost >= 0).all()) and bool((lost <= 1e-2 * (value - whole[name])).all())


def test_a_convolution_by_transforms_is_seen(monkeypatch):
    graph = image_network()
    boxes = GraphBoxes.over(graph, torch.zeros(1, 36, dtype=F64), torch.ones(1, 36, dtype=F64))
    assert Maps(graph).single
    assert walked(boxes, 10**6, Maps(graph)).factors[0].left.generators[0].dtype == torch.float32
    linear = Conv.linear

    def rough(self, x):  # rounded as sums of all entries of an image are
        y = linear(self, x)
        return y if x.dtype == F64 else y + (y.abs().amax(1, keepdim=True) * 2.0**-24)

    monkeypatch.setattr(Conv, "linear", rough)
    assert not Maps(graph).single
    assert walked(boxes, 10**6, Maps(graph)).factors[0].left.generators[0].dtype == F64
