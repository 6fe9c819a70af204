"""The projection onto the level sets of theta, against independent searches over all radii."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import generate_binary_structure, minimum_filter

import polybound as pb
from helpers.errors import refuses
from helpers.profiles import examples
from polybound.constraints.product import project_product


def plateaus(rng, d):
    """Several scales, each with about the same l1 mass: R tau(R) goes up and down many times."""
    levels = 10.0 ** -rng.uniform(0, 3, 4)
    v = np.repeat(levels, np.maximum(1, (rng.uniform(0.5, 2, 4) / levels / 10).astype(int)))[:d]
    return np.pad(v, (0, d - len(v)))


ROWS = {
    "normal": lambda rng, d: rng.standard_normal(d),
    "cauchy": lambda rng, d: rng.standard_cauchy(d),
    "sparse": lambda rng, d: rng.standard_normal(d) * (rng.random(d) < 0.3),
    "ties": lambda rng, d: rng.integers(-3, 4, d).astype(float),
    "spike": lambda rng, d: np.append(np.full(d - 1, rng.choice([0.01, 0.1, 0.5])), rng.uniform(0.5, 3))[::-1],
    "decades": lambda rng, d: 10.0 ** rng.uniform(-6, 1, d),
    "single": lambda rng, d: np.roll(np.append(rng.standard_normal(), np.zeros(d - 1)), rng.integers(d)),
    "plateaus": plateaus,
}
OFFSETS = {
    "none": lambda rng, k: np.zeros(k),
    "residual": lambda rng, k: np.array([0.0] + [1.0] * (k - 1)),
    "all": lambda rng, k: np.ones(k),
    "some": lambda rng, k: rng.choice([0.0, 0.3, 1.0], k),
    "small": lambda rng, k: 10.0 ** rng.uniform(-4, 0, k),
}
KINDS = list(ROWS)


def make_row(rng, d, kind):
    v = ROWS[kind](rng, d)
    if not v.any():
        v[0] = 1.0
    return v * rng.choice([0.1, 1, 1, 1, 10])


@st.composite
def units(draw, k, logs=(1e-3, 0.1, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0), sizes=(1, 2, 3, 5, 20, 100)):
    """One unit outside of its bound: rows (k, d), offsets (k,), bound."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    d = draw(st.sampled_from(sizes))
    v = np.stack([make_row(rng, d, draw(st.sampled_from(KINDS))) for _ in range(k)])
    if k > 1 and draw(st.integers(0, 6)) == 0:
        v[1] = v[0]
    beta = OFFSETS[draw(st.sampled_from(list(OFFSETS)))](rng, k)
    total = (np.abs(v).sum(1) + beta).prod()
    bound = total * math.exp(-draw(st.sampled_from(logs)) * rng.uniform(0.5, 1.5))
    if bound < beta.prod():
        bound = beta.prod() + (total - beta.prod()) * rng.uniform(0.001, 0.999)
    return v, beta, bound


def project_one(v, beta, bound, dtype=torch.float64):
    w = project_product(torch.tensor(v, dtype=dtype)[:, None], bound, offset=torch.tensor(beta))
    return w[:, 0].double().numpy()


def cost_of(v, w):
    return ((v - w) ** 2).sum()


def ball_cost(v, radii):
    """Squared distances of one row to the l1 balls of many radii; nothing shared with the library."""
    a = np.sort(np.abs(v))[::-1]
    sums, count = np.cumsum(a), np.arange(1, len(a) + 1)
    p = np.clip(np.searchsorted(sums - count * a, radii), 1, len(a))
    tau = np.maximum((sums[p - 1] - radii) / p, 0)
    rest = np.append(np.cumsum((a**2)[::-1])[::-1], 0)
    return p * tau**2 + rest[p]


def log_box(v, beta, bound):
    total = np.abs(v).sum(1) + beta
    budget = np.log(total).sum() - math.log(bound)
    with np.errstate(divide="ignore"):
        return total, budget, np.minimum(budget, np.log(total / beta))


