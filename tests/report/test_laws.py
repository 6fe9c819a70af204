"""What people see, as a law: two configurations that differ in any one field never share a number.

The fields are all columns of a spec and all that identifies a score; every number that is shown is computed again from
the raw counts.
"""

import io
import json
import re
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.profiles import examples
from polybound.cli.tables import labelled, mean_rows, show_means, show_scores
from polybound.evaluation import Evaluation, MixedError, Score, Table, paper_counts
from polybound.experiments import Experiment, compare
from polybound.report.build import LAYOUTS
from polybound.report.labels import cell_text
from polybound.report.tables import scores_table
from polybound.runs import DataSpec, Spec
from polybound.training import Recipe

BASES = {
    "none": Recipe(),
    "projection": Recipe.from_options(method="projection", bound=1.0),
    "jacobian": Recipe.from_options(method="jacobian"),
    "l2": Recipe.from_options(method="l2"),
    "certified": Recipe.from_options(method="certified"),
    "adversary": Recipe.from_options(adversary="fgsm-0.1"),
}
SEEDS = (0, 1)


def spec_of(base):
    return Spec(DataSpec("fashion-mnist", "00ff00ff00ff00ff"), recipe=BASES[base])


def spec_fields(base):
    """All that determines a run but the seed, as paths into its canonical form."""
    content = spec_of(base).as_dict()
    inner = [(part, key) for part, options in content.items() if isinstance(options, dict) for key in options]
    return [*inner, ("method",), *([("adversary",)] if spec_of(base).recipe.method.takes_adversary else [])]


# What stands for another value of a field that is a word.
WORDS = {
    ("data", "name"): "kmnist",
    ("data", "digest"): "11ee11ee11ee11ee",
    ("model", "name"): "ncp-4",
    ("method", "norm"): "2",
    ("method", "on"): "operator",
    ("method", "how"): "exact",
    ("adversary", "attack"): "pgd-0.1-5-0.03",
    ("adversary", "protocol"): "published",
    ("adversary",): {"attack": "fgsm-0.2", "protocol": "sound", "start": 50},
    ("schedule", "milestones"): [10, 20],
}
PARTS = (("method", "name"), ("optimiser", "name"), ("schedule", "name"))
"""A part of another name has other options: the method is changed as a whole, the others have one name."""


def draw_other(draw, spec, path):
    """The same spec with another value for one field."""
    content = json.loads(json.dumps(spec.as_dict()))
    holder = content if len(path) == 1 else content[path[0]]
    old = holder[path[-1]]
    if path == ("method",):
        new = {"name": "l2", "weight": 0.5} if old["name"] != "l2" else {"name": "none"}
    elif path in WORDS:
        new = WORDS[path]
    elif path == ("data", "held_out"):
        new = draw(st.floats(0.01, 0.9))
    elif isinstance(old, int):
        new = draw(st.integers(1, 99))
    else:
        shares = content["method"]["name"] == "certified" and path[0] == "method"
        new = draw(st.floats(1e-4, 1.0 if shares else 9.0))
    holder[path[-1]] = new
    other = Spec.from_dict(content)
    assume(other != spec)
    return other


# Fields of a score, with other values; "epoch" is after which it was measured.
SCORE_FIELDS = {
    "digest": st.just("22dd22dd22dd22dd"),
    "split": st.sampled_from(["train", "validation"]),
    "held_out": st.floats(0.01, 0.9),
    "attack": st.sampled_from(["fgsm-0.2", "pgd-0.1-20-0.01", "pgd-0.1-20-0.01:random_start=false", "fgsm-0.10000001"]),
    "protocol": st.just("published"),
    "attack_seed": st.integers(1, 99),
    "defence": st.sampled_from(["gaussian", "median"]),
    "counted": st.just("attacked"),
    "total": st.integers(100, 999),
    "available": st.integers(1001, 2000),
    "epoch": st.integers(1, 99),
}
PUBLISHED = {"protocol": "published", "counted": "attacked"}
"""The one field that brings another with it: under the published protocol, people count in another way."""

