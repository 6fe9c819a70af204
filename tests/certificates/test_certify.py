"""Decisions over boxes and l_2 balls hold: against brute force, exhaustive search and rational arithmetic."""

import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import METHODS, Region, exact_values, inputs_and_radii, judge_decision, rival_forms
from polybound.certificates.certify import bisected

ENOUGH = 600.0
"""Seconds of branch and bound where all must be decided: far more than any machine needs for what is asked here."""


def networks(max_features=4, max_degree=6):
    options = {"max_features": max_features, "max_degree": max_degree}
    return st.one_of(ccps(**options), ncps(**options), ccps(max_features=3, max_degree=10), convs())


def drawn(model, seed, images=2):
    x, eps = inputs_and_radii(model.features, seed, images)
    return x, eps, model(x).argmax(1)


@settings(max_examples=examples(200))
@given(
    networks(),
    seeds,
    st.sampled_from(METHODS),
    st.sampled_from(["one", "image", "feature", "sides"]),
    st.sampled_from(["usual", "narrow", "none"]),
)
def test_no_decision_is_contradicted_by_brute_force(model, seed, how, kind, limits):
    assume(model.classes > 1 and not (kind == "sides" and how[0] == "2"))
    norm, method = how
    x, eps, y = drawn(model, seed)
    far = {"usual": 1.0, "narrow": 1.0, "none": 1e9}[limits]
    least, most = torch.full((2, model.features), far, dtype=F64) * torch.tensor([[-1.0], [1.0]])
    if limits == "narrow":
        least, most = (x.amin(0) - 0.05).clamp_min(-1.0), (x.amax(0) + 0.05).clamp_max(1.0)
    domain = {"usual": (-1.0, 1.0), "narrow": (least, most), "none": None}[limits]
    eps = {"one": eps[:1, :1], "image": eps[:, :1], "feature": eps, "sides": eps}[kind].expand_as(x)
    asked = {"one": float(eps[0, 0]), "image": eps[:, 0], "feature": eps, "sides": None}[kind]
    if kind == "sides":
        lower, upper = torch.maximum(x - eps, least), torch.minimum(x + eps.flip(1), most)
        regions = [Region.box(*sides) for sides in zip(lower, upper, strict=True)]
        found = pb.certify(model, x, y, box=(lower, upper), domain=domain, method=method, budget=0.1)
        assert found.eps is None and torch.equal(found.box[0], lower)
    else:
        regions = [Region.around(x[i], eps[i], least, most, norm) for i in range(len(x))]
        found = pb.certify(model, x, y, asked, domain=domain, norm=norm, method=method, budget=0.1)
        assert found.box is None and found.norm == norm
    for i, region in enumerate(regions):
        judge_decision(model, found, i, int(y[i]), region, seed)


