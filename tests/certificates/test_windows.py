"""Convolutions window by window: the same maps, expansions and decisions as with matrices."""

import pytest
import torch

import polybound as pb
from polybound.certificates import PreparedNetwork
from polybound.certificates.bounds.first_order import first_order
from polybound.certificates.bounds.second_order import second_order
from polybound.certificates.bounds.slopes import BALL, CUBE
from polybound.models.windows import Windowed

F64 = torch.float64

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
    options = {"region": region, "tight": region is CUBE}
    a, b = (second_order(n, x, r, w[:, 1], constant[:, 1], active, **options) for n in (net, full))
    for name in ("g0", "G", "H", "R", "rest"):
        same(getattr(a, name), getattr(b, name))
    for ours, theirs in zip(a.absorbed(), b.absorbed(), strict=True):
        # The last is a rounding's bound, and tiny.
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_windows_are_taken_where_they_are_smaller():
    large = pb.ConvCCP((1, 20, 20), 2, 3, 2, 3, seed=0)
    small = pb.ConvCCP((1, 4, 4), 2, 3, 2, 3, pre=3, seed=0)
    assert isinstance(PreparedNetwork(large).A[0], Windowed) and not isinstance(PreparedNetwork(small).A[0], Windowed)


def test_windows_decide_as_matrices_do():
    model = pb.ConvCCP((1, 10, 10), 3, 3, 3, 3, pre=3, pool=(2,), seed=1, dtype=F64)
    x = torch.rand(12, 1, 10, 10, dtype=F64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    y = model(x).argmax(1)
    found = [
        pb.certify(PreparedNetwork(model, by_windows=by_windows), x, y, eps, method="second")
        for by_windows in (True, False)
        for eps in (0.01, 0.2, 0.6)
    ]
    assert [f.status for f in found[:3]] == [f.status for f in found[3:]]
    assert {status for f in found for status in f.status} >= {"verified", "falsified"}