NOT_OF_A_CLEAN_SCORE = ("attack", "protocol", "counted", "attack_seed", "published")


def rows_of(spec, changes, counts, clean):
    """Rows of both seeds under the attack, and of the clean images."""
    rows = []
    for seed, right, plain in zip(SEEDS, counts, clean, strict=True):
        mine = replace(spec, seed=seed)
        about = {**mine.columns(), "run": mine.address, "epoch": mine.recipe.epochs}
        what = {"weights": mine.address, "dataset": mine.data.name, "digest": mine.data.digest, "split": "test"}
        how = {"attack": "fgsm-0.1", "protocol": "sound", "attack_seed": 0, "counted": "robust"}
        other = {"held_out": 0.0, "defence": "", "total": 1000, "available": 1000}
        score = Score(**what, **how, **other, correct=right).as_dict()
        rows.append({**about, **score, **changes})
        kept = {name: value for name, value in changes.items() if name not in NOT_OF_A_CLEAN_SCORE}
        without = {"attack": "clean", "protocol": "-", "counted": "-", "correct": plain}
        rows.append({**about, **score, **kept, **without})
    return rows


class Case:
    """Two configurations that differ in one field, with two seeds each."""

    def __init__(self, field, first, second):
        self.field, self.first, self.second = field, first, second
        self.parts = (first, second)
        rows = {json.dumps([row[name] for name in sorted(row)]): row for row in [*first, *second]}
        self.table = Table(rows.values())

    def __repr__(self):
        return f"Case({self.field}: {self.first[0]} | {self.second[0]})"

    def attacked(self):
        """The table without the clean scores."""
        return self.table.only(lambda row: row["attack"] != "clean")

    def texts(self, attack=True):
        """How the number of each configuration is written."""
        return [text_of(shares(part, attack)) for part in self.parts]


def shares(rows, attack=True):
    return [100 * row["correct"] / row["total"] for row in rows if (row["attack"] != "clean") == attack]


def text_of(values):
    return f"{fmean(values):.2f} ± {stdev(values):.2f}"


@st.composite
def cases(draw, bases=tuple(BASES)):
    base = draw(st.sampled_from(bases))
    counts = draw(st.lists(st.integers(0, 100), min_size=8, max_size=8, unique=True))
    spec, changes = spec_of(base), {}
    named = [path for path in spec_fields(base) if path not in PARTS]
    field = draw(st.sampled_from([*named, *SCORE_FIELDS, "published"]))
    other = spec
    if isinstance(field, tuple):
        other = draw_other(draw, spec, field)
    else:
        changes = PUBLISHED if field == "published" else {field: draw(SCORE_FIELDS[field])}
    clean = counts[2:4] if field in NOT_OF_A_CLEAN_SCORE else counts[6:]  # the clean images know no attack
    case = Case(field, rows_of(spec, {}, counts[:2], counts[2:4]), rows_of(other, changes, counts[4:6], clean))
    assume(len({*case.texts(), *case.texts(attack=False)}) == (3 if field in NOT_OF_A_CLEAN_SCORE else 4))
    return case


def test_every_field_is_among_those_that_are_changed():
    for base in BASES:
        spec = spec_of(base)
        paths = spec_fields(base)
        names = {".".join(path).removesuffix(".name") for path in paths if path[0] != "adversary" or len(path) > 1}
        columns = {
            name.replace("adversary", "adversary.attack") if name == "adversary" else name for name in spec.columns()
        }
        assert columns - {"seed"} <= names | {"adversary.attack"}
    # The weights follow from the spec and the epoch; correct and per_class are what came out; the name is the data's.
    assert set(SCORE_FIELDS) | {"weights", "correct", "per_class", "dataset"} == {*Score.names(), "epoch"}


