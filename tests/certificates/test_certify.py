"""Certificates hold: against samples, corners, exhaustive search and rational arithmetic."""

import itertools
import runpy
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from polybound.certificates.bounds.baselines import crown_bound, interval_bound, lipschitz_bound
from polybound.certificates.bounds.first_order import first_order, split_sum
from polybound.certificates.bounds.quadratic import dominating_diagonal, psd_deficit
from polybound.certificates.bounds.second_order import second_order
from polybound.certificates.input_sets import box_around, centre
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.proofs.exact import exact_logits

ULP = 2.0**-52
ENOUGH = 600.0
"""Seconds of branch and bound where all must be decided: far more than any machine needs for what is asked here."""
METHODS = ("auto", "second", "first", "crown", "interval", "lipschitz")


@st.composite
def small_networks(draw, max_features=4):
    kind = draw(st.sampled_from(["ccp", "ncp", "conv"]))
    if kind == "conv":
        return draw(convs())
    make = ccps if kind == "ccp" else ncps
    return draw(make(max_features=max_features, max_degree=draw(st.sampled_from([2, 4, 7, 10]))))


def points_of(lower, upper, seed, count=200):
    """Corners (all of them if there are few) and random points of a box."""
    generator = torch.Generator().manual_seed(seed)
    d = len(lower)
    if d <= 8:
        signs = torch.tensor(list(itertools.product([0.0, 1.0], repeat=d)), dtype=F64)
    else:
        signs = torch.randint(0, 2, (count, d), generator=generator).to(F64)
    inside = torch.rand(count, d, generator=generator, dtype=F64)
    # Clamped: lower + (upper - lower) may be the number next to upper.
    return (lower + (upper - lower) * torch.cat([signs, inside])).clamp(lower, upper)


def boxed(net, seed, eps):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, net.features, generator=generator, dtype=F64) * 2 - 1
    (lower, upper), _ = box_around(x, torch.tensor(eps, dtype=F64), (-1.0, 1.0))
    y = net(x).argmax(1)
    return x, y, lower, upper


def margins_of(net, y, points):
    """Margins of all rivals, for one label."""
    logits = net(points)
    return logits[:, y : y + 1] - logits


def slack_of_margins(net, y, lower, upper):
    """How far float64 can be off in a bound of each margin over boxes, (boxes, classes).

    It has eight equal parts (see `PreparedNetwork`), each D roundings of the sum of the absolute values of all terms.
    A margin that is computed at a point, in up to D roundings, is off by one part; a test that compares it with
    a bound needs no more than that.
    """
    slack = net.slack(torch.maximum(lower.abs(), upper.abs()))
    return slack + slack.gather(1, y.unsqueeze(1))


@settings(max_examples=examples(40))
@given(small_networks(), seeds, st.sampled_from([0.01, 0.1, 0.5]))
def test_expansions_enclose_the_margin_at_every_point(model, seed, eps):
    assume(model.classes > 1)
    net = PreparedNetwork(model)
    _, y, lower, upper = boxed(net, seed, eps)
    c, r = centre(lower, upper)
    w, constant = net.C[y].unsqueeze(1) - net.C, net.beta[y].unsqueeze(1) - net.beta
    first = first_order(net, c, r, w, constant)
    slack = slack_of_margins(net, y, lower, upper)
    # What `lower_first` and its like take off of a remainder for the rounding of its own sum.
    more, k = 1 + 4 * net.roundings * ULP, net.degree
    active = torch.nonzero((upper > lower).any(0)).squeeze(1)
    for i in range(len(y)):
        points = points_of(lower[i], upper[i], seed)
        u = torch.where(r[i] > 0, (points - c[i]) / r[i].clamp_min(1e-300), 0.0)
        actual = margins_of(net, int(y[i]), points)
        for j in range(net.classes):
            # The coefficients may be off by the slack. The test adds a part of it for each of: the margin at the
            # point; u; and the sum over features, whose terms add up to at most k times the size of the margin, and
            # which D, with its k times the number of features, covers.
            part = slack[i, j] / 8
            linear = first.g0[i, j] + u @ first.G[i, j]
            assert ((actual[:, j] - linear).abs() <= first.R[i, j] * more + 11 * part).all()
            second = second_order(net, c[i : i + 1], r[i : i + 1], w[i : i + 1, j], constant[i : i + 1, j], active)
            v = u[:, active]
            quadratic = second.g0[0] + v @ second.G[0] + ((v @ second.H[0]) * v).sum(1) / 2
            # The terms of a quadratic form add up to k times as much again: k more parts.
            assert ((actual[:, j] - quadratic).abs() <= second.R[0] * more + (11 + k) * part).all()
            H, R = second.absorbed()
            below = second.g0[0] + v @ second.G[0] + ((v @ H[0]) * v).sum(1) / 2 - R[0]
            # The absorbed remainder may be larger than the margin: its sum over pairs of features is rounded, too.
            pairs = (len(active) + 2) * ULP * H[0].abs().sum() / 2
            assert (actual[:, j] >= below - (11 + k) * part - pairs).all()
            # The gradient, by autograd, stays within its bounds.
            at = points.clone().requires_grad_()
            slope = torch.autograd.grad(margins_of(net, int(y[i]), at)[:, j].sum(), at)[0] * r[i]
            away = (slope[:, active] - second.G[0] - v @ second.H[0]).abs()
            # As for the quadratic form itself, times k for the derivative; so does `monotone`.
            assert (away <= second.rest[0] * more + k * 11 * part).all()


