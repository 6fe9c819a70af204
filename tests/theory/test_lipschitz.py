"""Lipschitz bounds of chains and of graphs: never exceeded, in their order, exact where they should be."""

from math import inf, log, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import F64, ccps, jacobian, ncps, networks, randomise, seeds
from helpers.profiles import examples
from polybound.theory import gamma, gram_norm, sensitivity, theta
from polybound.theory.lipschitz import composed_lipschitz, jacobian_bounds
from polybound.theory.norms import matrix_norm, operator_norm

exponents = st.sampled_from([1.0, 1.5, 2.0, 3.0, inf])
SLACK = 1 + 1e-9


def in_ball(points, p, radius):
    """Points scaled into the l_p ball, half of them onto its surface."""
    norms = points.norm(p, dim=1, keepdim=True).clamp_min(1e-12)
    scale = torch.where(torch.arange(len(points)).unsqueeze(1) % 2 == 0, 1 / norms, 1 / norms.clamp_min(1.0))
    return radius * points * scale


def operator_norm_below(J, p):
    """A lower bound of ||J||_p: exact for 1, 2, inf; else by trying vectors."""
    if p in (1.0, 2.0, inf):
        return torch.linalg.matrix_norm(J, p)
    v = torch.cat([torch.eye(J.shape[1], dtype=F64), torch.randn(50, J.shape[1], dtype=F64).sign()])
    return ((v @ J.T).norm(p, dim=1) / v.norm(p, dim=1)).max()


