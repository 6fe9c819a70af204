"""Graphs: built, fused, evaluated and identified; chains of products in them are recognised, however they are written."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import F64, Written, layers, networks, seeds, unrolled
from polybound import models
from polybound.models import Builder, Chain, Conv, Dense, Identity, Pool, Scale, trace
from polybound.theory import operator_norm, torus_norm


def by_matrices(graph, x):
    """f(x) from every map's matrix and constant alone."""
    values = []
    for node in graph.nodes:
        if not node.sources:
            values.append(x)
        elif hasattr(node, "map"):
            values.append(values[node.source] @ node.map.matrix().T + node.map.constant)
        else:
            parts = torch.stack([values[source] for source in node.sources])
            values.append(parts.prod(0) if type(node).__name__ == "Product" else parts.sum(0))
    return values[graph.output]


def points(graph, count, seed, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(count, graph.features, generator=generator, dtype=dtype) - 1


def close(found, wanted, size=1e-9):
    scale = float(wanted.abs().max()) + 1e-12
    assert float((found - wanted).abs().max()) <= size * scale + 1e-12


@given(graphs(), st.integers(0, 99))
def test_numbers_are_those_of_the_matrices(graph, seed):
    x = points(graph, 4, seed)
    close(graph(x), by_matrices(graph, x))


@given(graphs(), st.integers(0, 99))
def test_maps_have_their_adjoint_and_their_absolute_values(graph, seed):
    for node in graph.nodes:
        if hasattr(node, "map"):
            step, matrix = node.map, node.map.matrix()
            y = torch.randn(3, step.outputs, generator=torch.Generator().manual_seed(seed), dtype=F64)
            close(step.adjoint(y), y @ matrix)
            absolute = step.absolute()
            assert bool((absolute.matrix() >= matrix.abs() - 1e-12).all())
            if not isinstance(step, models.Chain):
                close(absolute.matrix(), matrix.abs())
                close(absolute.constant, step.constant.abs())


@given(graphs(most=10, degree=8), st.integers(0, 99), st.sampled_from([0.0, 1e-9, 0.01, 0.5]))
def test_intervals_contain_all_values(graph, seed, radius):
    x = points(graph, 1, seed)
    found = graph.evaluate(models.Intervals(), models.Bounded(x - radius, x + radius))
    for moved in (x, x + radius * points(graph, 1, seed + 1).sign()):
        inside = torch.maximum(torch.minimum(moved, x + radius), x - radius)
        for row, lower, upper in zip(inside, found.lower, found.upper, strict=True):
            exact = graph.evaluate(models.Fractions(), [Fraction(v) for v in row.tolist()])
            ends = zip(exact, lower.tolist(), upper.tolist(), strict=True)
            assert all(low <= value <= high for value, low, high in ends)


@given(graphs(), st.integers(0, 99))
def test_intervals_that_are_not_rounded_are_as_wide(graph, seed):
    x = points(graph, 2, seed)
    rounded = graph.evaluate(models.Intervals(), models.Bounded(x - 0.1, x + 0.1))
    plain = graph.evaluate(models.Intervals(outward=False), models.Bounded(x - 0.1, x + 0.1))
    width = float((rounded.upper - rounded.lower).max())
    close(rounded.lower, plain.lower, 1e-9 * (1 + width))
    close(rounded.upper, plain.upper, 1e-9 * (1 + width))


@given(graphs(most=8, degree=8), st.integers(0, 99))
def test_fractions_are_what_numbers_round(graph, seed):
    x = points(graph, 1, seed)
    exact = graph.evaluate(models.Fractions(), [Fraction(v) for v in x[0].tolist()])
    close(graph(x)[0], torch.tensor([float(value) for value in exact], dtype=F64))


@given(graphs(), st.integers(0, 99))
def test_the_degree_bounds_the_polynomial(graph, seed):
    if graph.degree > 6:
        return
    x, direction = points(graph, 1, seed), points(graph, 1, seed + 1)
    values = graph(x + torch.linspace(-1, 1, graph.degree + 2, dtype=F64).unsqueeze(1) * direction)
    size = float(values.abs().max()) + 1e-12
    for _ in range(graph.degree + 1):
        values = values[1:] - values[:-1]
    assert float(values.abs().max()) <= 1e-9 * size


def square(weight):
    builder = Builder()
    y = builder.affine(Dense(weight), builder.input((2,)))
    return builder.finish(builder.product(y, y))


def test_equal_nodes_are_one_and_dead_ones_go():
    builder = Builder()
    x, weight = builder.input((2,)), torch.eye(2)
    one, other = builder.affine(Dense(weight), x), builder.affine(Dense(weight), x)
    assert one == other
    builder.affine(Scale(torch.ones(2)), one)
    assert len(builder.finish(builder.product(one, other)).nodes) == 3


def test_affine_maps_of_affine_maps_are_one():
    builder = Builder()
    x = builder.input((4,))
    twice = builder.affine(Scale(torch.full((4,), 2.0)), builder.affine(Dense(torch.eye(4)), x))
    moved = builder.affine(models.Select(torch.tensor([3, 2, 1, 0]), 4, torch.zeros(())), twice)
    back = builder.affine(models.Select(torch.tensor([3, 2, 1, 0]), 4, torch.zeros(())), moved)
    assert back == twice
    graph = builder.finish(moved)
    assert [type(node).__name__ for node in graph.nodes] == ["Input", "Applied"]
    assert graph(torch.arange(4.0).unsqueeze(0)).tolist() == [[6.0, 4.0, 2.0, 0.0]]


def test_digest_knows_weights_and_structure():
    one = square(torch.eye(2))
    assert one.digest == square(torch.eye(2)).digest
    assert one.digest != square(2 * torch.eye(2)).digest
    builder = Builder()
    y = builder.affine(Dense(torch.eye(2)), builder.input((2,)))
    assert builder.finish(builder.sum((y, y))).digest != one.digest


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, x: b.affine(Dense(torch.eye(3)), x), "a map of 3 numbers was given 2"),
        (lambda b, x: b.sum((x, b.affine(Dense(torch.ones(3, 2)), x))), "a sum of vectors of different lengths: 2, 3"),
        (lambda b, x: b.product(x, b.affine(Dense(torch.ones(1, 2)), x)), "a product of vectors of different lengths"),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    builder = Builder()
    refuses(message, build, builder, builder.input((2,)))