@settings(max_examples=examples(50))
@given(small_networks(), seeds, st.sampled_from([0.01, 0.1, 0.4]))
def test_every_bound_lies_below_every_value(model, seed, eps):
    assume(model.classes > 1)
    net = PreparedNetwork(model)
    _, y, lower, upper = boxed(net, seed, eps)
    c, r = centre(lower, upper)
    w, constant = net.C[y].unsqueeze(1) - net.C, net.beta[y].unsqueeze(1) - net.beta
    slack = slack_of_margins(net, y, lower, upper)
    least = torch.stack(
        [margins_of(net, int(y[i]), points_of(lower[i], upper[i], seed)).amin(0) for i in range(len(y))]
    )
    for bound in (crown_bound, interval_bound):
        assert (bound(net, c, r, w, constant, slack) <= least + slack / 8).all(), bound.__name__
    reach = (c.abs() + r) * (1 + 4 * ULP)
    assert (lipschitz_bound(net, c, r, reach, w, constant, slack, "inf") <= least + slack / 8).all()


@settings(max_examples=examples(50))
@given(small_networks(), seeds, st.sampled_from([0.02, 0.1, 0.3]), st.sampled_from(METHODS))
def test_verified_is_never_falsified_and_counterexamples_are_real(model, seed, eps, method):
    assume(model.classes > 1)
    net = PreparedNetwork(model)
    x, y, lower, upper = boxed(net, seed, eps)
    result = pb.certify(model, x, y, eps, method=method, budget=0.1)
    part = slack_of_margins(net, y, lower, upper) / 8
    for i, status in enumerate(result.status):
        least = margins_of(net, int(y[i]), points_of(lower[i], upper[i], seed, 500)).amin(0) + part[i]
        least[y[i]] = torch.inf
        assert result.margin[i] <= least.min()
        if status == "verified":
            assert least.min() > 0 and result.margin[i] > 0 and result.counterexample[i] is None
        if status == "falsified":
            point = result.counterexample[i].reshape(-1)
            for a, b in zip(point.tolist(), x[i].tolist(), strict=True):
                assert abs(Fraction(a) - Fraction(b)) <= Fraction(eps) and -1 <= a <= 1
            logits = exact_logits(model.factors().double(), point)
            assert logits[int(y[i])] <= logits[int(result.rival[i])]


@settings(max_examples=examples(30))
@given(st.integers(1, 6), st.integers(1, 3), st.integers(2, 5), seeds, st.sampled_from(["ccp", "ncp"]))
def test_small_inputs_are_always_decided_and_agree_with_exhaustive_search(features, rank, degree, seed, kind):
    make = pb.CCP if kind == "ccp" else pb.NCP
    model = randomise(make(features, rank, 3, degree, dtype=F64), seed, 0.7)
    net = PreparedNetwork(model)
    x, y, lower, upper = boxed(net, seed, 0.2)
    result = pb.certify(model, x, y, 0.2, budget=ENOUGH)
    part = slack_of_margins(net, y, lower, upper) / 8
    for i, status in enumerate(result.status):
        steps = {1: 2001, 2: 101, 3: 31, 4: 13, 5: 9, 6: 6}[features]
        axes = [torch.linspace(0, 1, steps, dtype=F64)] * features
        grid = lower[i] + (upper[i] - lower[i]) * torch.cartesian_prod(*axes).reshape(-1, features)
        values = margins_of(net, int(y[i]), grid)
        values[:, y[i]] = torch.inf
        assert status != "undecided"
        if (values < -part[i]).any():
            assert status == "falsified"
        if status == "verified":
            assert values.min() > 0


