"""Every kind of affine map against its matrix, unrolled column by column."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from helpers.networks import F64, networks, seeds, unrolled
from polybound.models import Chain, Conv, Dense, Identity, Pool
from polybound.theory import operator_norm, torus_norm

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@st.composite
def kernels(draw, fits):
    """A kernel and the image it runs over; `fits`: not larger than the image."""
    dims = draw(st.integers(1, 3))
    size = draw(st.sampled_from([1, 3, 5] if dims < 3 else [1, 3]))
    channels = draw(st.integers(1, 3))
    sizes = st.integers(size, size + 3) if fits else st.integers(1, max(1, size - 1))
    shape = (channels, *(draw(sizes) for _ in range(dims)))
    generator = torch.Generator().manual_seed(draw(seeds))
    weight = torch.randn(draw(st.integers(1, 3)), channels, *(size,) * dims, generator=generator, dtype=F64)
    return weight, shape


def convolution_matrix(weight, shape):
    padding = [k // 2 for k in weight.shape[2:]]
    inputs = torch.Size(shape).numel()
    return unrolled(lambda e: CONV[len(shape) - 1](e.reshape(1, *shape), weight, padding=padding).flatten(), inputs)


@given(kernels(fits=True))
def test_theorems_5_10_11_norm_of_convolution_is_norm_of_matricised_kernel(case):
    weight, shape = case
    matrix = convolution_matrix(weight, shape)
    conv = Conv(weight, None, shape)
    rows = conv.matricised().abs().sum(-1).max()
    torch.testing.assert_close(matrix.abs().sum(1).max(), rows, rtol=1e-12, atol=0)
    torch.testing.assert_close(operator_norm(conv, "inf"), rows, rtol=1e-12, atol=0)


@given(kernels(fits=False))
def test_kernels_larger_than_the_image_are_bounded_by_their_matricisation(case):
    weight, shape = case
    norm = convolution_matrix(weight, shape).abs().sum(1).max()
    conv = Conv(weight, None, shape)
    assert norm <= conv.matricised().abs().sum(-1).max() * (1 + 1e-12)
    torch.testing.assert_close(operator_norm(conv, "inf"), norm, rtol=1e-12, atol=0)


@given(st.one_of(kernels(fits=True), kernels(fits=False)))
def test_other_norms_of_convolutions(case):
    weight, shape = case
    matrix, conv = convolution_matrix(weight, shape), Conv(weight, None, shape)
    torch.testing.assert_close(conv.matrix(), matrix)
    torch.testing.assert_close(operator_norm(conv, 1), matrix.abs().sum(0).max(), rtol=1e-12, atol=0)
    spectral = torch.linalg.matrix_norm(matrix, 2)
    torch.testing.assert_close(operator_norm(conv, 2), spectral, rtol=1e-9, atol=0)
    assert spectral <= torus_norm(weight, shape[1:])


def test_torus_norm_is_what_large_convolutions_get():
    conv = Conv(torch.randn(4, 4, 3, 3, dtype=F64), None, (4, 17, 17))
    norm, certified = operator_norm(conv, 2), torus_norm(conv.weight, (17, 17))
    torch.testing.assert_close(norm, certified)
    x = torch.randn(1, conv.inputs, dtype=F64)
    for _ in range(50):
        x = conv.adjoint(conv.linear(x / x.norm()))
    below = x.norm().sqrt()
    assert below <= certified <= 1.1 * below


@given(networks(runs=(None, 2)), seeds)
def test_maps_agree_with_their_matrices(model, seed):
    generator = torch.Generator().manual_seed(seed)
    factors = model.factors()
    for step in (*factors.A, *factors.S, factors.C):
        matrix = step.matrix()
        assert matrix.shape == (*step.lead, step.outputs, step.inputs)
        x = torch.randn(*step.lead, 3, step.inputs, generator=generator, dtype=F64)
        y = torch.randn(*step.lead, 3, step.outputs, generator=generator, dtype=F64)
        torch.testing.assert_close(step.linear(x), x @ matrix.mT)
        torch.testing.assert_close(step(x), x @ matrix.mT + step.constant.unsqueeze(-2))
        torch.testing.assert_close(step.adjoint(y), y @ matrix)
        exact = step.dense().absolute()
        torch.testing.assert_close(exact.matrix(), matrix.abs())
        slack = 1e-12 * (1 + exact.matrix().abs().max())
        assert (step.absolute().matrix() >= exact.matrix() - slack).all()
        assert (step.absolute().constant >= step.constant.abs() - slack).all()
        assert (step.row_l1() >= matrix.abs().sum(-1) - slack * step.inputs).all()
        if not isinstance(step, Chain):
            torch.testing.assert_close(step.row_l1(), matrix.abs().sum(-1))


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 7, "inf"])
def test_operator_norms_are_upper_bounds_for_every_p(p):
    maps = [
        Dense(torch.randn(4, 6, dtype=F64)),
        Conv(torch.randn(2, 3, 3, 3, dtype=F64), None, (3, 5, 4)),
        Pool((2, 5, 4), (), torch.zeros(1, dtype=F64)),
        Identity(7, (), torch.zeros(1, dtype=F64)),
    ]
    maps.append(Chain([maps[1], maps[2]], shift=1.0))
    exponent = float(p)
    for step in maps:
        x = torch.randn(2000, step.inputs, dtype=F64)
        x[:1000] = x[:1000].sign()
        x[1000:1500] *= torch.rand_like(x[1000:1500]) < 2 / step.inputs
        sizes = x.norm(exponent, dim=1).clamp_min(1e-9)
        stretched = step.linear(x).norm(exponent, dim=1)
        assert (stretched <= operator_norm(step, p) * sizes * (1 + 1e-12)).all()


def test_pooling_norms_are_exact():
    pool = Pool((2, 5, 4), (3,), torch.zeros(1, dtype=F64))
    matrix = pool.matrix()[0]
    assert matrix.shape == (2 * 2 * 2, 40)
    for p, norm in (
        (1, matrix.abs().sum(0).max()),
        (2, torch.linalg.matrix_norm(matrix, 2)),
        ("inf", matrix.abs().sum(1).max()),
    ):
        torch.testing.assert_close(operator_norm(pool, p), norm.expand(3))
