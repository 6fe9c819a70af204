"""Second order with products in single precision: what they lose is in the remainder, and they are seldom wrong."""

import pytest
import torch

import polybound as pb
from polybound.certificates import Network
from polybound.certificates.expansion import second_order
from polybound.certificates.single import fits_single, product_in_single, single_error

F64 = torch.float64


@pytest.mark.parametrize("kind", ["CCP", "NCP"])
@pytest.mark.parametrize("same", [True, False])
def test_single_precision_is_within_its_bounds(kind, same):
    generator = torch.Generator().manual_seed(3)
    model = getattr(pb, kind)(150, 9, 3, 4, seed=1, dtype=F64)
    net = Network(model)
    c = torch.rand(3, 150, generator=generator, dtype=F64)
    c = c[:1].expand(3, -1).contiguous() if same else c
    r = torch.full_like(c, 0.05)
    r[:, :7] = 0.0
    active = torch.arange(7, 150)
    w, constant = net.C - net.C.roll(1, 0), net.beta - net.beta.roll(1, 0)
    exact = second_order(net, c, r, w, constant, active)
    quick = second_order(net, c, r, w, constant, active, quick=True)
    assert not torch.equal(exact.H, quick.H) and torch.equal(quick.H, quick.H.mT)
    away = (exact.H - quick.H).abs()
    # Over the cube a quadratic form moves by half of the sum, and its gradient by the row sums.
    assert (away.sum((1, 2)) / 2 <= quick.R - exact.R).all()
    assert (away.sum(2) <= quick.rest - exact.rest).all()
    # and the bound is no more than what 4 * 9 terms can lose of sizes that interval arithmetic sees
    assert (1e-4 * (exact.g0.abs() + exact.R + exact.H.abs().sum((1, 2)) * 100) >= quick.R - exact.R).all()
    (H, R), (Q, less) = exact.absorbed(), quick.absorbed()
    assert ((H - Q).abs().sum((1, 2)) / 2 <= (quick.R - exact.R) + less).all() and (less > R).all()


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12, 0.0])
def test_equal_boxes_are_expanded_as_different_ones(scale):
    model = pb.CCP(140, 5, 3, 3, seed=0, dtype=F64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    net = Network(model)
    x = torch.rand(1, 140, dtype=F64, generator=torch.Generator().manual_seed(0)).expand(3, -1).contiguous()
    r, active = torch.full_like(x, 0.1), torch.arange(140)
    w, constant = net.C - net.C.roll(1, 0), net.beta - net.beta.roll(1, 0)
    together = second_order(net, x, r, w, constant, active, quick=True)
    for i in range(3):
        one = slice(i, i + 1)
        alone = second_order(net, x[one], r[one], w[one], constant[one], active)
        for name in ("g0", "G", "R", "rest", "H"):
            a, b = getattr(together, name)[i], getattr(alone, name)[0]
            size = float(b.abs().max()) + 1e-300
            assert float((a - b).abs().max()) <= 1e-3 * size + float((together.R[i] - alone.R[0]).abs())


def test_products_that_cut_corners_are_not_taken():
    a, b = torch.randn(2, 1, 200, 64, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ b.double().mT
    near = product_in_single(a, b).double()
    assert ((near - exact).abs() <= single_error(64) * (a.double().abs() @ b.double().abs().mT)).all()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert product_in_single(a, b) is None
    finally:
        torch.set_float32_matmul_precision(before)
    assert fits_single(torch.tensor([1.0, 1e-3]))
    assert not fits_single(torch.tensor([1.0, 0.0])) and not fits_single(torch.tensor([1e20]))
    assert not fits_single(torch.tensor([float("nan")]))


def test_a_product_that_is_off_is_seen(monkeypatch):
    a, b = torch.randn(2, 1, 200, 64, generator=torch.Generator().manual_seed(0))
    true = torch.Tensor.__matmul__

    def coarse(x, y):
        return true(x.bfloat16().float(), y.bfloat16().float()) if x.dtype == torch.float32 else true(x, y)

    monkeypatch.setattr(torch.Tensor, "__matmul__", coarse)
    assert product_in_single(a, b) is None