def test_a_degree_that_nobody_can_mean_is_refused():
    builder = Builder()
    node = builder.input((1,))
    for _ in range(20):
        node = builder.product(node, node)
    refuses(r"degree 2,097,152 at a square; at most 2\^20", builder.product, node, node, "a square")


def test_graphs_may_be_deep():
    builder = Builder()
    total = x = builder.input((2,))
    for _ in range(3000):
        total = builder.sum((total, x))
    for k in range(300):
        total = builder.affine(Scale(torch.full((2,), 1.0 + k % 2)), total)
    assert len(builder.finish(total).nodes) > 3000


def test_a_graph_without_maps_is_a_chain():
    builder = Builder()
    x = builder.input((3,))
    chain = builder.finish(builder.product(x, x)).chain()
    assert chain.degree == 2
    assert chain(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[1.0, 4.0, 9.0]]


CHAINS = {
    # what is written, and the degree of the chain
    "residual": (lambda n, x: n.b(x) * n.a(x) + n.a(x), 2),
    "residual, the other factor": (lambda n, x: n.b(x) * n.a(x) + n.b(x), 2),
    "weighted": (lambda n, x: 0.5 * (n.c(x) * (n.a(x) * n.b(x))) - (n.a(x) * n.b(x)) * 0.25, 3),
    "after a map": (lambda n, x: n.d(n.b(x) * n.a(x)) * n.c(x), 3),
    "tree": (lambda n, x: (n.a(x) * n.b(x)) * (3 * (n.c(x) * n.d(x))), 4),
    "negated": (lambda n, x: n.c(-(n.a(x) * n.b(x)) + 1) * n.d(x), 3),
    "of the input": (lambda n, x: n.a(x) + 2 * x, None),
    "squares": (lambda n, x: (n.a(x) * n.a(x)) ** 2, 4),
    "square between maps": (lambda n, x: n.b(n.a(x) ** 2) ** 2, None),
    "two depths": (lambda n, x: n.a(x) * n.b(x) + n.c(x), None),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_recognised(name):
    torch.manual_seed(0)
    function, degree = CHAINS[name]
    graph = trace(Written(function, **layers(6, 6, "abcd", dtype=F64)).requires_grad_(False), (6,))
    chain = graph.chain()
    assert (chain and chain.degree) == degree
    if chain is not None:
        x = torch.randn(9, 6, dtype=F64)
        torch.testing.assert_close(chain(x), graph(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("matrices", [True, False])
def test_sums_of_maps_are_maps_where_nothing_is_rounded(exact, matrices):
    builder, by = Builder(), 0.5 if exact else 2.0**-60
    x = builder.input((3,))
    eye = torch.eye(3, dtype=F64)
    maps = (Dense(eye), Dense(by * eye)) if matrices else (Scale(eye.sum(0)), Scale(by * eye.sum(0)))
    graph = builder.finish(builder.sum([builder.affine(step, x) for step in maps]))
    chain = graph.chain()
    if not exact and not matrices:
        assert chain is None
    else:
        assert chain.degree == 1 and type(chain.C) is models.Identity
        torch.testing.assert_close(chain(eye), graph(eye))


@given(graphs(most=6), st.integers(0, 99))
def test_a_chain_is_the_graph(graph, seed):
    chain = graph.chain()
    if chain is not None:
        x = torch.rand(5, graph.features, generator=torch.Generator().manual_seed(seed), dtype=F64)
        torch.testing.assert_close(chain(x), graph(x), rtol=1e-9, atol=1e-9)


CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@st.composite
def kernels(draw, fits):
    """A kernel and the image it runs over; `fits`: not larger than the image."""
    dims = draw(st.integers(1, 3))
    size = draw(st.sampled_from([1, 3, 5] if dims < 3 else [1, 3]))
    channels = draw(st.integers(1, 3))
    sizes = st.integers(size, size + 3) if fits else st.integers(1, max(1, size - 1))
    shape = (channels, *(draw(sizes) for _ in range(dims)))
    generator = torch.Generator().manual_seed(draw(seeds))
    weight = torch.randn(draw(st.integers(1, 3)), channels, *(size,) * dims, generator=generator, dtype=F64)
    return weight, shape


def convolution_matrix(weight, shape):
    padding = [k // 2 for k in weight.shape[2:]]
    inputs = torch.Size(shape).numel()
    return unrolled(lambda e: CONV[len(shape) - 1](e.reshape(1, *shape), weight, padding=padding).flatten(), inputs)


@given(kernels(fits=True))
def test_theorems_5_10_11_norm_of_convolution_is_norm_of_matricised_kernel(case):
    weight, shape = case
    matrix = convolution_matrix(weight, shape)
    conv = Conv(weight, None, shape)
    rows = conv.matricised().abs().sum(-1).max()
    torch.testing.assert_close(matrix.abs().sum(1).max(), rows, rtol=1e-12, atol=0)
    torch.testing.assert_close(operator_norm(conv, "inf"), rows, rtol=1e-12, atol=0)


@given(kernels(fits=False))
def test_kernels_larger_than_the_image_are_bounded_by_their_matricisation(case):
    weight, shape = case
    norm = convolution_matrix(weight, shape).abs().sum(1).max()
    conv = Conv(weight, None, shape)
    assert norm <= conv.matricised().abs().sum(-1).max() * (1 + 1e-12)
    torch.testing.assert_close(operator_norm(conv, "inf"), norm, rtol=1e-12, atol=0)


@given(st.one_of(kernels(fits=True), kernels(fits=False)))
def test_other_norms_of_convolutions(case):
    weight, shape = case
    matrix, conv = convolution_matrix(weight, shape), Conv(weight, None, shape)
    torch.testing.assert_close(conv.matrix(), matrix)
    torch.testing.assert_close(operator_norm(conv, 1), matrix.abs().sum(0).max(), rtol=1e-12, atol=0)
    spectral = torch.linalg.matrix_norm(matrix, 2)
    torch.testing.assert_close(operator_norm(conv, 2), spectral, rtol=1e-9, atol=0)
    assert spectral <= torus_norm(weight, shape[1:])


def test_torus_norm_is_what_large_convolutions_get():
    conv = Conv(torch.randn(4, 4, 3, 3, dtype=F64), None, (4, 17, 17))
    norm, certified = operator_norm(conv, 2), torus_norm(conv.weight, (17, 17))
    torch.testing.assert_close(norm, certified)
    x = torch.randn(1, conv.inputs, dtype=F64)
    for _ in range(50):
        x = conv.adjoint(conv.linear(x / x.norm()))
    below = x.norm().sqrt()
    assert below <= certified <= 1.1 * below


@given(networks(runs=(None, 2)), seeds)
def test_maps_agree_with_their_matrices(model, seed):
    generator = torch.Generator().manual_seed(seed)
    factors = model.factors()
    for step in (*factors.A, *factors.S, factors.C):
        matrix = step.matrix()
        assert matrix.shape == (*step.lead, step.outputs, step.inputs)
        x = torch.randn(*step.lead, 3, step.inputs, generator=generator, dtype=F64)
        y = torch.randn(*step.lead, 3, step.outputs, generator=generator, dtype=F64)
        torch.testing.assert_close(step.linear(x), x @ matrix.mT)
        torch.testing.assert_close(step(x), x @ matrix.mT + step.constant.unsqueeze(-2))
        torch.testing.assert_close(step.adjoint(y), y @ matrix)
        exact = step.dense().absolute()
        torch.testing.assert_close(exact.matrix(), matrix.abs())
        slack = 1e-12 * (1 + exact.matrix().abs().max())
        assert (step.absolute().matrix() >= exact.matrix() - slack).all()
        assert (step.absolute().constant >= step.constant.abs() - slack).all()
        assert (step.row_l1() >= matrix.abs().sum(-1) - slack * step.inputs).all()
        if not isinstance(step, Chain):
            torch.testing.assert_close(step.row_l1(), matrix.abs().sum(-1))


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 7, "inf"])
def test_operator_norms_are_upper_bounds_for_every_p(p):
    maps = [
        Dense(torch.randn(4, 6, dtype=F64)),
        Conv(torch.randn(2, 3, 3, 3, dtype=F64), None, (3, 5, 4)),
        Pool((2, 5, 4), (), torch.zeros(1, dtype=F64)),
        Identity(7, (), torch.zeros(1, dtype=F64)),
    ]
    maps.append(Chain([maps[1], maps[2]], shift=1.0))
    exponent = float(p)
    for step in maps:
        x = torch.randn(2000, step.inputs, dtype=F64)
        x[:1000] = x[:1000].sign()
        x[1000:1500] *= torch.rand_like(x[1000:1500]) < 2 / step.inputs
        sizes = x.norm(exponent, dim=1).clamp_min(1e-9)
        stretched = step.linear(x).norm(exponent, dim=1)
        assert (stretched <= operator_norm(step, p) * sizes * (1 + 1e-12)).all()
