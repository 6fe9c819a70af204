"""Second order in single precision, and with products bounded together: what is lost is in the remainder."""

import pytest
import torch

import polybound as pb
from polybound.certificates import PreparedNetwork
from polybound.certificates.bounds.second_order import second_order
from polybound.certificates.bounds.slopes import fits_single, product_in_single, single_error

F64 = torch.float64


@pytest.mark.parametrize("kind", ["CCP", "NCP"])
@pytest.mark.parametrize("same", [True, False])
def test_single_precision_is_within_its_bounds(kind, same):
    generator = torch.Generator().manual_seed(3)
    model = getattr(pb, kind)(150, 9, 3, 4, seed=1, dtype=F64)
    net = PreparedNetwork(model)
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
    net = PreparedNetwork(model)
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