@settings(max_examples=examples(30))
@given(st.integers(1, 6), st.integers(1, 3), st.integers(2, 5), seeds, st.sampled_from(["ccp", "ncp"]))
def test_small_inputs_are_always_decided_and_agree_with_exhaustive_search(features, rank, degree, seed, kind):
    make = pb.CCP if kind == "ccp" else pb.NCP
    model = randomise(make(features, rank, 3, degree, dtype=F64), seed, 0.7)
    x = torch.rand(3, features, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2 - 1
    y = model(x).argmax(1)
    result = pb.certify(model, x, y, 0.2, budget=ENOUGH)
    steps = {1: 2001, 2: 101, 3: 31, 4: 13, 5: 9, 6: 6}[features]
    lower, upper = (x - 0.2).clamp_min(-1.0), (x + 0.2).clamp_max(1.0)
    for i, status in enumerate(result.status):
        axes = [torch.linspace(0, 1, steps, dtype=F64)] * features
        grid = lower[i] + (upper[i] - lower[i]) * torch.cartesian_prod(*axes).reshape(-1, features)
        values = (model(grid).detach() @ rival_forms(model, int(y[i])).T).amin()
        assert status != "undecided"
        assert values >= -1e-9 or status == "falsified"
        assert status != "verified" or values > 0


BALLS = {
    "ccp-1": lambda: pb.CCP(1, 3, 3, 5, dtype=F64),
    "ncp-2": lambda: pb.NCP(2, 3, 3, 4, dtype=F64),
    "ccp-3": lambda: pb.CCP(3, 3, 3, 4, "product", dtype=F64),
    "ncp-4": lambda: pb.NCP(4, 3, 3, 3, dtype=F64),
    "conv-4": lambda: pb.ConvCCP((1, 2, 2), 2, 3, 3, 3, dtype=F64),
}


@pytest.mark.parametrize("name", BALLS)
def test_decisions_and_intervals_over_small_balls_agree_with_brute_force(name):
    model = randomise(BALLS[name](), 1, 0.6)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, model.features, generator=generator, dtype=F64) * 2 - 1
    x[::3, 0] = 1.0
    r = torch.full_like(x, 0.35)
    r[1::2] = 0.6 * torch.rand(r[1::2].shape, generator=generator, dtype=F64)
    y, side = model(x).argmax(1), torch.ones(model.features, dtype=F64)
    found = pb.certify(model, x, y, r, norm="2", budget=ENOUGH)
    decided = 0
    for i, label in enumerate(y.tolist()):
        weights = rival_forms(model, label)
        points = Region.around(x[i], r[i], -side, side, "2").points(model, weights, 0, 2000)
        least = float((model(points).detach() @ weights.T).min())
        assert float(found.margin[i]) <= least + 1e-9
        if abs(least) > 0.01:
            decided += 1
            assert found.status[i] == ("verified" if least > 0 else "falsified")
    assert decided >= 8
    ranges = pb.output_bounds(model, x[:2], r[:2], norm="2", tolerance=0.08, budget=ENOUGH)
    for i in range(2):
        points = Region.around(x[i], r[i], -side, side, "2").points(model, torch.eye(3, dtype=F64), 0, 2000)
        low, high = (end.values for end in (model(points).detach().min(0), model(points).detach().max(0)))
        loose = 0.1 * (high - low) + 1e-9
        assert ((low - loose <= ranges.lower[i]) & (ranges.lower[i] <= low + 1e-9)).all()
        assert ((high - 1e-9 <= ranges.upper[i]) & (ranges.upper[i] <= high + loose)).all()


@settings(max_examples=examples(20))
@given(networks(), seeds, st.sampled_from([0.0, 0.01, 0.1, 0.3]))
def test_a_constant_radius_is_the_scalar_one(model, seed, eps):
    x, _, y = drawn(model, seed)
    scalar = pb.certify(model, x, y, eps, method="second")
    each = torch.full((1, *model.shape), eps, dtype=F64)
    for same in (torch.full((2,), eps, dtype=F64), each, each.expand(2, *model.shape)):
        found = pb.certify(model, x.reshape(2, *model.shape), y, same, method="second")
        assert found.status == scalar.status and torch.equal(found.margin, scalar.margin)


def test_points_that_sit_on_the_boundary_are_decided_exactly():
    # f = (x, -x): the margin at x is 2x; a box that ends at zero holds a tie, which is a counterexample.
    V, C = torch.ones(1, 1, 1, dtype=F64), torch.tensor([[1.0], [-1.0]], dtype=F64)
    model = pb.CCP.from_factors(V, C)
    x = torch.tensor([[0.5], [0.5], [0.25]], dtype=F64)
    result = pb.certify(model, x, [0, 0, 0], torch.tensor([0.5, 0.4999999999999999, 0.0], dtype=F64))
    assert result.status == ["falsified", "verified", "verified"]
    assert float(result.counterexample[0]) == 0.0


def test_misclassified_inputs_are_their_own_counterexamples():
    model = randomise(pb.CCP(4, 3, 3, 2, dtype=F64), 0, 1.0)
    x = torch.rand(6, 4, dtype=F64)
    wrong = (model(x).argmax(1) + 1) % 3
    for norm, method in METHODS:
        result = pb.certify(model, x, wrong, 0.01, norm=norm, method=method)
        assert result.status == ["falsified"] * 6 and set(result.stage) == {"clean"}
        assert all((a == b).all() for a, b in zip(result.counterexample, x, strict=True))