def grid_search(v, beta, bound):
    """The least cost on a grid of log-radii, of two or three factors, its valleys polished by ever smaller grids."""
    total, budget, top = log_box(v, beta, bound)

    def cost(*free):
        *free, last = *free, budget - sum(free)
        result = np.zeros(last.shape)
        for i, u in enumerate((*free, last)):
            inside = (u >= -1e-14) & (u <= top[i] * (1 + 1e-14))
            shifted = ball_cost(v[i], np.maximum(total[i] * np.exp(-u) - beta[i], 0).ravel()).reshape(u.shape)
            result = result + np.where(inside, shifted, np.inf)
        return result

    axes = [np.linspace(0, t, 4000 if len(v) == 2 else 150) for t in top[:-1]]
    c = cost(*np.meshgrid(*axes, indexing="ij"))
    least = minimum_filter(c, footprint=generate_binary_structure(c.ndim, 1), mode="constant", cval=np.inf)
    best = c.min()
    for flat in np.argsort(np.where((c <= least) & np.isfinite(c), c, np.inf).ravel())[:4]:
        place = np.unravel_index(flat, c.shape)
        at, value, steps = np.array([a[i] for a, i in zip(axes, place, strict=True)]), c[place], top[:-1] / 100
        for _ in range(32):
            near = [np.clip(x + s * np.linspace(-1, 1, 9), 0, t) for x, s, t in zip(at, steps, top, strict=False)]
            local = cost(*np.meshgrid(*near, indexing="ij"))
            found = np.unravel_index(local.argmin(), local.shape)
            if local[found] < value:
                at, value = np.array([n[i] for n, i in zip(near, found, strict=True)]), local[found]
            steps = steps * 0.6
        best = min(best, value)
    return best


def norms_product(w, beta):
    return (w.double().abs().sum(-1) + beta).prod(-2)


@given(st.data(), st.integers(1, 5), st.sampled_from([torch.float32, torch.float64]), st.integers(1, 4))
def test_inside_and_idempotent_and_inside_units_untouched(data, k, dtype, m):
    columns = [data.draw(units(k, sizes=(7,))) for _ in range(m)]
    v = torch.tensor(np.stack([c[0] for c in columns], 1), dtype=dtype)
    beta = torch.tensor(columns[0][1])[:, None]
    bound = max(float(np.median([c[2] for c in columns])), float(beta.prod()))
    before = norms_product(v, beta)
    w = project_product(v, bound, offset=beta)
    assert w.dtype == dtype and w.shape == v.shape
    assert (norms_product(w, beta) <= bound).all()
    assert torch.equal(project_product(w, bound, offset=beta), w)
    assert torch.equal(w[:, before <= bound], v[:, before <= bound])
    assert (w.sign() * v.sign() >= 0).all() and (w.abs() <= v.abs()).all()


@given(st.one_of(units(2), units(3, sizes=(1, 2, 3, 5, 20, 60))))
@settings(max_examples=examples(200))
def test_not_farther_than_a_grid_of_radii(unit):
    v, beta, bound = unit
    # The product of the rounded norms must be inside; this costs some roundings.
    least = grid_search(v, beta, max(bound * (1 - 1e-13), beta.prod()))
    assert cost_of(v, project_one(v, beta, bound)) <= least * (1 + 1e-9) + 1e-15 * (v**2).sum()


@given(st.integers(2, 6).flatmap(lambda k: units(k, logs=(0.5, 1.0, 3.0, 10.0))))
def test_stationary(unit):
    v, beta, bound = unit
    w = project_one(v, beta, bound)
    size = np.abs(w).sum(1) + beta
    alive = np.abs(w).max(1) > 1e-13 * np.abs(v).max(1)  # what is left of a dead row may be a rounding error
    largest = np.abs(v).argmax(1)[:, None]
    tau = np.take_along_axis(np.abs(v) - np.abs(w), largest, 1)[:, 0]  # for a dead row: the least that kills it
    blur = 1e-14 * size * np.abs(v).max(1)  # tau is a difference of rounded numbers
    level = (size * tau)[alive]
    if len(level):
        low, high = (level - blur[alive]).max(), (level + blur[alive]).min()
        assert low <= high * (1 + 1e-7)
        assert ((size * tau - blur)[~alive] <= high * (1 + 1e-7)).all()  # a dead row would gain nothing by coming back
    for i in range(len(v)):  # each row is soft-thresholded
        threshold = np.maximum(np.abs(v[i]) - tau[i], 0)
        np.testing.assert_allclose(np.abs(w[i]), threshold, atol=1e-13 * np.abs(v[i]).max())


