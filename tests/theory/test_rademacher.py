"""Rademacher bounds: the formulas, their order, and the complexity itself on small classes."""

from math import inf, log, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, ncps, seeds
from helpers.profiles import examples
from polybound.theory import gamma, gram_norm, theta


def largest_row(model, order):
    return model.factors().double().matrices()["C"].norm(order, dim=1).max()


@given(st.one_of(ccps(), ncps()), st.integers(1, 10**6))
def test_formulas(model, n):
    k, d = model.degree, model.features + 1
    for exact, lam in ((True, theta(model)), (False, gamma(model))):
        size = largest_row(model, 1) * lam
        paper = pb.rademacher(model, n, exact=exact)
        sharper = pb.rademacher(model, n, exact=exact, formula="sharper")
        assert float(paper) == pytest.approx(float(2 * size * sqrt(2 * k * log(d) / n)), rel=1e-9)
        assert float(sharper) == pytest.approx(float(size * sqrt(2 * log(2 * d**k) / n)), rel=1e-9)
        assert float(sharper) <= float(paper)
    for exact, lam in ((True, gram_norm(model)), (False, gamma(model, 2))):
        letter = pb.rademacher(model, n, "2", exact=exact, radius=None)
        assert float(letter) == pytest.approx(float(largest_row(model, 2) * lam / sqrt(n)), rel=1e-9)
        on_x = pb.rademacher(model, n, "2", exact=exact)
        assert float(on_x) == pytest.approx(float(letter) * sqrt(2) ** k, rel=1e-9)


@given(ccps(max_features=2, max_rank=2, max_degree=2), seeds)
@settings(max_examples=examples(30))
def test_the_bound_is_never_exceeded(model, seed):
    """A lower estimate of the class's complexity on 4 samples: exact over all signs, sup over many of its members."""
    n, generator = 4, torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, model.features, generator=generator, dtype=F64) - 1
    z = torch.cat([x, torch.ones(n, 1, dtype=F64)], dim=1)
    matrices = model.factors().double().matrices()
    mu, lam = largest_row(model, 1), theta(model)
    matrices.pop("C")
    units = next(iter(matrices.values())).shape[0]
    values = []
    for trial in range(300):
        U = [torch.randn(u.shape, generator=generator, dtype=F64) for u in matrices.values()]
        if trial % 3 == 0:  # extreme points: one entry in each row
            U = [u * torch.nn.functional.one_hot(u.abs().argmax(1), u.shape[1]) for u in U]
        product = torch.stack([u.abs().sum(1) for u in U]).prod(0)
        U[0] = U[0] * (lam / product).unsqueeze(1)
        h = torch.stack([z @ u.T for u in U]).prod(0)
        c = torch.randn(units, generator=generator, dtype=F64)
        if trial % 2 == 0:
            c = torch.nn.functional.one_hot(c.abs().argmax(), units) * c.sign()
        values.append(h @ (c * mu / c.abs().sum()))
    values = torch.stack(values)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * n)
    estimate = (values.abs().new_tensor(1.0) * (signs @ values.T)).abs().max(1).values.mean() / n
    assert estimate <= float(pb.rademacher(model, n, formula="sharper"))


def test_stack_and_text():
    model = pb.CCP(4, 3, 2, 2, runs=2, seed=0)
    bound = pb.rademacher(model, 100)
    assert torch.allclose(
        bound.value, torch.tensor([float(pb.rademacher(model.run(e), 100)) for e in (0, 1)], dtype=F64)
    )
    text = str(pb.rademacher(model.run(0), 100, "2"))
    assert "Theorem 6" in text and "||x||_2 <= 1" in text


@pytest.mark.parametrize(
    "kwargs", [{"n": 0}, {"n": 2.5}, {"n": 10, "norm": "1"}, {"n": 10, "formula": "best"}, {"n": 10, "radius": -1}]
)
def test_bad_input(kwargs):
    refuses("", pb.rademacher, pb.CCP(4, 3, 2, 2), **kwargs)


def test_generalisation_statement():
    torch.manual_seed(0)
    model = pb.CCP(2, 2, 2, 1, dtype=F64)
    with torch.no_grad():
        model.V.copy_(torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]))
        model.C.copy_(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    x = torch.linspace(-1, 1, 10**6, dtype=F64).unsqueeze(1).repeat(1, 2)
    y = (x[:, 0] < 0).long()
    statement = pb.generalisation(model, x, y, margin=0.6)
    # Margin 2 |x_1| below 0.6 on 30 % of the samples; mu = theta = 1, so 1 < mu theta / margin <= 2^1.
    assert statement.margin_error == pytest.approx(0.3, abs=1e-4)
    assert statement.complexity == pytest.approx(4 * 2 * 2 * sqrt(2 * log(2 * 3) / 10**6), rel=1e-6)
    assert float(statement) == pytest.approx(statement.margin_error + statement.complexity + statement.deviation)
    assert not statement.vacuous
    looser = pb.generalisation(model, x, y, margin=0.6, confidence=0.999)
    assert statement.deviation < looser.deviation
    assert pb.generalisation(model, x, y, margin=1e-6).vacuous


def test_generalisation_refuses_what_it_does_not_cover():
    model = pb.CCP(2, 2, 2, 1)
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    for args, kwargs in (
        ((model, 2 * x + 3, y), {}),
        ((model, x, y[:2]), {}),
        ((model, x, y), {"margin": 0}),
        ((model, x, y), {"confidence": 1}),
        ((pb.CCP(2, 2, 2, 1, runs=2), x, y), {}),
    ):
        refuses("", pb.generalisation, *args, **kwargs)
    assert inf > float(pb.generalisation(model, x, y)) > 0
