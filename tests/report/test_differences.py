"""What a report says to its questions: differences with intervals, of distinct networks on the same images."""

import pytest

from helpers.reports import row_like, spec_like
from polybound.evaluation import Table
from polybound.experiments import find_experiment
from polybound.report.build import highest_pairs, report_runs
from polybound.report.elements import ExperimentResult, Section
from polybound.report.summary import pairs_of, pairs_table, questions_table, summarise
from polybound.report.tables import by_heading, chosen_on_validation, scores_table
from polybound.runs import DataSpec, Spec, evaluate_runs, train_runs
from polybound.training import Recipe

PLAIN, TIGHT, WIDE = {"method": "none"}, *({"method": "projection", "bound": bound} for bound in (1.0, 2.0))


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """A run that was measured on five images, on all, and behind a denoiser."""
    spec = Spec(DataSpec.of("digits"), recipe=Recipe.from_options(epochs=1))
    (run,) = train_runs([spec], tmp_path_factory.mktemp("runs"))
    for options in ({"limit": 5}, {}, {"defence": "median"}):
        evaluate_runs([run.path], [], **options)
    return run.path


def rows_of(values, attack="fgsm-0.1", **changes):
    """Rows of some methods, with the percentage of each seed."""
    return [
        {**row_like(spec_like(seed, **method), attack, "-" if attack == "clean" else "sound", value), **changes}
        for method, shares in values
        for seed, value in enumerate(shares)
    ]


def part(rows, name="table-1"):
    return ExperimentResult(find_experiment(name), Table(rows), Section(name, name))


def test_a_question_has_its_difference_interval_images_and_seeds():
    values = [(PLAIN, (10.0, 20.0)), (TIGHT, (50.0, 60.5)), (WIDE, (30.0, 70.0)), ({"method": "l2"}, (56.0, 57.0))]
    pairs = pairs_of([part(rows_of(values))])
    rows = questions_table(pairs).texts
    assert [row[0] for row in rows] == [
        "Does a bound on the norms make networks robust?",
        "Is projection ahead of the penalties?",
    ]
    assert rows[0][1] == ("projection with no projection, sound protocol: Fashion-MNIST, PN-4, FGSM-0.1, bound 1")
    # Student's interval of the differences 40 and 40.5.
    assert rows[0][2] == "+40.2 points (+37.1 to +43.4)" and rows[0][3] == "10,000 images, 2 seeds"
    assert rows[1][1].startswith("projection with L2") and rows[1][2].startswith("-1.2 points (-")
    details = pairs_table(pairs)
    assert details.rows[0][1] is pairs[0].difference and [first for first, _ in details.groups] == [0, 1]


def test_reduced_runs_are_no_verdict():
    """2 of 20 images against none: the interval holds 0, and the cut schedule stands beside it."""
    rows = []
    for method, correct in ((PLAIN, 0), (TIGHT, 2)):
        row = row_like(spec_like(0, epochs=2, **method), "fgsm-0.1", "sound", 0.0)
        rows.append({**row, "total": 20, "available": 360, "correct": correct})
    summary = summarise([part(rows)])
    (shown,) = summary.compared.texts
    assert shown[2:] == ["+10.0 points (-7.7 to +30.1)", "20 of 360 images, 1 seed, 2 of 100 epochs"]
    assert "Yes" not in " ".join(shown)


def test_many_pairs_are_one_line_with_their_median():
    attacks = {"fgsm-0.1": 50.0, "pgd-0.1-20-0.01": 10.0, "pgd-0.3-20-0.03": 0.1}
    rows = [
        row for attack, more in attacks.items() for row in rows_of([(PLAIN, (5.0,)), (TIGHT, (5.0 + more,))], attack)
    ]
    (shown,) = questions_table(pairs_of([part(rows)])).texts
    assert shown[1].endswith(": 3 pairs")
    assert shown[2] == "+10.0 points in the median, +0.1 to +50.0; interval above 0 in 2, below 0 in 0"


def test_one_network_measured_thrice_is_no_three_rivals():
    """On five images, on all, and behind a denoiser: nothing is compared, and the full measurement wins."""
    full = rows_of([(PLAIN, (40.0,))], "clean")
    few = [{**full[0], "total": 5, "correct": 5}]
    defended = [{**full[0], "defence": "median", "correct": 9000}]
    table = Table([*few, *full, *defended])
    assert not highest_pairs(by_heading(table.fullest()))
    assert [row["total"] for row in table.fullest()] == [10000, 10000]
    shown = scores_table(table)
    assert [row[2] for row in shown.rows] == ["10,000", "5 of 10,000", "10,000"] and len(shown.groups) == 2


def test_rivals_are_measured_on_the_same_images():
    rows = [*rows_of([(PLAIN, (40.0,)), (WIDE, (42.0,))], "clean"), *rows_of([(TIGHT, (60.0,))], "clean")]
    rows[-1] |= {"total": 5, "correct": 5}
    (pair,) = highest_pairs(by_heading(Table(rows).fullest()))
    assert pair.sides == "projection, bound 2 with none, the next of 2"
    assert pair.difference.points == pytest.approx(2.0) and pair.difference.low > 0


def test_the_report_of_a_run_with_a_limit(tiny_run, tmp_path):
    """The accuracy on five images is beside their number, and no rival of the accuracy on all."""
    made = report_runs([tiny_run], tmp_path / "r.html")
    assert made.summary.verdict.startswith("1 run of 1 configuration") and made.summary.compared is None
    scores = made.sections[0].parts[0]
    assert [row[2] for row in scores.rows] == ["360", "5 of 360", "360"]


def test_the_chosen_configuration_lacks_nothing():
    """A bound without one of the attacks, or with fewer seeds, is not the best, however high its other cells are."""
    columns = [("clean", "-"), ("fgsm-0.1", "sound")]

    def rows(method, clean, attacked):
        made = [*rows_of([(method, clean)], "clean"), *rows_of([(method, attacked)])]
        return [{**row, "split": split} for row in made for split in ("validation", "test")]

    whole = rows(TIGHT, (30.0, 30.0), (20.0, 20.0))
    for lacking in (rows(WIDE, (90.0, 90.0), ()), rows(WIDE, (90.0,), (90.0,))):
        chosen, level = chosen_on_validation(Table([*lacking, *whole]), columns)
        assert level == "1" and set(chosen.values("method.bound")) == {1.0}
