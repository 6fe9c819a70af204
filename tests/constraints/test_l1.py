"""The l1 projection against a sorting oracle, and the laws a projection has to obey."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.errors import refuses
from helpers.profiles import examples
from polybound.constraints.l1 import project_l1_rows, project_linf_operator
from polybound.errors import NonFiniteError, PolyboundError

FLOAT, DOUBLE = torch.float32, torch.float64
ACCURACY = {FLOAT: 1e-6, DOUBLE: 1e-13}  # of the l1 distance to the exact projection, relative to the radius

laws = settings(max_examples=examples(170), deadline=None)


def oracle(x: Tensor, radius: float | Tensor) -> Tensor:
    """The projection by sorting, in float64, with |x| measured from the largest entry so that nothing cancels."""
    a = x.double().abs()
    r = torch.as_tensor(radius, dtype=DOUBLE).expand(x.shape[:-1]).unsqueeze(-1)
    peak = a.amax(-1, keepdim=True)
    z = a - peak
    u = z.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, dtype=DOUBLE)
    t = (u.cumsum(-1) - r) / rank
    count = (u > t).sum(-1, keepdim=True).clamp_min(1)
    y = (z - t.gather(-1, count - 1)).clamp_min(0.0)
    return torch.where(a.sum(-1, keepdim=True) <= r, x.double(), y.copysign(x))


def exact_row(row: list[float], radius: float) -> list[Fraction]:
    """The absolute values of the projection of one row, in rational numbers."""
    a, r = [abs(Fraction(v)) for v in row], Fraction(radius)
    if sum(a) <= r:
        return a
    total, t = Fraction(0), Fraction(0)
    for rank, value in enumerate(sorted(a, reverse=True), 1):
        total += value
        if value < (total - r) / rank:
            break
        t = (total - r) / rank
    return [max(v - t, Fraction(0)) for v in a]


def norms(x: Tensor) -> Tensor:
    return x.double().abs().sum(-1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


KINDS = {
    "normal": lambda normal, uniform, draw: normal,
    "uniform": lambda normal, uniform, draw: 2.0 * uniform - 1.0,
    "constant": lambda normal, uniform, draw: draw(st.floats(0.01, 100.0)) * normal.sign(),
    "ties": lambda normal, uniform, draw: torch.round(2.0 * normal),
    "sparse": lambda normal, uniform, draw: normal * (uniform < 0.2),
    "spike": lambda normal, uniform, draw: 1e-4 * normal.index_fill(1, torch.tensor(0), draw(st.floats(-1e8, 1e8))),
    "cluster": lambda normal, uniform, draw: 1e3 + uniform * 10.0 ** draw(st.integers(-7, 2)),
    "range": lambda normal, uniform, draw: normal * 10.0 ** (30.0 * uniform - 15.0),
    "geometric": lambda normal, uniform, draw: (
        normal.sign() * draw(st.floats(1.1, 4.0)) ** torch.arange(normal.shape[1]).clamp(max=40)
    ),
}


@st.composite
def rows(draw: st.DrawFn, max_dim: int = 70) -> Tensor:
    """A few rows of one of many kinds: smooth, tied, constant, sparse, spiked, clustered, of a huge range."""
    dtype = draw(st.sampled_from([FLOAT, DOUBLE]))
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, max_dim)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(list(KINDS)))
    normal = torch.randn(shape, generator=generator, dtype=DOUBLE)
    uniform = torch.rand(shape, generator=generator, dtype=DOUBLE)
    return (KINDS[kind](normal, uniform, draw) * 10.0 ** draw(st.integers(-8, 8))).to(dtype)


@st.composite
def problems(draw: st.DrawFn, max_dim: int = 70) -> tuple[Tensor, float]:
    """Rows and a radius: inside, near the sphere, outside or far outside."""
    x = draw(rows(max_dim))
    norm = norms(x)[0].item()
    factor = draw(
        st.one_of(
            st.floats(0.05, 1.5),
            st.floats(-15.0, 0.0).map(lambda e: 10.0**e),
            st.floats(-12.0, -1.0).map(lambda e: 1.0 - 10.0**e),
            st.sampled_from([1.0, 1.0 - 2.0**-24, 1.0 + 2.0**-24, 1.0 - 2.0**-53, 2.0, 0.0, math.inf]),
        )
    )
    return x, norm * factor if norm > 0.0 else abs(factor)


@laws
@given(problems())
def test_the_laws_of_a_projection(problem: tuple[Tensor, float]) -> None:
    x, radius = problem
    y = project_l1_rows(x, radius)
    assert bool((norms(y) <= radius).all())
    for before, after in zip(x.double().abs().tolist(), y.double().abs().tolist(), strict=True):
        if before != after:  # a row that was projected is inside for sums in every order
            assert math.fsum(after) <= radius
            assert sum(after) <= radius
            assert sum(sorted(after)) <= radius
    assert same_bits(project_l1_rows(y, radius), y)
    inside = norms(x) <= radius
    assert same_bits(y[inside], x[inside])
    assert same_bits(project_l1_rows(x, norms(x)), x)
    assert bool(((y == 0.0) | (y.sign() == x.sign())).all())
    assert bool((y.abs() <= x.abs()).all())
    assert bool((y.abs().gather(-1, x.abs().argsort(-1)).diff(dim=-1) >= 0.0).all())


@laws
@given(problems())
def test_agrees_with_sorting(problem: tuple[Tensor, float]) -> None:
    x, radius = problem
    y, best = project_l1_rows(x, radius).double(), oracle(x, radius)
    slack = ACCURACY[x.dtype] * min(radius, 1e300)
    assert bool(((y - best).abs().sum(-1) <= slack).all())
    ours, least = ((x.double() - point).norm(dim=-1) for point in (y, best))
    assert bool((ours <= least + slack + 1e-15 * norms(x)).all()), "no point of the ball is closer"


@laws
@given(problems(max_dim=12))
def test_agrees_with_rational_arithmetic(problem: tuple[Tensor, float]) -> None:
    x, radius = problem
    if not 0.0 < radius < math.inf:
        return
    for row, projected in zip(x.tolist(), project_l1_rows(x, radius).tolist(), strict=True):
        exact = exact_row(row, radius)
        distance = sum(abs(abs(Fraction(p)) - e) for p, e in zip(projected, exact, strict=True))
        # No entry can be nearer than the step between the smallest numbers of its type.
        step = Fraction(torch.finfo(x.dtype).tiny) * Fraction(torch.finfo(x.dtype).eps)
        assert distance <= Fraction(ACCURACY[x.dtype]) * Fraction(radius) + len(row) * step


@laws
@given(problems(), st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0, 5.0, math.inf]), min_size=3, max_size=3))
def test_radii_broadcast(problem: tuple[Tensor, float], factors: list[float]) -> None:
    x, radius = problem
    radii = torch.tensor([f if f == math.inf else f * min(radius, 1e300) for f in factors], dtype=DOUBLE)
    stack = torch.stack([x, 0.5 * x, -x])
    together = project_l1_rows(stack, radii.unsqueeze(-1))
    for part, r, projected in zip(stack, radii, together, strict=True):
        assert same_bits(project_l1_rows(part, r.item()), projected)
        assert same_bits(project_l1_rows(part, r), projected)
        assert same_bits(torch.stack([project_l1_rows(row, r.item()) for row in part]), projected)


@laws
@given(problems())
def test_in_place_and_in_other_layouts(problem: tuple[Tensor, float]) -> None:
    x, radius = problem
    expected, before = project_l1_rows(x, radius), x.clone()
    assert same_bits(x, before)
    permuted = torch.stack([x, x]).permute(1, 0, 2)
    assert same_bits(project_l1_rows(permuted, radius)[:, 0], expected)
    project_l1_rows(permuted, radius, out=permuted)
    assert same_bits(permuted[:, 1], expected)
    for y in (x.t().contiguous().t(), torch.stack([x, x], -1).flatten(-2)[:, ::2], x.clone()):
        assert same_bits(project_l1_rows(y, radius), expected)
        other = torch.empty_like(y)
        assert project_l1_rows(x, radius, out=other) is other
        assert same_bits(other, expected)
        assert project_l1_rows(y, radius, out=y) is y
        assert same_bits(y, expected)


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
@pytest.mark.parametrize("shape", [(16, 784), (300, 785), (40, 4096), (14, 4, 16, 98), (3000, 9)])
@pytest.mark.parametrize("factor", [0.02, 0.9, 0.97, 1.0])
def test_many_rows(dtype: torch.dtype, shape: tuple[int, ...], factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for x in (
        torch.randn(shape, generator=generator, dtype=dtype),
        torch.rand(shape, generator=generator, dtype=dtype),
    ):
        radius = factor * norms(x).mean(-1, keepdim=True)
        y = project_l1_rows(x, radius)
        assert bool((norms(y) <= radius).all())
        assert bool(((y - oracle(x, radius)).abs().sum(-1) <= ACCURACY[dtype] * radius).all())
        assert same_bits(project_l1_rows(y, radius), y)
        inside = norms(x) <= radius
        assert same_bits(y[inside], x[inside])
        alone = project_l1_rows(x[..., 3, :], radius[..., 0])  # no row depends on the others
        assert same_bits(alone, y[..., 3, :])


@pytest.mark.parametrize(("dtype", "largest"), [(FLOAT, 3e38), (DOUBLE, 1e307)])
@pytest.mark.parametrize("dim", [1, 2, 8, 13])
def test_huge_entries(dtype: torch.dtype, largest: float, dim: int) -> None:
    x = largest * torch.linspace(-1.0, 1.0, dim, dtype=dtype).unsqueeze(0)
    for radius in (1.0, 1e30, 0.9 * largest, math.inf):
        y = project_l1_rows(x, radius)
        assert bool((norms(y) <= radius).all())
        assert bool(((y.double() - oracle(x, radius)).abs().sum(-1) <= ACCURACY[dtype] * min(radius, largest)).all())


@pytest.mark.parametrize(("dtype", "quantum"), [(FLOAT, 2.0**-149), (DOUBLE, 5e-324)])
@pytest.mark.parametrize("dim", [1, 3, 8, 50])
def test_subnormal_numbers(dtype: torch.dtype, quantum: float, dim: int) -> None:
    steps = torch.randint(-40, 41, (20, dim), generator=torch.Generator().manual_seed(dim))
    x = (steps.to(DOUBLE) * quantum).to(dtype)
    for count in (0, 1, 7, 100, 10000):
        radius = count * quantum
        y = project_l1_rows(x, radius)
        assert bool((norms(y) <= radius).all())
        assert same_bits(project_l1_rows(y, radius), y)
        for row, projected in zip(x.tolist(), y.tolist(), strict=True):
            exact = exact_row(row, radius)
            assert all(abs(abs(p) - e) <= 2 * quantum for p, e in zip(projected, map(float, exact), strict=True))
    for ordinary in (torch.full((1, dim), 1.0, dtype=dtype), torch.randn(3, dim).to(dtype)):
        for radius in (quantum, 1000.0 * quantum, 1e-60):
            assert bool((norms(project_l1_rows(ordinary, radius)) <= radius).all())


def test_empty_single_and_extreme() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0], [0.0, -0.0, 0.0]])
    assert same_bits(project_l1_rows(x, torch.tensor([math.inf, 0.0])), x)
    assert torch.equal(project_l1_rows(x, torch.tensor([0.0, 1.0])), torch.zeros_like(x))
    for shape in [(0,), (0, 3), (3, 0), (2, 0, 4)]:
        x = torch.empty(shape)
        assert project_l1_rows(x, 1.0).shape == shape
        assert project_l1_rows(x, 1.0, out=x) is x
    single = project_l1_rows(torch.tensor([[5.0], [-0.5]]), 1.0)
    assert single[0].item() == pytest.approx(1.0, rel=1e-6)
    assert single[1].item() == -0.5
    assert project_l1_rows(torch.tensor([3.0, 4.0]), 1.0).shape == (2,)


@pytest.mark.parametrize(
    ("x", "radius"),
    [
        (torch.ones(2, 3), -1.0),
        (torch.ones(2, 3), math.nan),
        (torch.ones(2, 3), torch.tensor([1.0, -1e-30])),
        (torch.ones(2, 3), torch.ones(3)),
        (torch.ones(2, 3, dtype=torch.int64), 1.0),
        (torch.ones(2, 3, dtype=torch.bfloat16), 1.0),
        (torch.tensor(1.0), 1.0),
    ],
)
def test_bad_input(x: Tensor, radius: float | Tensor) -> None:
    refuses("", project_l1_rows, x, radius)


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("radius", [0.0, 0.5, 2.0, 1e9, math.inf])
def test_input_that_is_not_finite(dtype: torch.dtype, value: float, radius: float) -> None:
    for count in (1, 5):
        x = torch.ones(count, 16, dtype=dtype)
        x[-1, 3] = value
        refuses("not finite", project_l1_rows, x, radius, error=NonFiniteError)


@pytest.mark.parametrize("kernel", [(), (5,), (3, 2), (2, 3, 2)])
@pytest.mark.parametrize("stack", [(), (4,), (2, 3)])
def test_operators(kernel: tuple[int, ...], stack: tuple[int, ...]) -> None:
    weight = torch.randn(*stack, 6, 4, *kernel, generator=torch.Generator().manual_seed(0))
    radius = torch.linspace(1.0, 3.0, math.prod(stack)).view(*stack, 1) if stack else 2.0
    matrix = weight.reshape(*stack, 6, -1).clone()
    projected = project_linf_operator(weight, radius, kernel_dims=len(kernel))
    assert projected.shape == weight.shape
    assert same_bits(projected.reshape(matrix.shape), project_l1_rows(matrix, radius))
    swapped = torch.randn(*stack, *kernel, 4, 6).movedim(-1, len(stack)).movedim(-1, len(stack) + 1)  # not contiguous
    expected = project_l1_rows(swapped.reshape(matrix.shape), radius)
    again = project_linf_operator(swapped, radius, kernel_dims=len(kernel))
    assert same_bits(again.reshape(matrix.shape), expected)


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [((3, 4), {"kernel_dims": 4}), ((3, 4), {"kernel_dims": -1}), ((3, 4), {"kernel_dims": 1}), ((4,), {})],
)
def test_bad_operators(shape: tuple[int, ...], arguments: dict[str, object]) -> None:
    with pytest.raises(PolyboundError):
        project_linf_operator(torch.ones(shape), 1.0, **arguments)  # type: ignore[arg-type]
    for out in (torch.ones(3, 2), torch.ones(2, 3, dtype=DOUBLE)):
        refuses("out must be", project_l1_rows, torch.ones(2, 3), 1.0, out=out)
