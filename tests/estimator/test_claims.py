"""What the estimators claim in the user's units holds: scaling in rational numbers, predictions at points of boxes."""

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.profiles import examples
from polybound.estimator import InputScaling, TargetScaling

F = Fraction
reals = st.floats(-1e9, 1e9)
sizes = st.floats(1e-12, 1e12)


# Scaling, against rational arithmetic


@given(reals, sizes, reals, st.floats(0, 1e10), st.floats(0, 1))
def test_boxes_contain_the_scaled_inputs_in_real_numbers_and_as_computed(mean, std, x, eps, part):
    scaling = InputScaling(np.array([mean]), np.array([std]), 1.0)
    (lower,), (upper,) = (side[0] for side in scaling.box(np.array([[x]]), np.array([[eps]])))
    assert -1 <= lower <= upper <= 1
    width = F(float(scaling.width[0]))
    inside = [F(x) - F(eps), F(x) + F(eps), F(x) + (2 * F(part) - 1) * F(eps)]
    for point in inside:
        u = min(max((point - F(mean)) / width, F(-1)), F(1))
        assert F(float(lower)) <= u <= F(float(upper))
    # The float64 numbers next to the ends, those of them that are inside.
    for end in inside:
        near = float(end)
        for number in (near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf)):
            if abs(F(float(number)) - F(x)) <= F(eps):
                assert lower <= scaling(np.array([[number]]))[0, 0] <= upper


@given(reals, sizes, st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1))
def test_targets_are_scaled_back_outwards(mean, std, low, wide, part):
    scaling = TargetScaling(np.array([mean]), np.array([std]))
    high = low + wide
    (lower,), (upper,) = scaling.outwards(np.array([low]), np.array([high]))
    for f in (low, high, min(max(low + part * wide, low), high)):
        assert F(float(lower)) <= F(mean) + F(std) * F(f) <= F(float(upper))
        assert lower <= scaling(np.array([f]))[0] <= upper


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-300, 1e-8, 1.0, 1e8, 1e300]), st.floats(-1e3, 1e3))
def test_scaling_of_wild_data(seed, unit, shift):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(20, 2)) + shift) * unit
    weight = rng.integers(1, 4, 20).astype(float)
    scaling = InputScaling.of(X, weight)
    repeated = np.repeat(X, weight.astype(int), 0) / unit
    assert np.allclose(scaling.mean / unit, repeated.mean(0)) and np.allclose(scaling.std / unit, repeated.std(0))
    u = scaling(X)
    assert np.isfinite(u).all() and (np.abs(u) <= 1).all()
    halves = InputScaling.of(X[:8], weight[:8]).joined(InputScaling.of(X[8:], weight[8:]))
    assert np.allclose(halves.mean / unit, scaling.mean / unit) and np.allclose(halves.std / unit, scaling.std / unit)


def test_infinite_radii_and_inputs_far_outside():
    scaling = InputScaling(np.array([0.0, 5.0]), np.array([1.0, 0.0]), 1.0)
    lower, upper = scaling.box(np.array([[1e308, 7.0]]), np.array([[np.inf, np.inf]]))
    assert lower.tolist() == [[-1.0, 0.0]] and upper.tolist() == [[1.0, 0.0]]
    assert scaling(np.array([[1e308, -1e308]])).tolist() == [[1.0, 0.0]]


# Predictions at points of boxes


@st.composite
def tables(draw, regression=False):
    """A small data set in units of its own, some radii, and a network that is trained on it a little."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(8, 24)), draw(st.integers(1, 4))
    units = 10.0 ** rng.integers(-9, 10, d)
    shift = units * 10.0 ** rng.integers(-2, 7, d) * rng.normal(size=d)
    plain = rng.normal(size=(n, d)) if draw(st.booleans()) else rng.integers(-2, 3, (n, d)).astype(float)
    options = {
        "degree": draw(st.integers(1, 4)),
        "rank": draw(st.integers(1, 4)),
        "form": draw(st.sampled_from(["residual", "product", "nested"])),
        "learning_rate": draw(st.sampled_from([0.01, 0.1])),
        "epochs": draw(st.integers(1, 4)),
        "random_state": int(rng.integers(2**31)),
    }
    eps = units * draw(st.sampled_from([0.0, 1e-12, 1e-3, 0.1, 0.5])) * rng.random(d)
    if regression:
        scale = 10.0 ** rng.integers(-9, 10)
        y = scale * (plain[:, 0] ** 2 + plain.sum(1) + 10.0 ** rng.integers(-2, 7) * rng.normal())
    else:
        y = rng.permutation(np.arange(n) % draw(st.integers(2, 3)))
    return plain * units + shift, y, eps, options, rng


def points_of(x, eps, rng, count=30):
    """Corners and random points of `[x - eps, x + eps]` that are float64 numbers and not outside."""
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=len(x))))
    points = x + np.vstack([corners, rng.uniform(-1, 1, (count, len(x)))]) * eps
    for _ in range(3):  # x + eps may have been rounded outwards
        beyond = np.array(
            [[abs(F(p) - F(c)) > F(e) for p, c, e in zip(point, x, eps, strict=True)] for point in points]
        )
        points = np.where(beyond, np.nextafter(points, x), points)
    return np.where(beyond, x, points)


def check_classifier(table):
    X, y, eps, options, rng = table
    model = pb.PolynomialClassifier(**options).fit(X, y)
    X, y = X[:3], model.predict(X[:3])
    found = model.certify(X, y, eps, budget=0.05)
    radii = model.certified_radius(X[:1], tolerance=0.02, budget=0.02)
    boxes = [(x, eps, label) for x, label, sure in zip(X, y, found.verified, strict=True) if sure]
    boxes += [(X[0], radii[0], y[0])] if np.isfinite(radii).all() else []
    for x, radius, label in boxes:
        assert (model.predict(points_of(x, radius, rng)) == label).all()
    for row in np.flatnonzero(found.status == "falsified"):
        point = found.counterexample[row]
        assert model.predict(point[None])[0] != y[row]
        assert all(abs(F(p) - F(c)) <= F(e) for p, c, e in zip(point, X[row], eps, strict=True))
    return found.verified.any()


def check_regressor(table):
    X, y, eps, options, rng = table
    model = pb.PolynomialRegressor(**options).fit(X, y)
    found = model.predict_interval(X[:2], eps, budget=0.05)
    for x, lower, upper in zip(X[:2], found.lower, found.upper, strict=True):
        predictions = model.predict(points_of(x, eps, rng))
        assert (predictions >= lower).all() and (predictions <= upper).all()
    assert (found.lower <= found.lowest).all() and (found.highest <= found.upper).all()


@settings(max_examples=examples(50))
@given(tables(), tables(regression=True))
def test_claims_hold_at_points_of_their_boxes(table, regression):
    check_classifier(table)
    check_regressor(regression)


def test_a_claim_that_is_too_large_is_noticed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int)
    model = pb.PolynomialClassifier(epochs=20, learning_rate=0.03, random_state=0).fit(X, y)
    radii = model.certified_radius(X, tolerance=0.005)
    wrong = [
        (model.predict(points_of(x, 1.2 * radius, rng)) != label).any()
        for x, radius, label in zip(X, radii, model.predict(X), strict=True)
        if radius.any()
    ]
    assert np.mean(wrong) > 0.5