@given(small_networks(), seeds)
@settings(max_examples=examples(40))
def test_slack_covers_the_rounding_of_the_logits(model, seed):
    net = PreparedNetwork(model)
    x = torch.rand(1, net.features, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2 - 1
    exact = exact_logits(model.factors().double(), x[0])
    slack = net.slack(x.abs())[0]
    for value, truth, off in zip(net(x)[0].tolist(), exact, slack.tolist(), strict=True):
        assert abs(Fraction(value) - truth) <= Fraction(off) / 8  # one of the eight parts that slack is made of
    assert (slack <= 1e-9 * (1 + net.absolute(x.abs())[0])).all()


@given(seeds, st.floats(0, 0.7), st.sampled_from([(-1.0, 1.0), (-0.5, 0.25), None]))
def test_boxes_hold_the_ball_and_nothing_is_lost_at_their_sides(seed, eps, domain):
    low, high = domain or (-1.0, 1.0)
    x = low + (high - low) * torch.rand(1, 20, generator=torch.Generator().manual_seed(seed), dtype=F64)
    x = x.clamp(low, high)
    outer, inner = box_around(x, torch.tensor(eps, dtype=F64), domain)
    c, r = centre(*outer)
    for a, lo, hi, mid, rad, ilo, ihi in zip(*(t[0].tolist() for t in (x, *outer, c, r, *inner)), strict=True):
        true_low, true_high = Fraction(a) - Fraction(eps), Fraction(a) + Fraction(eps)
        if domain is not None:
            true_low, true_high = max(true_low, Fraction(low)), min(true_high, Fraction(high))
        assert Fraction(lo) <= true_low <= Fraction(ilo) <= Fraction(ihi) <= true_high <= Fraction(hi)
        assert Fraction(mid) - Fraction(rad) <= Fraction(lo) and Fraction(hi) <= Fraction(mid) + Fraction(rad)
        assert (rad == 0) == (lo == hi)


@given(seeds, st.integers(1, 6), st.integers(1, 8), st.sampled_from([1e-8, 1.0, 1e8]))
def test_a_dominating_diagonal_dominates(seed, units, features, scale):
    At = scale * torch.randn(features, units, generator=torch.Generator().manual_seed(seed), dtype=F64)
    mu = dominating_diagonal(At)
    assert (mu >= 0).all()
    gap = torch.linalg.eigvalsh(torch.diag(mu) - At @ At.T)
    # The matrix product rounds each of its entries, none of which is larger than mu.max(), by up to `units` units of
    # roundoff, which moves an eigenvalue by `features` times that; LAPACK is off by a few times `features` more.
    assert gap[0] >= -(units + 4) * features * ULP * float(mu.max())
    # The diagonal of what is positive semidefinite is not negative; the sum of squares is rounded.
    assert (mu * (1 + (units + 2) * ULP) >= At.square().sum(1)).all()
    # and is not far above what no scaling could beat on the diagonal
    assert mu.sum() <= features * torch.linalg.matrix_norm(At, 2) ** 2 * (1 + 1e-6) + 1e-300


def test_defect_refuses_what_is_indefinite():
    good = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=F64)
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=F64)
    assert 0 <= float(psd_deficit(good)) < 1e-12 and float(psd_deficit(bad)) == torch.inf
    assert psd_deficit(torch.stack([good, bad])).tolist()[1] == torch.inf


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12, 0.0])
def test_equal_boxes_are_expanded_as_different_ones(scale):
    model = pb.CCP(140, 5, 3, 3, seed=0, dtype=F64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    net = PreparedNetwork(model)
    x = torch.rand(1, 140, dtype=F64, generator=torch.Generator().manual_seed(0)).expand(3, -1).contiguous()
    r, active = torch.full_like(x, 0.1), torch.arange(140)
    w, constant = net.C - net.C.roll(1, 0), net.beta - net.beta.roll(1, 0)
    together = second_order(net, x, r, w, constant, active)
    for i in range(3):
        one = slice(i, i + 1)
        alone = second_order(net, x[one], r[one], w[one], constant[one], active)
        for name in ("g0", "G", "R", "rest", "H"):
            a, b = getattr(together, name)[i], getattr(alone, name)[0]
            size = float(b.abs().max()) + 1e-300
            assert float((a - b).abs().max()) <= 1e-12 * size


@pytest.mark.parametrize("kind", ["CCP", "NCP"])
def test_products_of_forms_bounded_together_are_bounds(kind):
    """The gradient of the margin by each product, and the margin, at random corners and points."""
    generator = torch.Generator().manual_seed(5)
    net = PreparedNetwork(getattr(pb, kind)(12, 6, 3, 5, seed=2, dtype=F64))
    c, active = torch.rand(2, 12, generator=generator, dtype=F64), torch.arange(12)
    r = torch.full_like(c, 0.2)
    w, constant = net.C[1:] - net.C[:2], net.beta[1:] - net.beta[:2]
    loose, tight = (second_order(net, c, r, w, constant, active, tight=tight) for tight in (False, True))
    assert torch.equal(loose.H, tight.H) and (tight.R <= loose.R).all() and (tight.R < loose.R).any()
    u = torch.cat(
        [torch.randint(0, 2, (400, 12), generator=generator) * 2.0 - 1.0, torch.rand(400, 12) * 2 - 1]
    ).double()
    for i in range(2):
        at = (c[i] + r[i] * u).requires_grad_()
        value = net(at) @ (torch.eye(3, dtype=F64)[i + 1] - torch.eye(3, dtype=F64)[i])
        slope = torch.autograd.grad(value.sum(), at)[0] * r[i]
        quadratic = tight.g0[i] + u @ tight.G[i] + ((u @ tight.H[i]) * u).sum(1) / 2
        assert ((value.detach() - quadratic).abs() <= tight.R[i] + 1e-12).all()
        assert ((slope - tight.G[i] - u @ tight.H[i]).abs() <= tight.rest[i] + 1e-12).all()
        H, R = tight.absorbed()
        below = tight.g0[i] + u @ tight.G[i] + ((u @ H[i]) * u).sum(1) / 2 - R[i]
        assert (value.detach() >= below - 1e-12).all()


@given(seeds, st.integers(1, 6))
def test_split_sum_is_a_bound_and_beats_both_its_ends(seed, units):
    generator = torch.Generator().manual_seed(seed)
    t, s = torch.randn(2, units, generator=generator, dtype=F64)
    weight = torch.rand(units, generator=generator, dtype=F64)
    product = (t * s).abs() * (1 + torch.rand(units, generator=generator, dtype=F64))
    norms = t.norm() * s.norm()
    bound = split_sum(weight, product, norms)
    # Both sides are sums of up to `units + 1` non-negative terms, with up to four roundings in each.
    off = 1 + 2 * (units + 5) * ULP
    assert (weight * (t * s).abs()).sum() <= bound * off
    assert bound <= min((weight * product).sum(), weight.max() * norms) * off


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
    for method in METHODS:
        result = pb.certify(model, x, wrong, 0.01, method=method)
        assert result.status == ["falsified"] * 6 and set(result.stage) == {"clean"}
        assert all((a == b).all() for a, b in zip(result.counterexample, x, strict=True))


def test_second_order_is_tighter_than_all_it_is_compared_with_on_a_trained_network():
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    model = pb.paper_model("pn-4", shape=train.shape, seed=0)
    pb.fit(model, train, "paper", epochs=15, learning_rate=0.02, milestones=())
    x, y = test.x[:60], test.y[:60]
    found = {method: pb.certify(model, x, y, 0.05, method=method, budget=ENOUGH) for method in METHODS}
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
    with pytest.raises(pb.PolyboundError, match="no inputs"):
        pb.certified_accuracy(model, test, 0.05, images=0)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, "shape"),
        ({"x": torch.full((2, 4), 2.0)}, "domain"),
        ({"x": torch.full((2, 4), torch.nan)}, "finite"),
        ({"y": [0]}, "label"),
        ({"y": [0, 7]}, "labels"),
        ({"eps": -0.1}, "eps"),
        ({"eps": torch.zeros(3)}, "eps"),
        ({"method": "magic"}, "method"),
        ({"budget": -1.0}, "budget"),
        ({"domain": (1.0, -1.0)}, "domain"),
    ],
)
def test_what_is_refused(change, message):
    arguments = {"x": torch.zeros(2, 4), "y": [0, 1], "eps": 0.1} | change
    model = pb.CCP(4, 2, 3, 2)
    with pytest.raises(pb.PolyboundError, match=message):
        pb.certify(model, **arguments)


def test_stacks_and_broken_weights_are_refused():
    with pytest.raises(pb.PolyboundError, match="one model"):
        pb.certify(pb.CCP(4, 2, 3, 2, runs=2), torch.zeros(1, 4), [0], 0.1)
    model = pb.CCP(4, 2, 3, 2)
    model.V.data[0, 0, 0] = torch.nan
    with pytest.raises(pb.PolyboundError, match="finite"):
        pb.certify(model, torch.zeros(1, 4), [0], 0.1)


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
    """Some hundred cases of bench/certify_soundness.py, always the same ones."""
    campaign = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "certify_soundness.py"))["campaign"]
    counts = campaign(cases=800, images=150, budget=0.005, seed=1000, norm=norm)
    assert "WRONG" not in counts
    assert counts["cases"] >= 800 and counts["verified"] > 300 and counts["falsified"] > 30
    blind = campaign(cases=300, images=60, budget=0.005, seed=1000, norm=norm, blind=True)
    assert "WRONG" not in blind and blind["undecided"] > counts["undecided"] * 0.4