def told(table):
    """What a reader sees of each number of a table: heading, label, images and column."""
    headings = dict(table.groups)
    seen, heading = {}, ""
    for number, row in enumerate(table.rows):
        heading = headings.get(number, heading)
        for column, cell in zip(table.header[3:], row[3:], strict=True):
            if cell is not None:
                seen.setdefault((heading, row[0], row[2], column), []).append((row[1], str(cell)))
    return seen


@settings(max_examples=examples(100))
@given(cases())
def test_a_report_of_runs_has_a_place_for_each(case):
    table = case.table.only(lambda row: row["counted"] == paper_counts(row["attack"], row["protocol"]))
    shown = told(scores_table(table))
    assert all(len(cells) == 1 for cells in shown.values()), shown  # no two numbers are told apart by nothing
    found = Counter(cell for ((_, cell),) in shown.values())
    wanted = {text for attack in (True, False) for text in case.texts(attack)}
    if case.field in ("counted", "protocol"):  # under each protocol, a report counts one way
        wanted.remove(case.texts()[1])
    assert found == Counter(wanted)
    assert {seeds for ((seeds, _),) in shown.values()} == {2}


def printed(show, *arguments):
    """What a command prints where there is room, whatever the terminal of the tests is."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setenv("COLUMNS", "10000")
        patch.setenv("NO_COLOR", "1")
        show(*arguments)
    return out.getvalue()


def cells_of(text):
    """The lines of a table on a terminal, as cells; each with what stands above it."""
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines() if line[:1] in "│┃"]
    header, *rows = rows
    return header, rows


@settings(max_examples=examples(100))
@given(cases())
def test_evaluate_prints_a_line_or_a_column_for_each(case):
    table = Evaluation(case.attacked()).counted(case.first[0]["counted"])
    rows = labelled(table)
    assert [row["accuracy"] for row in rows] == [row["correct"] / row["total"] for row in table]
    found = mean_rows(table)
    keys = [json.dumps([value for name, value in row.items() if name not in ("mean", "std")]) for row in found]
    assert len(set(keys)) == len(keys)
    parts = [part for part in case.parts if part[0]["counted"] == "robust"]
    expected = sorted((fmean(shares(part)), stdev(shares(part))) for part in parts)
    assert [n for pair in sorted((row["mean"], row["std"]) for row in found) for n in pair] == pytest.approx(
        [n for pair in expected for n in pair]
    )
    header, lines = cells_of(printed(show_means, Evaluation(table), table))
    texts = [cell for line in lines for cell in line[3:] if cell]
    assert sorted(texts) == sorted(text_of(shares(part)) for part in parts)
    assert len({line[0] + line[2] for line in lines}) == len(lines) and len(set(header)) == len(header)
    header, lines = cells_of(printed(show_scores, Evaluation(table), table))
    numbers = [cell for line in lines for cell in line[2:] if cell]
    assert sorted(numbers) == sorted(f"{share:.2f}" for part in parts for share in shares(part))
    assert len({line[0] + line[1] for line in lines}) == len(lines) and len(set(header)) == len(header)


def best_of_epochs(case, attack=True):
    """The mean of the best epoch of each seed, for both configurations as one."""
    return fmean(map(max, zip(shares(case.first, attack), shares(case.second, attack), strict=True)))


def allowed(case, attack=True):
    """The numbers that may be shown: of the one, of the other, or of the best epoch where that is what differs."""
    means = [fmean(shares(part, attack)) for part in case.parts]
    return [*means, best_of_epochs(case, attack)] if case.field == "epoch" else means


@settings(max_examples=examples(100))
@given(cases(), st.sampled_from(["published", "sound"]))
def test_a_comparison_is_of_one_configuration_or_says_what_it_is_the_best_of(case, protocol):
    if protocol == "published" and case.field not in ("protocol", "counted", "published"):
        parts = [[{**row, **(PUBLISHED if row["attack"] != "clean" else {})} for row in part] for part in case.parts]
        case = Case(case.field, *parts)
    found = compare(case.table, protocol)
    places = Counter(
        (one.paper.table, one.paper.dataset, one.paper.model, one.paper.method, one.paper.attack, one.variant)
        for one in found
    )
    assert set(places.values()) <= {1}, places
    for one in found:
        wanted = allowed(case, one.paper.attack != "clean")
        assert any(one.ours.mean == pytest.approx(value) for value in wanted), (one.ours, wanted)
        assert one.ours.seeds == SEEDS
        if case.field == "epoch":
            assert str(one.ours.epoch).startswith("best of ")
        elif case.field == ("method", "bound") and one.bounds == 2:
            assert one.ours.mean == pytest.approx(max(wanted)) and one.ours.chosen[0] == "method.bound"
        else:
            assert one.ours.chosen is None and isinstance(one.ours.epoch, int)


EXPERIMENT = Experiment(
    "law",
    "Law",
    datasets=("fashion-mnist",),
    models=("pn-4",),
    methods=("none", "projection", "jacobian", "l2", "certified"),
    attacks=("fgsm-0.1",),
    splits=("validation", "test"),
    validation=0.1,
)


def shown_by(layout, case):
    """The numbers of a layout, each with its place; None if it refuses to mix."""
    experiment = replace(EXPERIMENT, layout=layout)
    if layout == "tradeoff":
        experiment = replace(experiment, methods=("projection", "certified"))
    if "adversary" in case.first[0]:
        experiment = replace(experiment, methods=("none",), adversary={"attack": "fgsm-0.1"})
    try:
        return LAYOUTS[layout](experiment, case.table)
    except MixedError:
        return None


@settings(max_examples=examples(100))
@given(cases())
def test_a_cell_of_a_table_is_of_one_configuration_or_there_is_none(case):
    made = shown_by("table", case)
    if made is None:
        return
    assert len(set(made.header)) == len(made.header)
    for row in made.rows:
        if row[1] == "paper":
            continue
        for cell in filter(None, row[2:]):
            wanted = allowed(case, row[0] != "clean")
            assert any(cell.mean == pytest.approx(one) for one in wanted), (row, wanted)
            text = cell_text(cell)
            assert case.field != "epoch" or text.endswith("*")
            if case.field == ("method", "bound"):
                assert "(" in text  # the bound that it is of
            elif case.field != "epoch":
                assert re.fullmatch(r"[\d.]+ ± [\d.]+", text)


@settings(max_examples=examples(100))
@given(cases(bases=("projection", "certified")), st.sampled_from(["curves", "tradeoff"]))
def test_a_point_of_a_figure_is_of_one_configuration(case, layout):
    attacked, clean = allowed(case), allowed(case, attack=False)
    made = shown_by(layout, case)
    for panel in made.panels if made is not None else ():
        assert len({line.label for line in panel.lines}) == len(panel.lines), panel
        for line in panel.lines:
            assert len(set(line.x)) == len(line.x)
            assert all(any(y == pytest.approx(one) for one in attacked) for y in line.y), (line, case)
            if layout == "tradeoff":
                assert all(any(x == pytest.approx(one, abs=0.0051) for one in clean) for x in line.x), (line, clean)
                # A line goes over bounds or radii, and over nothing else.
                assert len(line.x) == 1 or case.field in (("method", "bound"), ("method", "eps")), (line, case)


@settings(max_examples=examples(70))
@given(cases())
def test_one_model_a_line_chosen_on_validation(case):
    chosen = [{**row, "split": "validation", "correct": row["correct"] // 2} for row in case.table]
    case.table = case.table + Table(row for row in chosen if case.field != "split")
    made = shown_by("chosen", case)
    for row in made.rows if made is not None else ():
        for place, cell in enumerate(row[2:]):
            wanted = allowed(case, attack=place > 0)
            assert not cell or any(cell.mean == pytest.approx(one) for one in wanted), (row, wanted)