def test_the_nearest_local_minimum_is_on_the_wrong_branch():
    """One large and twenty small entries against two equal ones: three valleys, and downhill leads to the worst."""
    v = np.zeros((2, 21))
    v[0], v[0, 0], v[1, :2] = 0.1, 1.0, 1.0
    beta, bound = np.zeros(2), 6 * math.exp(-4)
    u = np.linspace(0, 4, 20001)  # the shrinkage of the first factor
    c = ball_cost(v[0], 3 * np.exp(-u)) + ball_cost(v[1], 2 * np.exp(u - 4))
    valleys = np.flatnonzero((c[1:-1] < c[:-2]) & (c[1:-1] < c[2:])) + 1
    np.testing.assert_allclose(c[valleys], [1.9237, 1.9722, 1.0917], atol=1e-4)
    i = 10000  # both shrink alike
    while not c[i] <= min(c[i - 1], c[i + 1]):
        i += 1 if c[i + 1] < c[i - 1] else -1
    assert i == valleys[1]
    assert cost_of(v, project_one(v, beta, bound)) <= c[valleys[2]]


@given(units(1), st.sampled_from([torch.float32, torch.float64]))
def test_one_factor_is_the_l1_projection(unit, dtype):
    v, beta, bound = unit
    v = torch.tensor(v, dtype=dtype).double().numpy()
    radius = bound - beta[0]
    if np.abs(v).sum() <= radius:
        return
    w = project_one(v, beta, bound, dtype)[0]
    a = np.sort(np.abs(v[0]))[::-1]
    tau = ((np.cumsum(a) - radius) / np.arange(1, len(a) + 1)).max()
    scale = np.abs(v).max() + radius
    atol = scale * (1e-6 if dtype == torch.float32 else 1e-13 * (1 + beta[0] / scale))
    np.testing.assert_allclose(w, np.sign(v[0]) * np.maximum(np.abs(v[0]) - tau, 0), atol=atol)


def stack(seed, runs, k, m, d):
    rng = np.random.default_rng(seed)
    rows = [make_row(rng, d, KINDS[rng.integers(len(KINDS))]) for _ in range(runs * k * m)]
    return torch.tensor(np.reshape(rows, (runs, k, m, d)))


def test_bounds_and_offsets_of_each_run():
    v = stack(2, 4, 2, 5, 12).reshape(2, 2, 2, 5, 12)
    bounds = torch.tensor([[0.0, 1.0], [2.0, math.inf]])
    beta = torch.zeros(2, 2, 2)
    beta[0, 1] = 0.5
    w = project_product(v, bounds, offset=beta)
    assert (norms_product(w, beta[..., None]).amax(-1) <= bounds).all()
    assert torch.equal(w[1, 1], v[1, 1])
    assert (norms_product(w[0, 1], 0.5).amax() > 0.99) and (norms_product(w[1, 0], 0).amax() > 1.99)
    for a in range(2):
        for b in range(2):
            for j in range(5):
                alone = project_product(v[a, b, :, j : j + 1], float(bounds[a, b]), offset=beta[a, b])
                torch.testing.assert_close(w[a, b, :, j : j + 1], alone, rtol=1e-9, atol=1e-12)
    each = torch.rand(2, 2, 2, 5, dtype=torch.float64)  # an offset for every row
    w = project_product(v, 3.0, offset=each)
    assert (norms_product(w, each) <= 3.0).all()


