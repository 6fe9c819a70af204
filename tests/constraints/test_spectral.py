"""Projections onto balls of the spectral norm, against singular value decompositions and unrolled convolutions."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refuses
from polybound.constraints.spectral import project_spectral, project_spectral_conv, torus_norm
from polybound.models import Conv

DTYPES = st.sampled_from([torch.float32, torch.float64])


def clipped(w, radius):
    """The oracle: all singular values clipped."""
    u, s, vh = torch.linalg.svd(w.double(), full_matrices=False)
    limit = torch.as_tensor(radius, dtype=torch.float64)[..., None]
    return (u * torch.minimum(s, limit)[..., None, :]) @ vh


def norm(w):
    return torch.linalg.matrix_norm(w.double(), 2)


@st.composite
def matrices(draw):
    """Matrices of all kinds of spectra, a scale apart from the radius."""
    m, d = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "rank one", "repeated", "decades", "ties"]))
    w = torch.randn(m, d, generator=generator, dtype=torch.float64)
    if kind == "ties":
        return w.mul(2).round()
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    if kind == "rank one":
        s[1:] = 0
    elif kind == "repeated":
        s[:] = s.round().clamp(min=1)
    elif kind == "decades":
        s = 10 ** (6 * torch.rand(s.shape, generator=generator, dtype=torch.float64) - 4)
    return (u * s) @ vh


@given(matrices(), DTYPES, st.sampled_from([0.0, 1e-6, 0.01, 0.3, 0.9, 0.999999, 1.0, 2.0, math.inf]))
def test_clips_singular_values(w, dtype, fraction):
    w = w.to(dtype)
    radius = float(norm(w)) * fraction if fraction < math.inf else math.inf
    result = project_spectral(w, radius)
    assert result.dtype == dtype and result.shape == w.shape
    assert norm(result) <= radius
    assert torch.equal(project_spectral(result, radius), result)
    if fraction >= 1:
        assert torch.equal(result, w)
    else:
        rounding = 1e-13 if dtype == torch.float64 else 1e-6
        atol = rounding * radius + 1e-15 * float(norm(w))
        torch.testing.assert_close(result.double(), clipped(w, radius), rtol=0, atol=atol)


@pytest.mark.parametrize("shape", [(16, 784), (784, 16), (40, 40)])
def test_accuracy_through_the_gram_matrix(shape):
    w = torch.randn(shape, dtype=torch.float64)
    for fraction in (0.99, 0.5, 0.1, 1e-3, 1e-9):
        radius = float(norm(w)) * fraction
        torch.testing.assert_close(project_spectral(w, radius), clipped(w, radius), rtol=0, atol=1e-13 * radius + 1e-15)


def test_a_radius_for_each_matrix():
    w = torch.randn(3, 4, 5, 7)
    radius = torch.tensor([[0.0, 0.5, 1.0, math.inf], [2.0, 3.0, 4.0, 50.0], [0.1, 1e-8, 6.0, 1.0]])
    result = project_spectral(w, radius)
    assert (norm(result) <= radius).all()
    assert torch.equal(result[0, 3], w[0, 3]) and torch.equal(result[1, 3], w[1, 3]) and not result[0, 0].any()
    for i, j in itertools.product(range(3), range(4)):
        torch.testing.assert_close(result[i, j], project_spectral(w[i, j], float(radius[i, j])))


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_scales(scale):
    w = torch.randn(4, 6, dtype=torch.float64)
    result = project_spectral(w * scale, scale)
    assert norm(result) <= scale
    torch.testing.assert_close(result / scale, project_spectral(w, 1.0), rtol=1e-12, atol=1e-13)


@st.composite
def kernels(draw):
    dims = draw(st.integers(1, 3))
    size = [draw(st.sampled_from([1, 3, 5] if dims < 3 else [1, 3])) for _ in range(dims)]
    shape = [draw(st.integers(1, [9, 5, 3][dims - 1])) for _ in range(dims)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    channels = [draw(st.integers(1, 3)) for _ in range(2)]
    return torch.randn(*channels, *size, generator=generator, dtype=torch.float64), tuple(shape)


@given(kernels(), DTYPES, st.sampled_from([0.3, 0.7, 0.95, 0.999, 1.0, 3.0]))
def test_convolution_is_inside_and_bounds_the_operator(case, dtype, fraction):
    kernel, shape = case[0].to(dtype), case[1]
    before = torus_norm(kernel, shape)
    radius = float(before) * fraction
    with mock.patch("polybound.constraints.spectral._TOLERANCE", 1e-3):
        result = project_spectral_conv(kernel, radius, shape)
    assert result.dtype == dtype and torus_norm(result, shape) <= radius
    assert torch.linalg.matrix_norm(Conv(result.double(), None, (result.shape[1], *shape)).matrix(), 2) <= radius
    assert torch.equal(project_spectral_conv(result, radius, shape), result)
    if fraction >= 1:
        assert torch.equal(result, kernel)
    else:  # scaling the kernel down is one way to get inside
        assert (result - kernel).norm() <= (1 - fraction + 1e-6) * kernel.norm()


def slow_dykstra(kernel, radius, shape, steps=30000):
    """Dykstra's algorithm as in the textbook, on the torus, in numpy."""
    sizes = [n + k - 1 for n, k in zip(shape, kernel.shape[2:], strict=True)]
    axes = tuple(range(2, kernel.ndim))
    x = np.zeros((*kernel.shape[:2], *sizes))
    taps = tuple(slice(k) for k in kernel.shape)
    x[taps] = kernel
    p = np.zeros_like(x)
    for _ in range(steps):
        spectrum = np.moveaxis(np.fft.fftn(x + p, axes=axes), (0, 1), (-2, -1))
        u, s, vh = np.linalg.svd(spectrum, full_matrices=False)
        y = np.fft.ifftn(np.moveaxis((u * np.minimum(s, radius)[..., None, :]) @ vh, (-2, -1), (0, 1)), axes=axes).real
        p = x + p - y
        new = np.zeros_like(x)
        new[taps] = y[taps]
        if np.abs(new - x).max() < 1e-12:
            break
        x = new
    return new[taps]


