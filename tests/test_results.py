"""The results that come with the project: the scores, and what they say of the paper."""

from pathlib import Path

import pytest

from polybound.evaluation import paper_counts
from polybound.experiments import compare, read_scores

SCORES = Path(__file__).parents[1] / "docs" / "results" / "scores.csv"


@pytest.fixture(scope="module")
def scores():
    return read_scores(SCORES)


def test_the_published_values_that_are_met(scores):
    """Before the scores were carried over to the flat table, 164 of 180 were met, 142 of 156 distinct ones."""
    found = [c for c in compare(scores) if c.verdict != "reduced"]
    met = [c for c in found if c.verdict == "within"]
    values = {(c.paper.dataset, c.paper.model, c.paper.method, c.paper.attack) for c in found}
    distinct = {(c.paper.dataset, c.paper.model, c.paper.method, c.paper.attack) for c in met}
    assert len(met) >= 164 and len(found) >= 180
    assert len(distinct) >= 142 and len(values) >= 156


def test_every_score_says_what_it_is_of(scores):
    for row in scores:
        assert row["digest"] == row["data.digest"] and row["dataset"] == row["data"]
        assert row["counted"] == paper_counts(row["attack"], row["protocol"])
        assert 0 <= row["correct"] <= row["total"] <= row["available"]
        assert row["epoch"] <= row["schedule.epochs"]


def test_no_score_stands_twice(scores):
    names = ("run", "epoch", "split", "attack", "protocol", "attack_seed", "defence", "counted", "total")
    assert len({tuple(row[name] for name in names) for row in scores}) == len(scores)


def test_an_address_is_that_of_its_columns(scores):
    """The run of a row is found by what the row says of it."""
    from polybound.runs import Spec

    seen = {}
    for row in scores:
        seen.setdefault(row["run"], row)
    for address, row in seen.items():
        spec = {"seed": row["seed"], "adversary": None}
        for part in ("data", "model", "method", "optimiser", "schedule", "adversary"):
            if part in row:
                head = "attack" if part == "adversary" else "name"
                options = {name.partition(".")[2]: row[name] for name in row if name.startswith(f"{part}.")}
                spec[part] = {head: row[part], **options}
        assert Spec.from_dict(spec).address == address
