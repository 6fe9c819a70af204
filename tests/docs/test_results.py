"""The results that come with the project: the scores, and what they say of the paper."""

from pathlib import Path

import pytest

from generator.results import VERDICTS, claim, share
from polybound.evaluation import paper_counts
from polybound.experiments import compare, read_scores

SCORES = Path(__file__).parents[2] / "docs" / "results" / "scores.csv"


@pytest.fixture(scope="module")
def scores():
    return read_scores(SCORES)


@pytest.fixture(scope="module")
def found(scores):
    return [each for each in compare(scores) if each.verdict in VERDICTS]


def test_the_published_values_that_are_met(found):
    """Below this, something that was met is so no longer."""
    values, met = {each.paper.key for each in found}, [each for each in found if each.verdict == "within"]
    assert len(met) >= 260 and len(found) >= 288
    assert len({each.paper.key for each in met}) >= 238 and len(values) >= 264


def test_no_published_value_has_two_verdicts(found):
    """Rows of two variants, such as two adversaries, would count a value twice."""
    verdicts = {}
    for each in found:
        verdicts.setdefault(each.paper.key, set()).add((each.verdict, each.variant))
    assert [key for key, kinds in verdicts.items() if len(kinds) > 1] == []


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md"])
def test_the_counts_in_the_prose_are_those_of_the_scores(found, page):
    once = list({each.paper.key: each for each in found}.values())
    models = {name: share(each for each in once if each.paper.model == name) for name in ("PN-4", "PN-10", "PN-Conv")}
    met, _, total = share(once).split()
    said = {
        "README.md": [
            f"Of the {total} published values covered so far, {met} are met",
            f"for PN-4 {models['PN-4']}, for PN-Conv {models['PN-Conv']},",
        ],
        "docs/results/README.md": [
            f"**{met} of the {total} published values that were run are met",
            f"for PN-4 {models['PN-4']} are met, for PN-10 {models['PN-10']},",
            f"for PN-Conv {models['PN-Conv']} (one seed",
            f"`polybound compare` has {share(found)},",
            f"of the {int(total) - int(met)} misses are too low",
        ],
    }
    text = " ".join((SCORES.parents[2] / page).read_text(encoding="utf-8").split())
    assert [words for words in said[page] if words not in text] == []


def test_the_table_of_the_claim_is_that_of_the_scores(scores):
    """Every model and data set with a bound and without, and no number that was typed."""
    table = claim(scores)
    assert table in (SCORES.parent / "README.md").read_text(encoding="utf-8")
    assert all(
        f"| {model}, {data} |" in table for model in ("PN-4", "PN-10", "PN-Conv") for data in ("K-MNIST", "MNIST")
    )
    assert "| PN-Conv, CIFAR-10 |" in table


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