@pytest.mark.parametrize("fraction", [0.4, 0.9])
@pytest.mark.parametrize(("size", "shape"), [((1, 1, 3), (5,)), ((2, 2, 3), (4,)), ((3, 2, 3, 3), (2, 3))])
def test_convolution_is_the_nearest(size, shape, fraction):
    kernel = torch.randn(size, dtype=torch.float64)
    radius = float(torus_norm(kernel, shape)) * fraction
    with mock.patch.multiple("polybound.constraints.spectral", _TOLERANCE=1e-9, _ITERATIONS=20000):
        result = project_spectral_conv(kernel, radius, shape)
    slow = slow_dykstra(kernel.numpy(), radius, shape)
    distance = float((result - kernel).norm())
    assert abs(distance - np.linalg.norm(slow - kernel.numpy())) <= 1e-6 * distance
    np.testing.assert_allclose(result.numpy(), slow, atol=1e-4 * distance)
    for _ in range(200):  # no feasible point nearby is nearer
        other = result + 0.01 * distance * torch.randn_like(result) + 0.01 * (kernel - result)
        other = other * min(1.0, radius / float(torus_norm(other, shape)))
        assert (other - kernel).norm() >= distance * (1 - 1e-8)


def test_convolutions_of_several_runs():
    kernel = torch.randn(2, 3, 2, 2, 3, 3)
    radius = torch.tensor([[0.0, 1.0, math.inf], [2.0, 0.5, 100.0]])
    result = project_spectral_conv(kernel, radius, (5, 4))
    assert (torus_norm(result, (5, 4)) <= radius).all()
    assert torch.equal(result[:, 2], kernel[:, 2]) and not result[0, 0].any()
    for i, j in itertools.product(range(2), range(3)):
        alone = project_spectral_conv(kernel[i, j], float(radius[i, j]), (5, 4))
        torch.testing.assert_close(result[i, j], alone, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("weight", "radius"),
    [
        (torch.ones(3), 1.0),
        (torch.ones(2, 3, dtype=torch.int32), 1.0),
        (torch.ones(2, 3), -1.0),
        (torch.ones(4, 2, 3), torch.ones(3)),
        (torch.full((2, 3), math.nan), 1.0),
    ],
)
def test_bad_matrices(weight, radius):
    refuses("", project_spectral, weight, radius)


@pytest.mark.parametrize(("size", "shape"), [((2, 2, 3), (5, 5, 5, 5)), ((2, 3), (5,)), ((2, 2, 3), (0,))])
def test_bad_kernels(size, shape):
    refuses("", project_spectral_conv, torch.ones(size), 1.0, shape)
