"""Graphs: built, fused, evaluated and identified; chains of products in them are recognised, however they are written."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refuses
from helpers.graphs import F64, graphs
from helpers.networks import Written, layers
from polybound import models
from polybound.models import Builder, Dense, Scale, trace


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
    """Along a line, differences of order degree + 1 vanish."""
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


def test_values_are_let_go():
    seen, alive = [], []

    class Counting:
        def affine(self, step, value):
            return self.made()

        def sum(self, values):
            return self.made()

        def product(self, left, right):
            return self.made()

        def made(self):
            import weakref

            token = type("Token", (), {})()
            seen.append(weakref.ref(token))
            alive.append(sum(ref() is not None for ref in seen))
            return token

    builder = Builder()
    node = builder.input((2,))
    for k in range(20):
        node = builder.affine(Scale(torch.full((2,), float(k + 2))), builder.product(node, node) if k < 5 else node)
    builder.finish(node, fused=False).evaluate(Counting(), object())
    assert max(alive) <= 3


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
