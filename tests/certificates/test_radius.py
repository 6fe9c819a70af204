"""The bisection of radii: it ends at every tolerance, with numbers that hold."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64
from polybound.certificates.certify import bisected


@given(st.lists(st.floats(0, 2.0), min_size=1, max_size=4), st.sampled_from([1e-17, 1e-16, 1e-3, 3.0]))
@example([0.1], 1e-17)
@example([0.0], 5e-324)
def test_it_ends_at_any_tolerance(truths: list[float], tolerance: float):
    truth = torch.tensor(truths, dtype=F64)
    rounds = 0

    def tried(rows: torch.Tensor, radii: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal rounds
        rounds += 1
        assert rounds < 5000
        return radii <= truth[rows], radii

    found = bisected(tried, len(truth), 1.0, tolerance)
    assert (found <= truth).all()
    near = torch.minimum(truth, torch.ones(1, dtype=F64))
    assert (near - found <= tolerance).all()


def test_a_tolerance_below_the_spacing_of_numbers():
    model = pb.CCP(1, 1, 2, 1, seed=0, dtype=F64)
    x = torch.tensor([[0.5]], dtype=F64)
    label = model(x).argmax(1)
    found = pb.certified_radius(model, x, label, tolerance=1e-18, largest=4.0, domain=None, method="first")
    assert 0 <= float(found.certified[0]) <= float(found.attacked[0])
