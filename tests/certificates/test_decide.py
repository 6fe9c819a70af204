"""Decisions about boxes and unsafe polytopes: never contradicted by search, and always proven."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import Region, exact_values
from polybound.certificates import Polytope, decide


@st.composite
def questions(draw):
    """A network, a box, and polytopes near the outputs at its centre."""
    network = st.one_of(ccps(max_features=4, max_degree=6), ncps(max_features=4, max_degree=6), convs())
    model = draw(network)
    generator = torch.Generator().manual_seed(draw(seeds))
    sizes = torch.tensor([0.0, 1e-6, 0.1, 0.5, 1.0], dtype=F64)
    lower = torch.rand(model.features, generator=generator, dtype=F64) * 2 - 1
    upper = lower + sizes[torch.randint(0, 5, (model.features,), generator=generator)]
    outputs = model(((lower + upper) / 2).unsqueeze(0)).detach()[0]
    unsafe = []
    for rows in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        weights = torch.randn(rows, model.classes, generator=generator, dtype=F64)
        away = (torch.rand(rows, generator=generator, dtype=F64) - 0.2) * (0.1 + outputs.abs().max())
        unsafe.append(Polytope(weights, away - weights @ outputs))
    return model, lower, upper, unsafe


def holds(model, polytope, x):
    return all(value <= 0 for value in exact_values(model, x, polytope.weights, polytope.constant))


@settings(max_examples=examples(30))
@given(questions(), seeds)
def test_answers_are_never_contradicted(question, seed):
    model, lower, upper, unsafe = question
    found = decide(model, (lower, upper), unsafe, timeout=0.3)
    assert found.answer in ("unsat", "sat", "unknown")
    region = Region.box(lower, upper)
    if found.answer == "sat":
        point = found.point.reshape(-1)
        assert region.holds(point) and holds(model, unsafe[found.polytope], point)
        assert torch.allclose(found.outputs, model(found.point.unsqueeze(0)).detach()[0], rtol=1e-6, atol=1e-6)
    if found.answer == "unsat":
        assert found.point is None and found.outputs is None and found.polytope is None
        for polytope in unsafe:
            points = region.points(model, polytope.weights, seed)
            worst = (model(points).detach() @ polytope.weights.T + polytope.constant).amax(1)
            assert not holds(model, polytope, points[worst.argmin()])


@settings(max_examples=examples(24))
@given(st.integers(1, 3), st.integers(1, 5), seeds, st.sampled_from(["ccp", "ncp"]))
def test_small_questions_are_decided(features, degree, seed, kind):
    make = pb.CCP if kind == "ccp" else pb.NCP
    model = randomise(make(features, 3, 3, degree, dtype=F64), seed, 0.6)
    generator = torch.Generator().manual_seed(seed)
    lower = torch.rand(features, generator=generator, dtype=F64) - 0.5
    upper = lower + 0.5
    unsafe = [Polytope(torch.randn(2, 3, generator=generator, dtype=F64), torch.full((2,), 0.1, dtype=F64))]
    assert decide(model, (lower, upper), unsafe, timeout=600.0).answer != "unknown"


def test_conditions_that_exclude_each_other_only_together():
    # f = x in eight dimensions: the sum of all is at most 4 and at least 4.001. Neither can be shown of the whole box.
    model = pb.CCP.from_factors(torch.eye(8, dtype=F64).unsqueeze(0), torch.eye(8, dtype=F64))
    ones = torch.ones(8, dtype=F64)
    box = torch.zeros(8, dtype=F64), ones
    for gap, answer in ((0.001, "unsat"), (-0.001, "sat"), (0.0, "sat")):
        both = Polytope(torch.stack([ones, -ones]), torch.tensor([-4.0, 4.0 + gap], dtype=F64))
        found = decide(model, box, [both], timeout=600.0)
        if gap == 0.0:  # a hyperplane has to be met exactly
            assert found.answer in ("sat", "unknown")
            break
        assert found.answer == answer


def test_ties_and_edges():
    model = pb.CCP.from_factors(torch.ones(1, 1, 1, dtype=F64), torch.tensor([[1.0]], dtype=F64))
    box = torch.tensor([0.25], dtype=F64), torch.tensor([1.0], dtype=F64)
    least = torch.nextafter(torch.tensor([0.25], dtype=F64), torch.tensor([0.0], dtype=F64))
    above = Polytope(torch.tensor([[1.0]]), torch.tensor([-0.25], dtype=F64))
    below = Polytope(torch.tensor([[1.0]]), -least)
    touched = decide(model, box, [below, above])
    assert (touched.answer, touched.polytope, touched.point.tolist()) == ("sat", 1, [0.25])
    assert decide(model, box, [below]).answer == "unsat"
    assert decide(model, box, []).answer == "unsat"
    everything = Polytope(torch.zeros(0, 1), torch.zeros(0))
    assert decide(model, box, [below, everything]).polytope == 1
    point = torch.tensor([0.5], dtype=F64)
    assert decide(model, (point, point), [above]).answer == "unsat"


def test_what_is_refused():
    model = pb.CCP(2, 2, 3, 2)
    zero = torch.zeros(2)
    good = Polytope(torch.ones(1, 3), torch.zeros(1))
    for box, unsafe, options, message in (
        ((zero + 1, zero), [good], {}, "lower one"),
        ((torch.zeros(2, 2), torch.zeros(2, 2)), [good], {}, "one box"),
        ((torch.zeros(3), torch.zeros(3)), [good], {}, "shape"),
        ((zero, zero), [Polytope(torch.ones(1, 2), torch.zeros(1))], {}, r"\(rows, 3\)"),
        ((zero, zero), [Polytope(torch.ones(1, 3), torch.zeros(2))], {}, "each row"),
        ((zero, zero), [good], {"timeout": -1.0}, "timeout"),
    ):
        refuses(message, decide, model, box, unsafe, **options)