def test_zero_bound_removes_the_cheapest_factor_that_can_vanish():
    v = torch.tensor([[[1.0, 1.0]], [[0.5, 0.1]], [[3.0, 0.0]]])
    w = project_product(v, 0.0)
    assert torch.equal(w, v * torch.tensor([1.0, 0.0, 1.0])[:, None, None])
    w = project_product(v, 0.0, offset=torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(w, v * torch.tensor([0.0, 1.0, 1.0])[:, None, None])
    small = torch.full((2, 1, 2), 1e-200, dtype=torch.float64)  # their product underflows
    assert bool((project_product(small, 0.0).abs().sum(-1) == 0).any(0).all())


def test_offsets_that_leave_no_room():
    v = stack(3, 1, 3, 4, 6)[0]
    w = project_product(v, 1.0, offset=1.0)
    assert (norms_product(w, 1.0) <= 1.0).all() and w.abs().max() < 1e-15
    assert (norms_product(project_product(v, 1.0 + 1e-15, offset=1.0), 1.0) <= 1.0 + 1e-15).all()
    assert (norms_product(project_product(v, 1.0 + 1e-9, offset=1.0), 1.0) <= 1.0 + 1e-9).all()
    refuses("offsets alone", project_product, v, 0.99, offset=1.0)


@pytest.mark.parametrize("log_ratio", [20.0, 60.0, 200.0, 600.0, 900.0])
@pytest.mark.parametrize("k", [2, 4, 12])
def test_far_outside(k, log_ratio):
    v = stack(4, 1, k, 6, 40)[0]
    bound = torch.exp(norms_product(v, 0).log().min() - log_ratio).clamp(min=1e-300).item()
    w = project_product(v, bound)
    assert (norms_product(w, 0) <= bound).all()
    assert (norms_product(w, 0) >= 0.99 * bound).all()
    least = v.square().sum(-1).amin(0)
    assert ((w - v).square().sum((0, 2)) <= least * (1 + 1e-9)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_slightly_outside_in_low_precision(dtype):
    """The excess is below one rounding of the entries."""
    v = torch.ones(3, 1, 5, dtype=dtype)
    w = project_product(v, 125.0 * (1 - 1e-12))
    assert (norms_product(w, 0) <= 125.0 * (1 - 1e-12)).all()
    assert (w > 0.9).all()


def test_nothing_to_do():
    for shape in ((2, 0, 3), (2, 3, 0), (0, 2, 3, 4)):
        assert project_product(torch.zeros(shape), 1.0).shape == shape
    v = torch.randn(2, 3, 4)
    assert torch.equal(project_product(v, math.inf), v)


@pytest.mark.parametrize(
    ("weights", "bound", "offset"),
    [
        (torch.ones(2, 3), 1.0, 0.0),
        (torch.ones(0, 2, 3), 1.0, 0.0),
        (torch.ones(2, 3, 4, dtype=torch.int64), 1.0, 0.0),
        (torch.ones(2, 3, 4), -1.0, 0.0),
        (torch.ones(2, 3, 4), torch.ones(2), 0.0),
        (torch.ones(2, 3, 4), 1.0, -1.0),
        (torch.ones(2, 3, 4), 1.0, torch.ones(3)),
        (torch.ones(2, 3, 4), 1.0, 2.0),
        (torch.full((2, 3, 4), math.nan), 1.0, 0.0),
    ],
)
def test_bad_input(weights, bound, offset):
    refuses("", project_product, weights, bound, offset=offset)


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([torch.float32, torch.float64]))
def test_extreme_numbers_neither_overflow_nor_leave_the_set(seed, k, dtype):
    rng = np.random.default_rng(seed)
    decades = 30 if dtype == torch.float32 else rng.choice([5, 40])
    rows = rng.standard_normal((k, 3, 5)) * 10.0 ** rng.uniform(-decades, decades, (k, 3, 1))
    v = torch.tensor(rows * (rng.random((k, 3, 5)) < 0.8), dtype=dtype)
    beta = torch.tensor(rng.choice([0.0, 0.0, 1e-30, 1e-10, 1.0, 1e5], k))[:, None]
    bound = max(math.exp(rng.uniform(-600, 600)), float(beta.prod()))
    w = project_product(v, bound, offset=beta)
    assert (norms_product(w, beta) <= bound).all()
    assert (w.abs() <= v.abs()).all()
    assert torch.equal(project_product(w, bound, offset=beta), w)


def test_projecting_weights_whose_product_is_no_number():
    """Two factors of 1e200 stay; the third, at zero, costs least: infinity times zero is a product of zero."""
    rows = torch.tensor([1e200, 1e200, 1e-250, 1e-250], dtype=torch.float64)[:, None, None]
    assert torch.equal(project_product(rows, 1.0), rows)  # inside, but it overflows on the way
    for scales in ((1e200, 1e200, 1e-5), (1e-5, 1e200, 1e200), (1e200, 1e150, 1e100)):
        model = pb.CCP(4, 3, 2, 3, form="product", seed=0, dtype=torch.float64)
        with torch.no_grad():
            model.U.mul_(torch.tensor(scales, dtype=torch.float64)[:, None, None])
        projection = pb.Projection(model, {"product": 1.0}, on="product")
        projection.apply_()
        assert model.U.isfinite().all()
        assert projection.contains()
        assert not projection.norms()["product"].isnan()


def test_a_thousand_factors_are_projected():
    generator = torch.Generator().manual_seed(0)
    weights = 1.0 + 0.1 * torch.rand(1000, 2, 3, generator=generator, dtype=torch.float64)
    result = project_product(weights, 1.0)
    logs = result.abs().sum(-1).log().sum(0)
    assert (logs <= 1e-9).all()
    assert (logs >= -1e-6).all()
    assert torch.equal(project_product(result, 1.0), result)