def test_second_order_is_tighter_than_all_it_is_compared_with_on_a_trained_network():
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    model = pb.paper_model("pn-4", shape=train.shape, seed=0)
    pb.fit(model, train, "paper", epochs=15, learning_rate=0.02, milestones=())
    x, y = test.x[:60], test.y[:60]
    methods = [method for norm, method in METHODS if norm == "inf"]
    found = {method: pb.certify(model, x, y, 0.05, method=method, budget=ENOUGH) for method in methods}
    verified = {method: result.count("verified") for method, result in found.items()}
    assert verified["auto"] >= verified["second"] >= verified["first"] >= verified["interval"] >= verified["lipschitz"]
    assert verified["second"] >= verified["crown"]
    assert found["auto"].count("undecided") == 0
    correct = torch.tensor([stage != "clean" for stage in found["auto"].stage])
    assert found["first"].margin[correct].mean() > found["interval"].margin[correct].mean()
    summary = found["auto"].summary()
    assert summary["verified"] + summary["falsified"] == 60
    assert summary["certified accuracy"] == summary["attacked accuracy"] <= summary["clean accuracy"]
    assert pb.certified_accuracy(model, test, 0.05, images=60, budget=ENOUGH) == summary["certified accuracy"]
    refuses("no inputs", pb.certified_accuracy, model, test, 0.05, images=0)


def test_counterexamples_lie_inside_where_floats_are_sparse():
    # f_0 - f_1 = x_0 - 1e6 + 1e-9, nearly: float64 numbers near 1e6 are 1.2e-10 apart.
    rows, bias = torch.tensor([[1.0, 0.0]], dtype=F64), torch.tensor([-1e6 + 1e-9, 0.0], dtype=F64)
    model = pb.CCP.from_factors([rows], torch.tensor([[1.0], [0.0]], dtype=F64), bias)
    x = torch.tensor([[1e6, 1.0]], dtype=F64)
    for eps in (1e-10, 1e-9, 1.1e-9, 2e6):
        found = pb.certify(model, x, [0], eps, norm="2", domain=None, budget=0.1)
        if found.status[0] == "falsified":
            r, far = torch.full((2,), eps, dtype=F64), torch.full((2,), 1e9, dtype=F64)
            assert Region.around(x[0], r, -far, far, "2").holds(found.counterexample[0])
    assert found.status == ["falsified"]


def test_features_that_matter_little_may_move_much():
    # f = (x_1 + x_2 / 1000, 0) at (0.5, 0): the second feature may move 300 times as far as the first.
    model = pb.CCP.from_factors(torch.tensor([[[1.0, 1e-3]]], dtype=F64), torch.tensor([[1.0], [0.0]], dtype=F64))
    x = torch.tensor([[0.5, 0.0]], dtype=F64)
    assert pb.certify(model, x, [0], torch.tensor([[0.1, 300.0]]), domain=None).status == ["verified"]
    assert pb.certify(model, x, [0], torch.tensor([[0.3, 300.0]]), domain=None).status == ["falsified"]
    assert pb.certify(model, x, [0], torch.tensor([[0.499, 0.0]]), domain=None).status == ["verified"]
    radius = pb.certified_radius(model, x, [0], domain=None, tolerance=1e-4)
    assert 0.499 <= float(radius.certified) <= 0.5 / 1.001 <= float(radius.attacked) <= 0.5


def test_accuracy_takes_them_too():
    model = randomise(pb.CCP(64, 4, 10, 2, shape=(1, 8, 8), dtype=F64), 0, 0.1)
    data = pb.data.load_digits("test")
    scalar = pb.certified_accuracy(model, data, 0.01, images=4)
    eps = torch.full((1, *data.shape), 0.01, dtype=F64)
    assert pb.certified_accuracy(model, data, eps, images=4) == scalar
    x = data.x[:4].double()
    assert pb.certified_accuracy(model, data, box=(x, x), images=4) >= scalar


# Radii.


