"""What a report is made of: axes, texts at points, figures as files, tables in every format, verdicts, what is missing."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.profiles import examples
from helpers.reports import CURVE, FIGURE, HOSTILE, PICTURES, TABLE, row_like, rows_like_the_paper, spec_like
from polybound.evaluation import Table
from polybound.experiments import compare, experiment_names, find_experiment, published
from polybound.report import build_report
from polybound.report.build import highest_pairs, report_runs, section
from polybound.report.draw import draw
from polybound.report.elements import ExperimentResult, Figure, Images, Line, Panel, Section, style
from polybound.report.elements import Table as Shown
from polybound.report.labels import network_names
from polybound.report.summary import pairs_of, pairs_table, questions_table, summarise
from polybound.report.tables import (
    bounds_table,
    by_heading,
    chosen_on_validation,
    missing_values,
    scores_table,
    seeds_text,
)
from polybound.report.text import figure_to_csv, read_figure, to_csv, to_latex, to_markdown
from polybound.runs import DataSpec, LoadedModel, Spec, evaluate_runs, train_runs
from polybound.training import Recipe

numbers = st.floats(-1e6, 1e6)
positive = st.floats(1e-3, 1e6)


@settings(max_examples=examples(70))
@given(st.lists(st.lists(st.tuples(positive, numbers), min_size=1, max_size=20), min_size=1, max_size=4), st.booleans())
def test_axes_hold_all_points_and_are_the_same_for_all_panels(panels, log):
    lines = [Line("a", [x for x, _ in points], [y for _, y in points]) for points in panels]
    figure = Figure("f", [Panel(str(n), "x", "y", [line], log_x=log) for n, line in enumerate(lines)])
    (((left, right), (low, high)),) = {figure.limits(panel) for panel in figure.panels}
    for line in lines:
        assert all(left < x < right for x in line.x) and all(low < y < high for y in line.y)


def test_lines_are_told_apart_without_colour():
    assert len({style(number)[1:] for number in range(24)}) == 24


@pytest.mark.parametrize("figure", [FIGURE, CURVE, PICTURES, Figure("Empty")])
def test_figures_are_files_that_can_be_read(figure, tmp_path):
    from PIL import Image

    draw(figure, tmp_path / "f.png", tmp_path / "f.svg")
    with Image.open(tmp_path / "f.png") as image:
        assert image.width > 100
    assert "<svg" in (tmp_path / "f.svg").read_text()


def test_hostile_words_are_drawn_as_text(tmp_path):
    panel = Panel(HOSTILE, HOSTILE, HOSTILE, [Line(HOSTILE, [0.0, 1.0], [1.0, 2.0], texts=["$a", HOSTILE])])
    draw(Figure(HOSTILE, [panel]), tmp_path / "f.png", tmp_path / "f.svg")
    draw(Figure("f", images=[Images(HOSTILE, [(HOSTILE, [[[1]]])])]), tmp_path / "g.svg")
    assert "<script>window" not in (tmp_path / "f.svg").read_text() + (tmp_path / "g.svg").read_text()
    table = Shown(HOSTILE, [HOSTILE], [[HOSTILE + "|x\ny"]], [(0, HOSTILE)], notes=[HOSTILE])
    markdown = to_markdown(table)
    assert "<" not in markdown and len(markdown.splitlines()[3].replace(r"\|", "").split("|")) == 3


def test_a_figure_is_read_back_from_its_data(tmp_path):
    for figure in (FIGURE, CURVE):
        file = tmp_path / "figure.csv"
        file.write_text(figure_to_csv(figure))
        again = read_figure(file, figure.title)
        assert figure_to_csv(again) == file.read_text() and again.title == figure.title
        for one, other in zip(figure.panels, again.panels, strict=True):
            for name in ("title", "log_x", "log_y", "x_label"):
                assert getattr(one, name) == getattr(other, name)
            for line, same in zip([*one.lines, *one.published], [*other.lines, *other.published], strict=True):
                assert list(line.x) == list(same.x) and list(line.y) == list(same.y) and line.kind == same.kind
    (tmp_path / "bad.csv").write_text("panel,line\na,b\n")
    refuses("not the data of a figure", read_figure, tmp_path / "bad.csv", "t")


def test_tables_in_every_format():
    markdown = to_markdown(TABLE).splitlines()
    assert markdown[2] == "| **Fashion-MNIST** | | | | | |"
    assert markdown[4] == "| clean | here | **87.16 ± 0.11** ✓ | 87.16 ± 0.11 ✗ | 87.16 ± 0.11 ○ | not run |"
    latex = to_latex(TABLE)
    assert r"none \& more" in latex and r"\textbf{87.16 $\pm$ 0.11} $\checkmark$" in latex and r"K\_MNIST" in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert rows[2]["attack"] == "<b>" and rows[1]["projection"] == "87.16 ± 0.11"
    assert [rows[1][f"{name}: verdict"] for name in TABLE.header[2:]] == ["met", "missed", "not published", "not run"]


@pytest.fixture(params=[0.0, 4.0])
def parts(request, tmp_path):
    """All tables of the paper, from scores at a distance from its values."""
    scores = Table(rows_like_the_paper(request.param))
    named = [find_experiment(name) for name in experiment_names() if find_experiment(name).published]
    found = []
    for experiment in named:
        known = {(row["data"], row["model"]) for row in scores}
        mine = scores.only(lambda row: row["attack"] in ("clean", *experiment.attacks))  # noqa: B023
        if known & {(data, model) for data in experiment.datasets for model in experiment.models}:
            found.append(ExperimentResult(experiment, mine, section(experiment, mine, tmp_path)))
    return found, scores


def test_the_opening_counts_what_the_cells_say(parts):
    found, scores = parts
    summary = summarise(found)
    compared = {one.paper.key: one.verdict for one in compare(scores)}
    verdicts = list(compared.values())
    assert (summary.met, summary.missed) == (verdicts.count("within"), verdicts.count("off"))
    assert summary.met + summary.missed == len(compared) > 0
    words = [word for part in found for table in part.section.parts for word in getattr(table, "verdicts", {}).values()]
    assert ("met" in words) == (summary.met > 0) and ("missed" in words) == (summary.missed > 0)
    assert (summary.misses is None) == (summary.missed == 0)
    points = [line for line in summary.headline.panels[0].lines if line.kind == "marks"]
    assert sum(len(line.x) for line in points) == len(compared)
    # What was not run is all the rest.
    assert sum(int(row[1] or 0) for row in summary.missing.rows) == summary.published - len(compared)
    assert f"{summary.met} of the {len(compared)} published values" in summary.verdict


def test_every_cell_of_a_table_has_a_verdict(parts):
    found, _ = parts
    for part in found:
        table = part.section.parts[0]
        places = {(r, c) for r, row in enumerate(table.rows) if row[1] != "paper" for c in range(2, len(row))}
        assert set(table.verdicts) == places
        for (r, c), word in table.verdicts.items():
            assert (word == "not run") == (table.rows[r][c] is None)
            assert table.rows[r][1] != "sound protocol" or word in ("not published", "not run")
        assert all(
            any(word.capitalize() in note or word in note for note in table.notes) for word in table.verdicts.values()
        )


def test_all_published_values_are_missing_where_nothing_was_run(tmp_path):
    rows = missing_values([], [find_experiment("table-1")], tmp_path)
    assert sum(int(row[1]) for row in rows) == len({value.key for value in published()})
    reasons = {row[0]: row[2] for row in rows}
    assert "was not on the machine" in reasons["E-MNIST-BY: PN-4, PN-10, PN-Conv"]
    assert missing_values({value.key for value in published()}, [find_experiment("table-1")], tmp_path) == []


def test_what_was_asked_for_and_not_run_is_named(tmp_path):
    wanted = [find_experiment(name).changed(seeds=1) for name in ("table-1", "table-7", "figure-3")]
    one = wanted[0].changed(datasets=("fashion-mnist",), models=("pn-4",), methods=("none",))
    spec = one.specs(pb.data.digest_of)[0]
    scores = Table([row_like(spec, "clean", "-", 87.0)])
    made = build_report(wanted, tmp_path, tmp_path / "r.html", scores=scores)
    assert [one.name for one in made.sections] == ["table-1"] and made.summary.met == 1
    missing = {row[0]: row[2] for row in made.summary.missing.rows}
    assert "E-MNIST-BY: PN-4, PN-10, PN-Conv" in missing and "Figure 3: CIFAR-10: PN-Conv" in missing
    assert sum(int(row[1] or 0) for row in made.summary.missing.rows) == made.summary.published - 1


def test_bounds_of_runs_are_in_numerical_order_and_names_differ():
    model = pb.models.CCP(4, 2, 2, 2, seed=0)
    about = {"data": "digits", "model": "pn-4", "method": "projection", "seed": 0}
    loaded = []
    for n, bound in enumerate((100.0, 0.5, 20.0, 2.0)):
        mine = {**about, "method.bound": bound, "run": f"a{n}"}
        loaded.append(LoadedModel(path=Path(f"r{n}"), model=model, weights="w", about=mine))
    rows = bounds_table(loaded).rows
    assert [row[0] for row in rows] == [f"projection, bound {bound}" for bound in ("0.5", "2", "20", "100")]
    twins = [replace(loaded[0], path=Path("here")), replace(loaded[0], path=Path("there"))]
    assert network_names(twins) == ["projection, bound 100 (here)", "projection, bound 100 (there)"]


def test_seeds_are_counted_of_each_bound():
    """Two bounds of one seed each, of different seeds, are no two seeds; of two methods each counts for itself."""
    names = {"data": "kmnist", "model": "pn-conv", "defence": ""}
    options = {"method.norm": "inf", "method.on": "weights"}
    bounded = [
        {**names, **options, "method": "projection", "method.bound": bound, "seed": seed}
        for bound, seed in ((1.2, 0), (2.0, 1))
    ]
    plain = [{**names, "method": "none", "seed": seed} for seed in (0, 1)]
    assert seeds_text(Table(bounded)) == ", 1 seed"
    assert seeds_text(Table([*bounded, *plain])) == ", 1 to 2 seeds"
    assert seeds_text(Table([*bounded, {**bounded[0], "seed": 1}, *plain])) == ", 2 seeds"


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
    made = report_runs([tiny_run], tmp_path / "r.html")
    assert made.summary.verdict.startswith("1 run of 1 configuration") and made.summary.compared is None
    scores = made.sections[0].parts[0]
    assert [row[2] for row in scores.rows] == ["360", "5 of 360", "360"]


def test_the_chosen_configuration_lacks_nothing():
    columns = [("clean", "-"), ("fgsm-0.1", "sound")]

    def rows(method, clean, attacked):
        made = [*rows_of([(method, clean)], "clean"), *rows_of([(method, attacked)])]
        return [{**row, "split": split} for row in made for split in ("validation", "test")]

    whole = rows(TIGHT, (30.0, 30.0), (20.0, 20.0))
    for lacking in (rows(WIDE, (90.0, 90.0), ()), rows(WIDE, (90.0,), (90.0,))):
        chosen, level = chosen_on_validation(Table([*lacking, *whole]), columns)
        assert level == "1" and set(chosen.values("method.bound")) == {1.0}
