"""theta, gamma and the Gram closed forms against the explicitly built matrices of size d^k."""

import subprocess
import sys
from functools import reduce
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, ncps, networks
from polybound.models import Conv, lift, windows
from polybound.models.windows import Windowed
from polybound.theory import factor_norms, gamma, gram_norm, lifted_norm, operator_norm, theta, torus_norm

CLOSE = {"rtol": 1e-9, "atol": 1e-300}


def big_matrix(model):
    """The paper's lifted matrix: the face-splitting product of CCP, Phi of Theorem 3 of NCP."""
    matrices = model.factors().matrices()
    matrices.pop("C")
    if "U1" in matrices:
        rows = [[u[j] for u in matrices.values()] for j in range(matrices["U1"].shape[0])]
        return torch.stack([reduce(torch.kron, row) for row in rows])
    degree = len(matrices) // 2
    d = matrices["A1"].shape[1]
    S = {1: matrices["s1"].unsqueeze(1)} | {n: matrices[f"S{n}"] for n in range(2, degree + 1)}
    phi = None
    for n in range(degree, 0, -1):
        A = matrices[f"A{n}"]
        step = torch.stack([torch.kron(a, s) for a, s in zip(A, S[n], strict=True)])
        eye = torch.eye(d ** (degree - n), dtype=F64)
        phi = step if phi is None else phi @ torch.kron(eye, step)
    return phi


@given(st.one_of(ccps(), ncps()))
def test_theta_and_gram_norm_are_those_of_the_lifted_matrix(model):
    big = big_matrix(model)
    torch.testing.assert_close(gram_norm(model), torch.linalg.matrix_norm(big, 2), **CLOSE)
    exact = big.abs().sum(1).max()
    if isinstance(model, pb.CCP) or model.degree == 1:  # then NCP is a CCP, and exact
        torch.testing.assert_close(theta(model), exact, **CLOSE)
    assert theta(model) >= exact * (1 - 1e-15)


@given(ncps())
def test_the_lifted_matrix_is_the_function(model):
    big = big_matrix(model)
    x = torch.randn(4, model.features, dtype=F64)
    z = torch.cat([x, torch.ones(4, 1, dtype=F64)], dim=1)
    powers = torch.stack([reduce(torch.kron, [row] * model.degree) for row in z])
    C = model.factors().matrices()["C"]
    torch.testing.assert_close(powers @ big.T @ C.T, model(x))


@given(networks())
def test_factor_norms_are_those_of_the_lemmas_matrices(model):
    matrices = model.factors().matrices()
    for p in (1, 2, inf):
        norms = factor_norms(model, p)
        assert list(norms) == [name.replace("s", "S") for name in matrices]
        for name, matrix in matrices.items():
            key = {"s1": "S1"}.get(name, name)
            norm = matrix.abs().amax() if name == "s1" else torch.linalg.matrix_norm(matrix, p)
            torch.testing.assert_close(norms[key], norm, **CLOSE)


@given(networks())
def test_lemmas_1_and_2_exact_is_never_above_relaxed(model):
    assert theta(model) <= gamma(model) * (1 + 1e-12)
    assert gram_norm(model) <= gamma(model, 2) * (1 + 1e-12)
    names = [name for name in factor_norms(model) if name != "C"]
    product = torch.stack([factor_norms(model)[name] for name in names]).prod()
    torch.testing.assert_close(gamma(model), product, **CLOSE)


@given(networks(runs=(3,)))
def test_a_stack_has_the_norms_of_its_members(model):
    together = theta(model), gram_norm(model), {p: factor_norms(model, p) for p in (1, 2, inf, 3)}
    for e in range(3):
        run = model.run(e)
        torch.testing.assert_close(together[0][e], theta(run))
        torch.testing.assert_close(together[1][e], gram_norm(run))
        for p, norms in together[2].items():
            alone = factor_norms(run, p)
            assert alone.keys() == norms.keys()
            for name, value in norms.items():
                torch.testing.assert_close(value[e], alone[name])