@given(networks(), exponents, st.sampled_from([0.5, 1.0, 2.0]), seeds)
def test_no_pair_of_points_exceeds_any_bound(model, p, radius, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (in_ball(torch.randn(40, model.features, generator=generator, dtype=F64), p, radius) for _ in range(2))
    b[20:] = a[20:] + 1e-4 * (b[20:] - a[20:])
    with torch.no_grad():
        moved = (model(a) - model(b)).norm(p, dim=1)
    apart = (a - b).norm(p, dim=1)
    rounding = 1e-12 * (1 + model(a).detach().norm(p, dim=1))
    for method in ("paper", "rowwise", "local"):
        bound = float(pb.lipschitz(model, p, method, radius=radius))
        assert (moved <= bound * apart * SLACK + rounding).all(), method


@given(networks(), st.sampled_from([1.0, 2.0, inf]), seeds)
def test_gradient_ascent_on_the_jacobian_norm_exceeds_no_bound(model, p, seed):
    generator = torch.Generator().manual_seed(seed)
    x = in_ball(torch.randn(2, model.features, generator=generator, dtype=F64), p, 1.0)[0]
    bound = min(float(pb.lipschitz(model, p, m)) for m in ("paper", "rowwise", "local"))
    for step in (1.0, 0.5, 0.2, 0.1, 0.05):
        x = x.detach().requires_grad_()
        J = torch.autograd.functional.jacobian(lambda v: model(v.unsqueeze(0)).squeeze(0), x, create_graph=True)
        norm = torch.linalg.matrix_norm(J, p)
        assert norm <= bound * SLACK
        gradient = torch.autograd.grad(norm, x, allow_unused=True)[0] if norm.requires_grad else None
        if gradient is None or not gradient.abs().max() > 0:
            break
        with torch.no_grad():
            moved = x + step * (gradient.sign() if p == inf else gradient / gradient.norm())
            x = moved.clamp(-1, 1) if p == inf else moved / moved.norm(p).clamp_min(1.0)


@given(networks(), exponents, st.sampled_from([None, 0.3, 1.0, 3.0]))
def test_sharper_bounds_are_never_above_the_others(model, p, radius):
    paper, rowwise = (float(pb.lipschitz(model, p, m, radius=radius)) for m in ("paper", "rowwise"))
    assert rowwise <= paper
    if p == inf and radius is not None:
        assert float(pb.lipschitz(model, inf, "local", radius=radius)) <= rowwise * SLACK


@given(networks(), st.sampled_from([1.0, 2.0, inf]), seeds)
def test_to_the_letter_the_theorem_is_about_a_free_lifted_input(model, p, seed):
    generator = torch.Generator().manual_seed(seed)
    z = in_ball(torch.randn(4, model.features + 1, generator=generator, dtype=F64), p, 1.0)
    lifted = model.factors().lifted()
    for point in z:
        J = torch.autograd.functional.jacobian(lambda v: lifted(v.unsqueeze(0)).squeeze(0), point)
        for method in ("paper", "rowwise"):
            assert torch.linalg.matrix_norm(J, p) <= float(pb.lipschitz(model, p, method, radius=None)) * SLACK


@given(networks(), exponents, seeds, st.sampled_from([0.0, 1e-3, 0.1, 1.0]))
def test_local_holds_in_its_boxes(model, p, seed, size):
    generator = torch.Generator().manual_seed(seed)
    centre = 2 * torch.rand(3, model.features, generator=generator, dtype=F64) - 1
    half = size * torch.rand(3, model.features, generator=generator, dtype=F64)
    bound = pb.lipschitz(model, p, "local", box=(centre - half, centre + half))
    assert bound.value.shape == (3,)
    for i in range(3):
        one = pb.lipschitz(model, p, "local", box=((centre - half)[i], (centre + half)[i]))
        assert float(one) == pytest.approx(float(bound.value[i]), rel=1e-9)
        for _ in range(3):
            inside = centre[i] + half[i] * (2 * torch.rand(model.features, generator=generator, dtype=F64) - 1)
            assert operator_norm_below(jacobian(model, inside), p) <= bound.value[i] * SLACK
        corner = centre[i] + half[i] * (2 * torch.randint(2, (model.features,), generator=generator) - 1)
        assert operator_norm_below(jacobian(model, corner), p) <= bound.value[i] * SLACK


@given(networks(), st.sampled_from([1.0, 2.0, inf]))
def test_local_is_exact_at_a_point(model, p):
    x = torch.linspace(-1, 1, model.features, dtype=F64)
    J = jacobian(model, x)
    bound = float(pb.lipschitz(model, p, "local", box=(x, x)))
    exact, least = float(torch.linalg.matrix_norm(J, p)), 1e-9 * float(pb.lipschitz(model, p))
    assert bound == pytest.approx(exact, rel=1e-6, abs=least)


@given(networks(runs=(3,)), st.sampled_from([1.0, 2.0, 3.0, inf]), st.sampled_from(["paper", "rowwise", "local"]))
def test_a_stack_has_the_bounds_of_its_members(model, p, method):
    together = pb.lipschitz(model, p, method).value
    apart = torch.tensor([float(pb.lipschitz(model.run(e), p, method)) for e in range(3)], dtype=F64)
    torch.testing.assert_close(together, apart)


def test_the_rowwise_formula_of_ccp():
    model = randomise(pb.CCP(3, 2, 2, 3, dtype=F64), 0, 1.0)
    V = model.V.detach().abs().sum(-1)
    beta = torch.tensor([0.0, 1.0, 1.0], dtype=F64).unsqueeze(1)
    inner = sum(V[i] * torch.stack([(V + beta)[j] for j in range(3) if j != i]).prod(0) for i in range(3))
    expected = (model.C[:, :-1].detach().abs() @ inner).max()
    assert float(pb.lipschitz(model)) == pytest.approx(float(expected), rel=1e-12)


def test_paper_formula_of_both_models():
    for model, names in ((pb.CCP(3, 2, 2, 3, dtype=F64, seed=0), 4), (pb.NCP(3, 2, 2, 3, dtype=F64, seed=0), 7)):
        matrices = model.factors().double().matrices()
        assert len(matrices) == names
        product = 1.0
        for name, matrix in matrices.items():
            product *= float(matrix.abs().max() if name == "s1" else torch.linalg.matrix_norm(matrix, inf))
        assert float(pb.lipschitz(model, method="paper")) == pytest.approx(3 * product, rel=1e-12)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"p": 0.5},
        {"method": "best"},
        {"radius": -1},
        {"box": (0, 1)},
        {"method": "local", "box": (1, 0)},
        {"method": "local", "box": (torch.zeros(4), torch.ones(4))},
        {"method": "local", "box": (torch.zeros(1, 1, 3), torch.ones(3))},
    ],
)
def test_bad_input(kwargs):
    refuses("", pb.lipschitz, pb.CCP(3, 2, 2, 3), **kwargs)


