"""Chains of products are recognised however they are written, and say the same as the graph."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.graphs import F64, graphs
from polybound.models import Builder, Dense, Identity, Scale, trace


class Written(nn.Module):
    """A function of a few matrices and the input."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        for name in "abcd":
            setattr(self, name, nn.Linear(6, 6, dtype=F64))

    def forward(self, x):
        return self.function(self, x)


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
    graph = trace(Written(function).requires_grad_(False), (6,))
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
        assert chain.degree == 1 and type(chain.C) is Identity
        torch.testing.assert_close(chain(eye), graph(eye))


@given(graphs(most=6), st.integers(0, 99))
def test_a_chain_is_the_graph(graph, seed):
    chain = graph.chain()
    if chain is not None:
        x = torch.rand(5, graph.features, generator=torch.Generator().manual_seed(seed), dtype=F64)
        torch.testing.assert_close(chain(x), graph(x), rtol=1e-9, atol=1e-9)