def test_convolutions_too_large_to_write_out_get_upper_bounds(monkeypatch):
    model = pb.paper_model("pn-conv", shape=(1, 12, 12), rank=3, dtype=F64, seed=0)
    exact = {p: factor_norms(model, p) for p in (1, 2, inf, 3)}
    exact_theta = theta(model)
    monkeypatch.setattr("polybound.theory.norms.DENSE_LIMIT", 0)
    monkeypatch.setattr("polybound.theory.norms.EXACT_LIMIT", 0)
    for p, norms in exact.items():
        relaxed = factor_norms(model, p)
        for name, norm in norms.items():
            assert norm <= relaxed[name] * (1 + 1e-12), (p, name)
    assert exact_theta <= theta(model)
    assert gram_norm(model) is None


def test_lifted_norm_of_convolution_with_bias():
    conv = Conv(torch.randn(2, 1, 3, 3, dtype=F64), torch.randn(2, dtype=F64), (1, 4, 4))
    for p in (1, inf):
        torch.testing.assert_close(lifted_norm(conv, True, p), torch.linalg.matrix_norm(lift(conv, True), p), **CLOSE)
    assert lifted_norm(conv, True, 2) >= torch.linalg.matrix_norm(lift(conv, True), 2)


@pytest.mark.parametrize("p", [0.5, 0, -1, "three", None, float("nan")])
def test_bad_exponents(p):
    refuses("", operator_norm, torch.eye(2), p)


def test_the_norm_on_the_torus_does_not_depend_on_the_stack():
    """How far it is rounded outwards once depended on how many kernels there were."""
    kernels = torch.randn(40, 3, 2, 2, 5, dtype=F64)
    together = torus_norm(kernels, (7,))
    for run, alone in zip(together, kernels, strict=True):
        torch.testing.assert_close(run, torus_norm(alone, (7,)), rtol=8 * torch.finfo(F64).eps, atol=0.0)


WINDOWED = [
    {"shape": (1, 12, 12), "channels": 2, "degree": 4, "kernel": 3, "pre": 3, "pool": (2, 3)},
    {"shape": (2, 30), "channels": 3, "degree": 3, "kernel": 3, "pre": 3, "pool": (1,)},
]


@pytest.mark.parametrize("config", WINDOWED, ids=["2d", "1d"])
def test_bounds_of_convolutions_window_by_window_are_those_of_matrices(config, monkeypatch):
    model = pb.ConvCCP(classes=3, **config, seed=0, dtype=F64)
    with torch.no_grad():
        model.c.copy_(torch.randn_like(model.c))
    factors = model.factors().double()
    assert any(isinstance(a, Windowed) for a in factors.written_out.A)
    assert all(isinstance(a, pb.models.Dense) for a in factors.dense.A)
    for whole, by_windows in zip(factors.dense.A, factors.written_out.A, strict=True):
        for p in (1.0, 1.5, 2.0, 3.0, inf):
            for unit in (True, False):
                one, other = (float(lifted_norm(step, unit, p)) for step in (whole, by_windows))
                assert other == pytest.approx(one, rel=1e-8)
            one, other = (float(operator_norm(step, p)) for step in (whole, by_windows))
            assert other == pytest.approx(one, rel=1e-8) and other >= one * (1 - 1e-12)
    values = [float(row) for row in pb.bounds(model, radius=1.5)] + [float(pb.lipschitz(model, 1.5))]
    reach = pb.theory.sensitivity(model)
    monkeypatch.setattr(windows, "SAVING", 10**9)
    assert values == pytest.approx(
        [float(row) for row in pb.bounds(model, radius=1.5)] + [float(pb.lipschitz(model, 1.5))], rel=1e-8
    )
    torch.testing.assert_close(pb.theory.sensitivity(model), reach, rtol=1e-8, atol=0.0)


MEMORY = """
import resource, torch, polybound as pb
torch.set_num_threads(1)
def most_memory(side):
    model = pb.ConvCCP((3, side, side), channels=4, classes=2, degree=2, kernel=7, pre=3, seed=0)
    pb.lipschitz(model, method="rowwise"), pb.lipschitz(model, method="local")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(-most_memory(4) + most_memory(20))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process had is in kilobytes on Linux only")
def test_bounds_of_convolutions_need_little_memory():
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    # All unit vectors at once make 1,200 images, of 400 windows of 196 numbers each: 753 MB.
    assert int(result.stdout) < 250_000