def test_bounds_table():
    conv = pb.ConvCCP((1, 4, 4), 2, 3, 2, 3, pool=(1,))
    for model in (pb.CCP(3, 2, 2, 3, seed=0), pb.NCP(3, 2, 2, 3, seed=0, runs=2), conv):
        table = pb.bounds(model, n=50)
        quantities, text = [row.quantity for row in table], str(table)
        assert len(set(quantities)) == len(quantities) > 15
        assert all(quantity in text for quantity in quantities)
        assert len(table.as_dict()["bounds"]) == len(table)
    text = str(pb.lipschitz(pb.CCP(3, 2, 2, 3, seed=0), 2, "paper"))
    assert "Theorem 7" in text and "||x||_2 <= 1" in text and "R^(k-1)" in text
    assert "z = [x, 1]" in str(pb.lipschitz(pb.NCP(3, 2, 2, 3, seed=0), 2, "rowwise", radius=None))


# Sensitivities dominate the Jacobian everywhere, and are the matrix behind the row-wise bound.


@settings(max_examples=examples(40))
@given(networks(), seeds)
def test_no_derivative_is_larger_than_its_sensitivity(model, seed):
    bound = sensitivity(model)
    assert bound.shape == (model.classes, model.features)
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(10, model.features, generator=generator, dtype=F64) * 2 - 1
    for x in (*points, *points.sign()):
        assert (jacobian(model, x).reshape(bound.shape).abs() <= bound * (1 + 1e-12)).all()


@given(ccps())
def test_the_largest_row_sum_of_sensitivities_is_the_row_wise_bound(model):
    rowwise = float(pb.lipschitz(model, method="rowwise"))
    assert float(sensitivity(model).sum(1).max()) == pytest.approx(rowwise, rel=1e-9)


def box(graph, seed, radius):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(1, graph.features, generator=generator, dtype=F64) - 1
    points = x + radius * (2 * torch.rand(6, graph.features, generator=generator, dtype=F64) - 1)
    return x - radius, x + radius, points


@given(graphs(), st.integers(0, 99), st.sampled_from([1e-6, 0.1, 1.0]), st.sampled_from([1.0, 2.0, 3.0, torch.inf]))
def test_no_quotient_is_above_the_bounds(graph, seed, radius, p):
    lower, upper, points = box(graph, seed, radius)
    values, away = graph(points), torch.linalg.vector_norm(points[:1] - points[1:], p, dim=1)
    quotients = torch.linalg.vector_norm(values[:1] - values[1:], p, dim=1) / away
    largest = float(quotients.nan_to_num(0.0).max())
    noise = 1e-9 * (1 + float(values.abs().max()) / float(away.min()))
    assert largest <= composed_lipschitz(graph, lower, upper, p) + noise
    assert largest <= float(matrix_norm(jacobian_bounds(graph, lower, upper).size[0], p)) + noise


@given(graphs(), st.integers(0, 99), st.sampled_from([0.0, 1e-6, 0.3]))
def test_jacobians_lie_within_their_bounds(graph, seed, radius):
    lower, upper, points = box(graph, seed, radius)
    bounds = jacobian_bounds(graph, lower, upper).size[0]
    for point in points:
        jacobian = torch.autograd.functional.jacobian(lambda x: graph(x.unsqueeze(0))[0], point)
        assert bool((jacobian.abs() <= bounds * (1 + 1e-9) + 1e-9 * float(bounds.max()) + 1e-12).all())
        if radius == 0.0:
            torch.testing.assert_close(jacobian.abs(), bounds, rtol=1e-6, atol=1e-9 * (1 + float(bounds.max())))


@given(graphs(), st.sampled_from([1.0, 2.0, torch.inf]))
def test_operator_norms_bound_every_map(graph, p):
    for node in graph.nodes:
        if hasattr(node, "map"):
            exact = float(torch.linalg.matrix_norm(node.map.matrix(), p))
            assert exact <= operator_norm(node.map, p) * (1 + 1e-12)


def test_the_bounds_of_a_polynet_say_what_they_rest_on():
    network = pb.PolyNet((1, 4, 4), 3, width=2, blocks=(1,), seed=0)
    bound = pb.lipschitz(network, radius=0.5)
    assert bound.assumptions == ("x in the box [-0.5, 0.5]",) and "Jacobian" in bound.how
    assert float(pb.lipschitz(network, radius=0.1)) < float(bound) <= float(pb.lipschitz(network, radius=1.0))
    refuses("box sides must be", pb.lipschitz, network, method="local", box=(torch.zeros(3), torch.ones(3)))
    assert "degree 2" in str(pb.bounds(network))


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
def test_bad_input_of_complexities(kwargs):
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
