"""Certificates over l_2 balls: against spheres of samples, gradient steps and rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.ball_search import in_ball, points_in_ball
from helpers.box_search import exact_values
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from polybound.certificates.bounds.balls import Quadratic, least_linear, trust_region
from polybound.certificates.bounds.first_order import first_order
from polybound.certificates.bounds.second_order import second_order
from polybound.certificates.bounds.slopes import BALL
from polybound.certificates.input_sets import input_set
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.balls import Parts, best_cap, best_in_both

SIZES = (0.0, 1e-160, 1e-12, 0.02, 0.1, 0.5, 1.5)
ENOUGH = 600.0


def networks(max_features=4):
    return st.one_of(
        ccps(max_features=max_features, max_degree=6), ncps(max_features=max_features, max_degree=6), convs()
    )


def rivals(model, label):
    weights = torch.eye(model.classes, dtype=F64)[label] - torch.eye(model.classes, dtype=F64)
    return torch.cat([weights[:label], weights[label + 1 :]])


def judge(model, x, r, label, least, most, found, i, seed):
    """A certificate agrees with all that is found by brute force."""
    weights = rivals(model, label)
    if found.status[i] == "falsified":
        point = found.counterexample[i].reshape(-1)
        assert in_ball(point, x, r, least, most)
        weights = torch.zeros(1, model.classes, dtype=F64)
        weights[0, label], weights[0, found.rival[i]] = 1.0, -1.0
        assert exact_values(model, point, weights, torch.zeros(1))[0] <= 0
        return
    points = points_in_ball(model, x, r, least, most, weights, seed)
    order = (model(points).detach() @ weights.T).amin(1).argsort()
    for index in order[:3].tolist():
        if in_ball(points[index], x, r, least, most):
            exact = min(exact_values(model, points[index], weights, weights[:, 0] * 0))
            assert found.status[i] != "verified" or exact > 0
            margin = float(found.margin[i])
            assert margin == -torch.inf or exact >= Fraction(margin)


def drawn(model, seed, images=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    # Many inputs lie on the domain's sides.
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.3, x.sign(), x)
    radii = torch.tensor(SIZES, dtype=F64)[torch.randint(0, len(SIZES), x.shape, generator=generator)]
    return x, radii, model(x).argmax(1)


@settings(max_examples=examples(40))
@given(networks(), seeds, st.sampled_from([*SIZES, None]), st.booleans(), st.sampled_from(["auto", "second", "first"]))
def test_never_contradicted(model, seed, eps, bounded, method):
    assume(model.classes > 1)
    x, radii, y = drawn(model, seed)
    least = torch.full((model.features,), -1.0 if bounded else -1e9, dtype=F64)
    domain = (-1.0, 1.0) if bounded else None
    asked = radii if eps is None else eps
    r = radii if eps is None else torch.full_like(x, eps)
    found = pb.certify(model, x, y, asked, norm="2", domain=domain, method=method, budget=0.1)
    assert found.norm == "2"
    for i in range(len(x)):
        judge(model, x[i], r[i], int(y[i]), least, -least, found, i, seed)


@settings(max_examples=examples(50))
@given(networks(), seeds, st.sampled_from([1e-12, 0.02, 0.5]), st.booleans())
def test_the_lipschitz_certificate(model, seed, eps, bounded):
    assume(model.classes > 1)
    x, _, y = drawn(model, seed)
    least = torch.full((model.features,), -1.0 if bounded else -1e9, dtype=F64)
    domain = (-1.0, 1.0) if bounded else None
    found = pb.certify(model, x, y, eps, norm="2", domain=domain, method="lipschitz")
    for i in range(len(x)):
        judge(model, x[i], torch.full_like(x[i], eps), int(y[i]), least, -least, found, i, seed)


@pytest.mark.parametrize("features", [2, 5, 120])
@pytest.mark.parametrize("seed", range(4))
def test_a_quadratic_has_no_gap(features, seed):
    model = randomise(pb.CCP(features, 3, 2, 2, dtype=F64), seed, 0.5)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, features, generator=generator, dtype=F64) * 2 - 1
    y = model(x).argmax(1)
    r = torch.rand(1, features, generator=generator, dtype=F64) * 0.3

    def margin(u):
        logits = model(x + r * u.unsqueeze(0))[0]
        return logits[y[0]] - logits[1 - y[0]]

    zero = torch.zeros(features, dtype=F64)
    G = torch.autograd.functional.jacobian(margin, zero)
    values, vectors = torch.linalg.eigh(torch.autograd.functional.hessian(margin, zero))
    g = vectors.T @ G
    # The dual of the trust-region problem is concave in its one multiplier: golden section finds its maximum.
    low, high = max(0.0, -float(values[0])) + 1e-12, max(0.0, -float(values[0])) + float(G.norm()) + 1.0

    def dual(lam):
        return -lam / 2 - float((g.square() / (values + lam)).sum()) / 2

    for _ in range(200):
        a, b = low + (high - low) * 0.382, low + (high - low) * 0.618
        low, high = (low, b) if dual(a) > dual(b) else (a, high)
    truth = float(margin(zero).detach()) + dual((low + high) / 2)
    # One bound for the rival: the least margin is the least value of its quadratic.
    net = PreparedNetwork(model)
    w, constant = (net.C[y] - net.C[1 - y]), (net.beta[y] - net.beta[1 - y])
    second = second_order(net, x, r, w, constant, torch.arange(features), region=BALL)
    one = torch.ones_like(x)
    lower, _, _ = trust_region(net, second, second.H, second.R, torch.zeros(1), (-one, one))
    size = float(G.norm() + values.abs().max())
    assert truth - 3e-3 * size < float(lower) <= truth + 1e-9 * size


@settings(max_examples=examples(70))
@given(seeds, st.integers(1, 6), st.sampled_from([1e-200, 1.0, 1e100]))
def test_linear_forms_over_a_ball_within_limits(seed, n, scale):
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(n, generator=generator, dtype=F64) * scale
    low, high = (torch.rand(n, generator=generator, dtype=F64) ** 2 for _ in range(2))
    low = torch.where(torch.rand(n, generator=generator) < 0.3, 0.0, -low)
    value, u = least_linear(p, (low, high))
    assert bool((u >= low).all() and (u <= high).all()) and float(u.norm()) <= 1 + 1e-9
    assert -float(p @ u) <= float(value) <= -float(p @ u) + 1e-6 * scale + 1e-200
    z = torch.randn(500, n, generator=generator, dtype=F64) * 2
    for _ in range(30):
        z = torch.maximum(torch.minimum(z / z.norm(dim=1, keepdim=True).clamp_min(1.0), high), low)
    assert bool((-(z @ p) <= value + 1e-12 * scale).all())


@settings(max_examples=examples(30))
@given(networks(5), seeds, st.sampled_from([1e-3, 0.1, 1.0]))
def test_expansions_hold_over_the_ball(model, seed, eps):
    net = PreparedNetwork(model)
    generator = torch.Generator().manual_seed(seed)
    c = torch.rand(1, net.features, generator=generator, dtype=F64) * 2 - 1
    r = eps * torch.rand(1, net.features, generator=generator, dtype=F64)
    r[:, 0] = eps
    u = torch.randn(300, net.features, generator=generator, dtype=F64)
    u = u / u.norm(dim=1, keepdim=True)
    w, constant = net.C[:1], net.beta[:1]
    values = net(c + r * u)[:, 0]
    slack = float(net.slack(c.abs() + r)[0, 0])
    for slopes in (False, True):
        first = first_order(net, c, r, w.unsqueeze(0), constant.unsqueeze(0), slopes=slopes, region=BALL)
        assert bool(((values - first.g0 - u @ first.G[0, 0]).abs() <= first.R + slack).all())
    second = second_order(net, c, r, w, constant, torch.arange(net.features), region=BALL)
    bent = ((u @ second.H[0]) * u).sum(1) / 2
    rest = values - second.g0 - u @ second.G[0]
    assert bool(((rest - bent).abs() <= second.R + slack).all())
    H, R = second.absorbed()
    assert bool((rest >= ((u @ H[0]) * u).sum(1) / 2 - R - slack).all())


@settings(max_examples=examples(24), deadline=None)
@given(networks(), seeds, st.booleans())
def test_the_radius_is_never_above_an_attack(model, seed, scaled):
    assume(model.classes > 1)
    x, _, y = drawn(model, seed)
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(model.features, generator=generator, dtype=F64) if scaled else None
    radius = pb.certified_radius(model, x, y, norm="2", scale=scale, tolerance=0.05, budget=0.1)
    assert bool((radius.certified <= radius.attacked).all())
    side = torch.ones(model.features, dtype=F64)
    for i, certified in enumerate(radius.certified.tolist()):
        r = certified * (side if scale is None else scale)
        points = points_in_ball(model, x[i], r, -side, side, rivals(model, int(y[i])), seed)
        worst = (model(points).detach() @ rivals(model, int(y[i])).T).amin(1)
        point = points[worst.argmin()]
        values = exact_values(model, point, rivals(model, int(y[i])), side[:0].new_zeros(model.classes - 1))
        assert not certified or not in_ball(point, x[i], r, -side, side) or min(values) > 0


def test_a_ball_is_easier_than_its_box_and_harder_than_the_box_within():
    model = randomise(pb.CCP(4, 4, 3, 3, dtype=F64), 1, 0.5)
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(0), dtype=F64) * 2 - 1
    y = model(x).argmax(1)
    statuses = {
        name: pb.certify(model, x, y, eps, norm=norm, budget=ENOUGH).status
        for name, eps, norm in (("box", 0.3, "inf"), ("ball", 0.3, "2"), ("within", 0.15, "inf"))
    }
    assert all("undecided" not in found for found in statuses.values())
    for box, ball, within in zip(*(statuses[name] for name in ("box", "ball", "within")), strict=True):
        assert not (box == "verified" and ball == "falsified") and not (ball == "verified" and within == "falsified")
    assert len(set(statuses["ball"])) == 2


def test_counterexamples_lie_inside_where_floats_are_sparse():
    # f_0 - f_1 = x_0 - 1e6 + 1e-9, nearly: float64 numbers near 1e6 are 1.2e-10 apart.
    rows, bias = torch.tensor([[1.0, 0.0]], dtype=F64), torch.tensor([-1e6 + 1e-9, 0.0], dtype=F64)
    model = pb.CCP.from_factors([rows], torch.tensor([[1.0], [0.0]], dtype=F64), bias)
    x = torch.tensor([[1e6, 1.0]], dtype=F64)
    for eps in (1e-10, 1e-9, 1.1e-9, 2e6):
        found = pb.certify(model, x, [0], eps, norm="2", domain=None, budget=0.1)
        if found.status[0] == "falsified":
            r, far = torch.full((2,), eps, dtype=F64), torch.full((2,), 1e9, dtype=F64)
            assert in_ball(found.counterexample[0], x[0], r, -far, far)
    assert found.status == ["falsified"]


def balls_of(x, r):
    return input_set(PreparedNetwork(pb.CCP(x.shape[1], 1, 2, 2, dtype=F64)), x, r, None, (-1.0, 1.0), "2")


@settings(max_examples=examples(70))
@given(seeds, st.integers(1, 5))
def test_points_are_brought_into_the_true_ball(seed, n):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, n, generator=generator, dtype=F64) * 2 - 1
    r = torch.tensor([0.0, 1e-12, 0.1, 0.7], dtype=F64)[torch.randint(0, 4, x.shape, generator=generator)]
    balls = balls_of(x, r)
    u = torch.randn(20, n, generator=generator, dtype=F64)
    u = u / u.norm(dim=1, keepdim=True)
    for size in (0.5, 1.0, 1.0 + 2.0**-52, 1.0 + 2.0**-30, 3.0):
        for point in x + r * u * size:
            moved = balls.inside(torch.tensor([0]), point.unsqueeze(0))[0]
            assert in_ball(moved, x[0], r[0], -torch.ones(n), torch.ones(n))
            if size <= 1.0 and bool((point.abs() <= 1).all()):
                assert float((moved - point).abs().max()) <= 2e-3 or bool((r == 1e-12).any())


@settings(max_examples=examples(70))
@given(seeds, st.integers(1, 5))
def test_no_cell_that_meets_the_ball_is_dropped(seed, n):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, n, generator=generator, dtype=F64) * 2 - 1
    r = torch.tensor([0.0, 0.1, 0.7], dtype=F64)[torch.randint(0, 3, x.shape, generator=generator)]
    balls = balls_of(x, r)
    assume(bool(r.any()))
    # Boxes with their nearest corner on the sphere, a little inside and outside of it.
    u = torch.randn(60, n, generator=generator, dtype=F64) * (r > 0)
    sizes = torch.tensor([0.8, 1 - 1e-15, 1 + 1e-15, 1.2], dtype=F64).repeat(15)
    u = u / u.norm(dim=1, keepdim=True) * sizes.unsqueeze(1)
    corner = x + r * u
    lower, upper = torch.where(u < 0, corner - 0.5, corner), torch.where(u < 0, corner, corner + 0.5)
    lower, upper = torch.where(r == 0, x, lower), torch.where(r == 0, x, upper)
    dropped = balls.outside(torch.zeros(60, dtype=torch.int64), lower, upper)
    far = torch.full((n,), 9.0, dtype=F64)
    for low, high, gone in zip(lower, upper, dropped.tolist(), strict=True):
        assert not (gone and in_ball(x[0].clamp(low, high), x[0], r[0], -far, far))
    assert bool(dropped[3::4].all())


def test_degenerate_radii():
    model = randomise(pb.CCP(3, 3, 3, 3, dtype=F64), 0, 0.5)
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = model(x).argmax(1)
    assert pb.certify(model, x, y, 0.0, norm="2").status == ["verified"] * 4
    assert pb.certify(model, x, (y + 1) % 3, 0.0, norm=2).stage == ["clean"] * 4
    still = torch.tensor([[0.0, 0.5, 0.0]], dtype=F64)
    ball, box = (pb.certify(model, x, y, still, norm=norm).status for norm in ("2", "inf"))
    assert ball == box  # an interval is both
    assert len(pb.certify(model, x[:0], y[:0], 0.1, norm="2")) == 0


def test_what_is_refused():
    model = randomise(pb.CCP(3, 3, 3, 3, dtype=F64), 0, 0.5)
    x = torch.zeros(1, 3, dtype=F64)
    for options, words in (
        ({"norm": "1", "eps": 0.1}, "norm must be"),
        ({"norm": 3, "eps": 0.1}, "norm must be"),
        ({"norm": "2", "box": (x, x)}, "box"),
        ({"norm": "2", "eps": 0.1, "method": "crown"}, "crown"),
        ({"norm": "2", "eps": -0.1}, "eps"),
    ):
        with pytest.raises(pb.PolyboundError, match=words):
            pb.certify(model, x, [0], **options)
    with pytest.raises(pb.PolyboundError, match="norm must be"):
        pb.certified_radius(model, x, [0], norm="two")


def test_accuracy_over_balls():
    data = pb.data.load_digits("test")
    model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    small, large = (pb.certified_accuracy(model, data, eps, images=8, norm="2", budget=0.1) for eps in (1e-4, 5.0))
    assert large <= small


@settings(max_examples=examples(70))
@given(seeds, st.integers(1, 5))
def test_a_cap_lies_in_the_ball_that_holds_it(seed, n):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, n, generator=generator, dtype=F64) * 10.0 ** (seed % 7)
    r = torch.tensor([0.0, 1e-12, 0.1, 0.7], dtype=F64)[torch.randint(0, 4, x.shape, generator=generator)]
    parts = Parts.whole(x, r)
    for _ in range(3):
        d = torch.randn(1, n, generator=generator, dtype=F64)
        d = d / d.norm() * (1 + 0.1 * float(torch.rand(1, generator=generator)) - 0.05)
        s = torch.rand(1, generator=generator, dtype=F64) * 0.99
        smaller = parts.capped(d, s)
        if not float(smaller.rho) < float(parts.rho):
            return  # nothing was gained, and nobody would use it
        # Points of the cap, many of them on its rim, exactly in the old ball: (point - c) / r has length 1 at most.
        u = torch.randn(200, n, generator=generator, dtype=F64)
        u = u - (u @ d[0]).unsqueeze(1) * d / float(d.square().sum())
        height = s / d.square().sum()
        rim = (1 - float(s * height)) ** 0.5 if float(s * height) < 1 else 0.0
        u = height * d + rim * u / u.norm(dim=1, keepdim=True).clamp_min(1e-300)
        rows = zip(*(t[0].tolist() for t in (parts.c, parts.r, smaller.c, smaller.r)), strict=True)
        sides = [tuple(map(Fraction, row)) for row in rows]
        for point in u.tolist():
            v = [Fraction(value) for value in point]
            above = sum(a * Fraction(b) for a, b in zip(v, d[0].tolist(), strict=True)) >= float(s)
            if above and sum(a * a for a in v) <= 1:
                away = [(c + old * a - other, new) for a, (c, old, other, new) in zip(v, sides, strict=True)]
                assert all(new > 0 or gap == 0 for gap, new in away)
                assert sum((gap / new) ** 2 for gap, new in away if new) <= 1
        parts = smaller


@settings(max_examples=examples(24))
@given(networks(5), seeds, st.sampled_from([0.1, 0.6]))
def test_the_whole_ball_as_a_second_constraint(model, seed, eps):
    net = PreparedNetwork(model)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, net.features, generator=generator, dtype=F64) * 2 - 1
    r = eps * (0.2 + torch.rand(1, net.features, generator=generator, dtype=F64))
    d = torch.randn(1, net.features, generator=generator, dtype=F64)
    parts = Parts.whole(x, r).capped(d / d.norm(), torch.tensor([0.6], dtype=F64))
    second = second_order(net, parts.c, parts.r, net.C[:1], net.beta[:1], torch.arange(net.features), region=BALL)
    slack = net.slack(parts.c.abs() + parts.r)[:, 0]
    one = torch.ones_like(x)
    low, high = parts.limits((x - 9, x + 9))
    assert bool((low == -1).all() and (high == 1).all())
    u = torch.randn(400, net.features, generator=generator, dtype=F64)
    u = u / u.norm(dim=1, keepdim=True)
    points = torch.cat([x + r * u, x + r * u * torch.rand(400, 1, generator=generator, dtype=F64)])
    inside = ((points - parts.c) / parts.r).norm(dim=1) <= 1
    values = net(points[inside])[:, 0]
    for problem in (Quadratic.of(second, second.H, second.R, slack), Quadratic.of(second, *second.absorbed(), slack)):
        bound, _, nu = best_in_both(net, problem, parts, (-one, one))
        assert float(nu) >= 0 and bool((values >= bound - slack).all())
        cap = best_cap(net, parts.in_both(problem, nu), d, bound + 0.1 * bound.abs(), (-one, one))
        if float(cap["s"]) > 0:
            left = ((points[inside] - parts.c) / parts.r) @ cap["d"][0] <= float(cap["s"])
            assert bool((values[left] >= float(bound + 0.1 * bound.abs()) - float(slack)).all())