def test_radius_brackets_the_nearest_counterexample():
    model = randomise(pb.CCP(3, 3, 2, 3, dtype=F64), 1, 0.8)
    x = torch.rand(5, 3, dtype=F64) - 0.5
    y = model(x).argmax(1)
    y[0] = 1 - y[0]
    radius = pb.certified_radius(model, x, y, tolerance=1e-3, budget=ENOUGH)
    assert radius.certified[0] == 0 and radius.attacked[0] == 0
    finite = torch.isfinite(radius.attacked)
    assert (radius.attacked - radius.certified)[finite].max() <= 2e-3 and (radius.certified <= radius.attacked).all()
    assert pb.certify(model, x, y, radius.certified, budget=ENOUGH).status[1:] == ["verified"] * 4


@settings(max_examples=examples(40))
@given(networks(3), seeds, st.sampled_from(["inf", "2"]))
def test_the_radius_is_never_above_an_attack(model, seed, norm):
    assume(model.classes > 1)
    x, _, y = drawn(model, seed)
    side = torch.ones(model.features, dtype=F64)
    radius = pb.certified_radius(model, x, y, norm=norm, tolerance=0.05, budget=0.1)
    assert (radius.certified <= radius.attacked).all()
    for i, (held, failed) in enumerate(zip(radius.certified.tolist(), radius.attacked.tolist(), strict=True)):
        weights = rival_forms(model, int(y[i]))
        region = Region.around(x[i], held * side, -side, side, norm)
        points = region.points(model, weights, seed)
        point = points[(model(points).detach() @ weights.T).amin(1).argmin()]
        assert not held or not region.holds(point) or min(exact_values(model, point, weights, weights[:, 0] * 0)) > 0
        if failed < torch.inf:
            beyond = failed * (1 + 1e-12)
            again = pb.certify(model, x[i : i + 1], y[i : i + 1], beyond, norm=norm, budget=0.0)
            assert again.status != ["verified"]


