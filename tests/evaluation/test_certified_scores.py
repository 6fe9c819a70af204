"""Certified scores: the same on every machine, each with the budget of its proofs."""

import time
from itertools import count

import pytest
import torch

import polybound as pb
from polybound.data import Dataset
from polybound.errors import PolyboundError
from polybound.evaluation import Table, evaluate, read_table


@pytest.fixture(scope="module")
def hard():
    """A network and images of which some are verified by branch and bound alone."""
    model = pb.CCP(features=4, rank=16, classes=3, degree=8, seed=0, dtype=torch.float64)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1.5)
    x = 2 * torch.rand(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    return model, Dataset("points", "test", x, model(x).argmax(1), ("a", "b", "c"))


def verified(hard, radius):
    (score,) = [row for row in evaluate(*hard, [], certify=[radius]).scores if row["counted"] == "verified"]
    return score["attack"], score["correct"]


def test_a_slow_machine_certifies_as_many_images(hard, monkeypatch):
    quick, hours = verified(hard, 0.2), count()
    monkeypatch.setattr(time, "perf_counter", lambda: 3600.0 * next(hours))
    assert verified(hard, 0.2) == quick
    assert quick[0] == "certified-0.2:nodes=256" and quick[1] > verified(hard, "0.2:nodes=0")[1]
    assert verified(hard, "0.2:seconds=60") == ("certified-0.2:seconds=60", verified(hard, "0.2:nodes=0")[1])


def test_a_larger_budget_never_certifies_less(hard):
    found = [verified(hard, f"0.2:nodes={nodes}")[1] for nodes in (0, 1, 8, 64, 512)]
    assert found == sorted(found) and found[0] < found[-1]
    assert verified(hard, "0.2:nodes=8:seconds=1e6") == ("certified-0.2:nodes=8:seconds=1000000", found[2])


def test_certify_splits_no_more_cells_than_it_may(hard):
    model, data = hard
    with pytest.raises(PolyboundError, match="nodes"):
        pb.certify(model, data.x, data.y, 0.2, nodes=-1)
    none = pb.certify(model, data.x, data.y, 0.2, nodes=0)
    assert none.status == pb.certify(model, data.x, data.y, 0.2, budget=0.0).status
    assert "branch" not in none.stage


def test_scores_from_before_were_a_matter_of_one_second(hard):
    row = dict(evaluate(*hard, [], certify=[0.2]).scores.rows[-1])
    old = Table([{**row, "attack": "certified-0.2"}, {**row, "attack": "certified-0.2:norm=2"}, row])
    (first, second, third) = read_table(old.to_csv())
    assert first["attack"] == "certified-0.2:seconds=1" and second["attack"] == "certified-0.2:norm=2:seconds=1"
    assert third["attack"] == "certified-0.2:nodes=256"
    assert read_table(Table([first, second, third]).to_csv()).rows == [first, second, third]
