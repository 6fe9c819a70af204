"""Expansions and bounds hold at every point: over boxes and balls, as matrices and window by window."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import Region
from polybound.certificates import PreparedNetwork
from polybound.certificates.bounds.balls import Quadratic, least_linear, trust_region
from polybound.certificates.bounds.baselines import crown_bound, interval_bound, lipschitz_bound
from polybound.certificates.bounds.first_order import first_order, slopes_over, split_sum
from polybound.certificates.bounds.quadratic import dominating_diagonal, psd_deficit
from polybound.certificates.bounds.second_order import second_order
from polybound.certificates.bounds.slopes import BALL, CUBE
from polybound.certificates.input_sets import box_around, centre, input_set
from polybound.certificates.proofs.exact import exact_logits
from polybound.certificates.search.balls import Parts, best_cap, best_in_both
from polybound.models.windows import Windowed

ULP = 2.0**-52


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
            one = c[i : i + 1], r[i : i + 1], w[i : i + 1, j], constant[i : i + 1, j]
            loose = second_order(net, *one, active)
            for second in (loose, second_order(net, *one, active, loose=loose)):
                assert torch.equal(second.H, loose.H) and (second.R <= loose.R).all()
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
    points = [points_of(lower[i], upper[i], seed) for i in range(len(y))]
    least = torch.stack([margins_of(net, int(y[i]), points[i]).amin(0) for i in range(len(y))])
    for bound in (crown_bound, interval_bound):
        assert (bound(net, c, r, w, constant, slack) <= least + slack / 8).all(), bound.__name__
    reach = (c.abs() + r) * (1 + 4 * ULP)
    assert (lipschitz_bound(net, c, r, reach, w, constant, slack, "inf") <= least + slack / 8).all()


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
    generator = torch.Generator().manual_seed(seed)
    x = (low + (high - low) * torch.rand(1, 20, generator=generator, dtype=F64)).clamp(low, high)
    eps = eps * 10.0 ** torch.randint(-18, 1, (1, 20), generator=generator)
    outer, inner = box_around(x, eps.double(), domain)
    c, r = centre(*outer)
    for a, e, lo, hi, mid, rad, ilo, ihi in zip(*(t[0].tolist() for t in (x, eps, *outer, c, r, *inner)), strict=True):
        true_low, true_high = Fraction(a) - Fraction(e), Fraction(a) + Fraction(e)
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


def test_psd_deficit_refuses_what_is_indefinite():
    good = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=F64)
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=F64)
    assert 0 <= float(psd_deficit(good)) < 1e-12 and float(psd_deficit(bad)) == torch.inf
    assert psd_deficit(torch.stack([good, bad])).tolist()[1] == torch.inf


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


@settings(max_examples=examples(30))
@given(small_networks(), seeds, st.sampled_from([1e-9, 0.05, 1.0]))
def test_slopes_over_a_box_enclose_the_gradient_at_every_point(model, seed, eps):
    net = PreparedNetwork(model)
    _, _, lower, upper = boxed(net, seed, eps)
    lower[:, 0] = upper[:, 0]
    c, r = centre(lower, upper)
    slope, away = slopes_over(net, c, r, net.C[:1].expand(3, -1))
    slack = net.slack(torch.maximum(lower.abs(), upper.abs()))[:, 0]
    for i in range(3):
        at = points_of(lower[i], upper[i], seed, 40).requires_grad_()
        actual = torch.autograd.grad(net(at)[:, 0].sum(), at)[0] * r[i]
        # As `fix_monotone` has it; autograd's own rounding is another part of the same.
        off = away[i] * (1 + 4 * net.roundings * ULP) + 2 * net.degree * slack[i]
        assert ((actual - slope[i]).abs() <= off).all()


# Balls.


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
@given(small_networks(5), seeds, st.sampled_from([1e-3, 0.1, 1.0]))
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


@settings(max_examples=examples(70))
@given(seeds, st.integers(1, 5))
def test_points_are_brought_into_the_true_ball(seed, n):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, n, generator=generator, dtype=F64) * 2 - 1
    r = torch.tensor([0.0, 1e-12, 0.1, 0.7], dtype=F64)[torch.randint(0, 4, x.shape, generator=generator)]
    balls = input_set(PreparedNetwork(pb.CCP(n, 1, 2, 2, dtype=F64)), x, r, None, (-1.0, 1.0), "2")
    u = torch.randn(20, n, generator=generator, dtype=F64)
    u = u / u.norm(dim=1, keepdim=True)
    region = Region.around(x[0], r[0], -torch.ones(n), torch.ones(n), "2")
    for size in (0.5, 1.0, 1.0 + 2.0**-52, 1.0 + 2.0**-30, 3.0):
        for point in x + r * u * size:
            moved = balls.inside(torch.tensor([0]), point.unsqueeze(0))[0]
            assert region.holds(moved)
            if size <= 1.0 and bool((point.abs() <= 1).all()):
                assert float((moved - point).abs().max()) <= 2e-3 or bool((r == 1e-12).any())


@settings(max_examples=examples(70))
@given(seeds, st.integers(1, 5))
def test_no_cell_that_meets_the_ball_is_dropped(seed, n):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, n, generator=generator, dtype=F64) * 2 - 1
    r = torch.tensor([0.0, 0.1, 0.7], dtype=F64)[torch.randint(0, 3, x.shape, generator=generator)]
    balls = input_set(PreparedNetwork(pb.CCP(n, 1, 2, 2, dtype=F64)), x, r, None, (-1.0, 1.0), "2")
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
    region = Region.around(x[0], r[0], -far, far, "2")
    for low, high, gone in zip(lower, upper, dropped.tolist(), strict=True):
        assert not (gone and region.holds(x[0].clamp(low, high)))
    assert bool(dropped[3::4].all())


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
@given(small_networks(5), seeds, st.sampled_from([0.1, 0.6]))
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


# Convolutions window by window.


NETWORKS = [
    {"shape": (1, 9, 8), "channels": 2, "degree": 4, "kernel": 3, "pre": 3, "pool": (2, 3)},
    {"shape": (2, 11, 6), "channels": 3, "degree": 5, "kernel": 3, "pool": (1, 3)},
    {"shape": (2, 13), "channels": 3, "degree": 3, "kernel": 5, "pre": 3, "pool": (1, 3)},
    {"shape": (1, 4, 4, 5), "channels": 2, "degree": 3, "kernel": 3, "pool": (2,)},
    {"shape": (1, 3, 7), "channels": 2, "degree": 2, "kernel": 5},
]


def both(config):
    model = pb.ConvCCP(classes=3, **config, seed=0, dtype=F64)
    nets = PreparedNetwork(model, by_windows=True), PreparedNetwork(model, by_windows=False)
    assert all(isinstance(A, Windowed) for A in nets[0].A) and not any(isinstance(A, Windowed) for A in nets[1].A)
    return model, *nets


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: "x".join(map(str, config["shape"])))
def test_maps_window_by_window_are_the_matrices(config):
    model, net, full = both(config)
    x = torch.rand(4, model.features, dtype=F64) * 2 - 1
    same(net(x), model(x.reshape(4, *model.shape)).detach())
    same(net.slack(x.abs()), full.slack(x.abs()))
    for A, absolute, At in zip(net.A, net.absolute_A, full.At, strict=True):
        same(A.matrix(), At.T)
        same(absolute.matrix(), At.T.abs())
        y = torch.randn(2, 3, A.outputs, dtype=F64)
        same(A.adjoint(y), y @ At.T)
        assert A(x[:0]).shape == (0, A.outputs) and A.adjoint(y[:0]).shape == (0, 3, model.features)
        same(A.gram(), At @ At.T)
    for mu, At in zip(net.stretch, full.At, strict=True):
        # LAPACK's eigenvalues are off by less than this.
        assert torch.linalg.eigvalsh(torch.diag(mu) - At @ At.T)[0] >= -1e-12 * float(mu.max())
    for top, At in zip(net.norms_A, full.At, strict=True):
        assert torch.linalg.matrix_norm(At, 2) <= top * (1 + 1e-12)


@pytest.mark.parametrize("region", [CUBE, BALL], ids=["cube", "ball"])
@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: "x".join(map(str, config["shape"])))
def test_expansions_window_by_window_are_those_of_matrices(config, region):
    model, net, full = both(config)
    # The diagonals and norms are found by different searches; here they shall be the same.
    net.__dict__.update(stretch=full.stretch, norms_A=full.norms_A)
    x = torch.rand(3, model.features, dtype=F64) * 2 - 1
    r = torch.rand_like(x) * 0.1
    r[:, ::5] = 0.0
    active = torch.nonzero((r > 0).any(0)).squeeze(1)
    y = full(x).argmax(1)
    w, constant = full.C[y].unsqueeze(1) - full.C, full.beta[y].unsqueeze(1) - full.beta
    for slopes in (False, True):
        a, b = (first_order(n, x, r, w, constant, slopes=slopes, region=region) for n in (net, full))
        for name in ("g0", "G", "R"):
            same(getattr(a, name), getattr(b, name))
    a, b = (second_order(n, x, r, w[:, 1], constant[:, 1], active, region=region) for n in (net, full))
    if region is CUBE:
        tight = (second_order(n, x, r, w[:, 1], constant[:, 1], active, loose=s) for n, s in ((net, a), (full, b)))
        a, b = tight
    for name in ("g0", "G", "H", "R", "rest"):
        same(getattr(a, name), getattr(b, name))
    for ours, theirs in zip(a.absorbed(), b.absorbed(), strict=True):
        # The last is a rounding's bound, and tiny.
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_windows_are_taken_where_they_are_smaller():
    large = pb.ConvCCP((1, 20, 20), 2, 3, 2, 3, seed=0)
    small = pb.ConvCCP((1, 4, 4), 2, 3, 2, 3, pre=3, seed=0)
    assert isinstance(PreparedNetwork(large).A[0], Windowed) and not isinstance(PreparedNetwork(small).A[0], Windowed)