@given(st.lists(st.floats(0, 2.0), min_size=1, max_size=4), st.sampled_from([1e-17, 1e-16, 1e-3, 3.0]))
@example([0.1], 1e-17)
@example([0.0], 5e-324)
def test_it_ends_at_any_tolerance(truths: list[float], tolerance: float):
    truth = torch.tensor(truths, dtype=F64)
    rounds = 0

    def tried(rows: torch.Tensor, radii: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal rounds
        rounds += 1
        assert rounds < 5000
        return radii <= truth[rows], radii

    found = bisected(tried, len(truth), 1.0, tolerance)
    assert (found <= truth).all()
    near = torch.minimum(truth, torch.ones(1, dtype=F64))
    assert (near - found <= tolerance).all()


# Several processes.


def asked(images=70):
    model = pb.CCP(6, 4, 3, 3, seed=0, dtype=F64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    x = torch.rand(images, 6, generator=torch.Generator().manual_seed(1), dtype=F64) * 2 - 1
    return model, x, model(x).argmax(1).detach()


def assert_same(a, b):
    assert (a.status, a.stage, a.method, a.norm, a.proofs) == (b.status, b.stage, b.method, b.norm, b.proofs)
    for name in ("margin", "label", "rival", "eps"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    assert len(a.counterexample) == len(b.counterexample)
    for p, q in zip(a.counterexample, b.counterexample, strict=True):
        assert (p is None) == (q is None) and (p is None or torch.equal(p, q))


def test_workers_decide_the_same():
    model, x, y = asked()
    seen = []
    for options in (
        {"eps": torch.linspace(0.01, 0.6, len(x), dtype=F64), "keep": True},
        {"eps": 0.3, "norm": "2"},
        {"eps": 0.1, "method": "crown"},
    ):
        alone = pb.certify(model, x, y, **options)
        several = pb.certify(model, x, y, **options, workers=2, on_progress=lambda *row: seen.append(row))
        assert_same(alone, several)
    assert {"verified", "falsified"} <= set(pb.certify(model, x, y, torch.linspace(0.01, 0.6, len(x))).status)
    assert seen == [(done, 70, "") for done in (32, 64, 70)] * 3


def test_blocks_keep_the_sides_of_boxes_and_the_places_of_proofs():
    model, x, y = asked(40)
    lower, upper = x.clamp(max=0.9) - 0.05, x + 0.02
    lower, upper = lower.clamp(-1, 1), upper.clamp(-1, 1)
    found = pb.certify(model, x, y, box=(lower, upper), keep=True)
    assert torch.equal(found.box[0], lower) and torch.equal(found.box[1], upper) and found.eps is None
    assert {image for image, _ in found.proofs} == set(range(40))
    one = pb.certify(model, x[35:36], y[35:36], box=(lower[35:36], upper[35:36]), keep=True)
    assert one.status == found.status[35:36]
    assert {(35, rival) for _, rival in one.proofs} == {key for key in found.proofs if key[0] == 35}


# Refusals.


MODEL = pb.ConvCCP((1, 2, 3), 2, 3, 2, 3)
X = torch.zeros(5, 1, 2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(5, 3)}, "shape"),
        ({"x": torch.full_like(X, 2.0)}, "domain"),
        ({"x": X.numpy()}, "inputs must be floats"),
        ({"y": [0, 7, 0, 0, 0]}, "labels"),
        ({"eps": -0.1}, "eps"),
        ({"eps": torch.zeros(4)}, r"\(5,\)"),
        ({"eps": torch.zeros(2, 3)}, r"\(1, 1, 2, 3\) or \(5, 1, 2, 3\)"),
        ({"eps": None}, "either eps or box"),
        ({"box": (X, X)}, "either eps or box"),
        ({"eps": None, "box": (X, torch.full_like(X, torch.inf))}, "finite"),
        ({"eps": None, "box": (X, X), "norm": "2"}, "box"),
        ({"norm": "2", "method": "crown"}, "crown"),
        ({"method": "magic"}, "method must be one of"),
        ({"budget": -1.0}, "budget"),
        ({"domain": (1.0, -1.0)}, "domain"),
        *[({"workers": workers}, "workers must be a whole number") for workers in (0, -1, 1.5, True, None, "2")],
    ],
)
def test_what_is_refused(change, message):
    refuses(message, pb.certify, MODEL, **{"x": X, "y": [0] * 5, "eps": 0.1} | change)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "two"}, "norm must be"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_radii_that_are_refused(options, message):
    refuses(message, pb.certified_radius, MODEL, X, [0] * 5, **options)


def test_stacks_and_broken_weights_are_refused():
    refuses("one model", pb.certify, pb.CCP(4, 2, 3, 2, runs=2), torch.zeros(1, 4), [0], 0.1)
    model = pb.CCP(4, 2, 3, 2)
    model.V.data[0, 0, 0] = torch.nan
    refuses("finite", pb.certify, model, torch.zeros(1, 4), [0], 0.1)


def test_huge_weights_end_undecided_not_wrong():
    model = randomise(pb.CCP(4, 3, 3, 10, dtype=F64), 0, 1e60)
    result = pb.certify(model, torch.rand(3, 4, dtype=F64), [0, 1, 2], 0.1, budget=0.1)
    assert "verified" not in result.status
    # One class has no rival, and cannot be misclassified.
    one = randomise(pb.CCP(4, 3, 1, 10, dtype=F64), 0, 1e60)
    assert pb.certify(one, torch.rand(3, 4, dtype=F64), [0, 0, 0], 0.1, budget=0.1).count("falsified") == 0


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["inf", "2"])
def test_a_campaign_against_certificates_finds_nothing_wrong(norm):
    campaign = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "certify_soundness.py"))["campaign"]
    counts = campaign(cases=800, images=150, budget=0.005, seed=1000, norm=norm)
    assert "WRONG" not in counts
    assert counts["cases"] >= 800 and counts["verified"] > 300 and counts["falsified"] > 30
    blind = campaign(cases=300, images=60, budget=0.005, seed=1000, norm=norm, blind=True)
    assert "WRONG" not in blind and blind["undecided"] > counts["undecided"] * 0.4
