"""The table of scores: a cell is a mean over seeds and over nothing else, whatever it is that differs; differences of cells."""

from contextlib import suppress
from dataclasses import replace
from math import ulp
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers import specs as drawn
from helpers.errors import refuses
from helpers.profiles import examples
from helpers.reports import row_like, rows_like_the_paper, spec_like
from polybound.errors import PolyboundError
from polybound.evaluation import Cell, MixedError, best_place, difference, labels, read_table, score_of, wilson

SCORE = pb.Score("w", "digits", "d", "test", 0.0, "clean", "-", 0, "", "-", 20, 20, 0)


def row(seed=0, correct=10, **changes):
    named = {"method": "l2", "method.weight": 0.1, "seed": seed, "epoch": 100, "run": f"run {seed}"}
    return {**named, **replace(SCORE, weights=f"w{seed}", correct=correct).as_dict(), **changes}


def test_a_cell_is_the_mean_over_seeds():
    cell = pb.Table([row(0, 10), row(1, 12), row(2, 17)]).cell()
    assert cell == Cell(pytest.approx(65.0), pytest.approx(stdev([50, 60, 85])), (0, 1, 2), 20, 20, 100)
    assert str(cell) == "65.00 ± 18.03" and str(pb.Table([row(3, 15)]).cell()) == "75.00"
    assert pb.Table().cell() is None
    with pytest.raises(MixedError, match=r"several values of adversary \(none, fgsm-0\.1\)"):
        pb.Table([row(0), row(1, adversary="fgsm-0.1")]).cell()


def test_rows_without_a_seed_are_told_apart_by_their_run():
    left = ("seed", "method", "method.weight")
    plain = [{key: value for key, value in row(i).items() if key not in left} for i in (0, 1)]
    assert pb.Table(plain[:1]).cell() == Cell(50.0, 0.0, (), 20, 20, 100)
    refuses(r"several values of run \(run 0, run 1\)", pb.Table(plain).cell, error=MixedError)
    assert [len(part) for part in pb.Table(plain).configurations()] == [1, 1]
    assert labels(plain) == ["run run 0, weights w0", "run run 1, weights w1"]
    found = pb.evaluate(pb.CCP(64, 3, 10, 2, runs=2, seed=0), pb.data.load_digits("test"), [], limit=10)
    refuses("values of run", found.scores.cell, error=MixedError)


def test_where_only_values_groups():
    table = pb.Table([row(0), row(1), row(0, attack="fgsm-0.1"), row(0, **{"method.weight": {"C": 1.0}})])
    assert len(table) == 4 and len(table.where(attack="clean")) == 3
    assert len(table.where({"method.weight": 0.1}, seed=0)) == 2
    assert len(table.where(adversary=None)) == 4 and len(table.where(adversary="x")) == 0
    assert len(table.only(lambda entry: entry["seed"] == 1)) == 1
    assert table.values("seed") == [0, 1] and table.values("x") == []
    assert table.values("method.weight") == [0.1, {"C": 1.0}]
    sizes = {key: len(part) for key, part in table.groups("seed", "attack").items()}
    assert sizes == {(0, "clean"): 2, (1, "clean"): 1, (0, "fgsm-0.1"): 1}
    assert sum(map(len, table.groups("method.weight").values())) == 4
    assert len(table + table) == 8 and repr(table) == "Table(4 scores of 2 runs)"


def test_a_number_is_the_same_in_all_its_forms_and_a_missing_value_is_none():
    missing = pb.Table([row(0, **{"method.x": None}), row(1)])
    assert len(missing.configurations()) == 1 and missing.cell().seeds == (0, 1)
    assert read_table(missing.to_csv()).cell() == missing.cell()
    table = pb.Table([row(0, **{"method.bound": 1}), row(1, **{"method.bound": 1.0})])
    assert table.cell().seeds == (0, 1) and len(table.configurations()) == 1 and table.values("method.bound") == [1]
    assert sum(map(len, table.groups("method.bound").values())) == 2 and len(set(labels(table.rows))) == 1


def test_the_best_says_what_it_is_the_best_of():
    counts = {0.5: (10, 12), 1.0: (15, 13), 2.0: (14, 13)}
    rows = [row(seed, count, **{"method.bound": b}) for b, mine in counts.items() for seed, count in enumerate(mine)]
    table = pb.Table(rows)
    assert table.best("method.bound").chosen == ("method.bound", 1.0, 3) and table.best("method.bound").mean == 70.0
    assert [value for value, _ in table.cells_by("method.bound")] == [0.5, 1.0, 2.0]
    # A bound that fewer seeds have may be ahead by luck.
    lucky = table + pb.Table([row(0, 20, **{"method.bound": 4.0})])
    assert lucky.best("method.bound") == table.best("method.bound")
    assert (
        pb.Table(rows[:2]).best("method.bound") == pb.Table(rows[:2]).cell() and pb.Table().best("method.bound") is None
    )
    # Which one it is must be said, also if it had no competition.
    alone = pb.Table([*rows[:2], row(0, 20, **{"method.bound": 4.0})]).best("method.bound")
    assert alone.chosen == ("method.bound", 0.5, 1)
    with pytest.raises(MixedError, match="schedule"):
        pb.Table([*rows, row(0, **{"method.bound": 0.5, "schedule.epochs": 3})]).best("method.bound")
    mixed = pb.Table([row(0, **{"method.bound": value}) for value in (10.0, "x", 9, {"C": 1.0}, None)])
    assert [value for value, _ in mixed.cells_by("method.bound")][:2] == [9, 10.0]


def test_the_best_epoch_says_what_it_is_the_best_of():
    rows = [row(0, 10, epoch=75), row(0, 12, epoch=100), row(1, 15, epoch=75), row(1, 11, epoch=100)]
    best = pb.Table(rows).best_epoch()
    assert [entry["correct"] for entry in best] == [12, 15] and best.cell().epoch == "best of 75, 100"
    assert best.cell().mean == pytest.approx(100 * 27 / 40)
    assert pb.Table(rows[1::2]).best_epoch().rows == rows[1::2] and len(pb.Table().best_epoch()) == 0
    # Other columns are no epochs.
    others = pb.Table([*rows, *(entry | {"method.weight": 9.0} for entry in rows)])
    assert len(others.best_epoch()) == 4
    refuses(r"method\.weight", others.best_epoch().cell, error=MixedError)
    again = best.best_epoch()
    assert again.cell() == best.cell()
    nothing = [{key: value for key, value in entry.items() if key != "epoch"} for entry in rows[:1]]
    assert pb.Table(nothing).best_epoch().cell().mean == 50.0
    with pytest.raises(MixedError, match="epoch"):  # one seed had two epochs to choose from, the other one
        pb.Table([*rows[:2], rows[3]]).best_epoch().cell()


def test_the_file():
    table = pb.Table([row(0, adversary="fgsm-0.1", **{"method.bound": {"C": 1.0}}), row(1, data="1e5")])
    text = table.to_csv()
    assert text.startswith("data,method,adversary,seed,epoch,method.bound,method.weight,run,weights,dataset,")
    assert read_table(text).rows == table.rows and read_table(pb.Table().to_csv()).rows == []
    frame = pytest.importorskip("pandas").DataFrame(table)
    assert set(frame.columns) == set(table.columns()) & {name for row in table for name in row} and len(frame) == 2


TEXT = pb.Table([row(0), row(1)]).to_csv()
HEADER = TEXT.splitlines()[0].split(",")


def with_cell(column, value, line=1):
    lines = [one.split(",") for one in TEXT.splitlines()]
    lines[line][HEADER.index(column)] = value
    return "\n".join(map(",".join, lines)) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column weights, dataset, digest"),
        ("a,b\n1,2\n", "has no column weights"),
        (TEXT.replace(",protocol,", ",", 1), "has no column protocol"),
        (with_cell("correct", "many"), "line 2: correct cannot be 'many'"),
        (with_cell("correct", "1.5", 2), "line 3: correct cannot be '1.5'"),
        (with_cell("held_out", "nan"), "line 2: held_out cannot be 'nan'"),
        (with_cell("correct", "21"), "line 2: 21 of 20 images cannot be right"),
        (with_cell("correct", "-1"), "line 2: -1 of 20 images cannot be right"),
        (with_cell("total", "0"), "line 2: 10 of 0 images cannot be right"),
        (TEXT.rstrip() + ",1\n", "line 3 has not as many columns"),
        (TEXT.rstrip().rpartition(",")[0] + "\n", "line 3 has not as many columns"),
        (TEXT.rstrip()[:-60], "line 3"),
        (with_cell("attack", "x" * 200_000), "field larger than field limit"),
        (with_cell("per_class", "10/2"), "line 2: per_class does not add up to 10 of 20: '10/2'"),
        (with_cell("per_class", "4/10 6/"), "line 2: per_class does not add up"),
    ],
    ids=range(15),
)
def test_files_that_are_none(text, message):
    assert len(read_table(TEXT)) == 2
    assert message in refuses("", read_table, text)


@given(st.binary(max_size=40), st.integers(0, len(TEXT)), st.integers(0, 40))
def test_damaged_files_are_refused_or_read_but_never_crash(noise, at, length):
    text = (TEXT.encode()[:at] + noise + TEXT.encode()[at + length :]).decode(errors="replace")
    with suppress(PolyboundError):
        for entry in read_table(text):
            assert 0 <= entry["correct"] <= entry["total"]


@given(st.lists(drawn.scores(), max_size=4))
def test_scores_survive_a_file(scores):
    rows = [{"run": "r", **score.as_dict()} for score in scores]
    assert read_table(pb.Table(rows).to_csv()).rows == rows
    assert list(map(score_of, read_table(pb.Table(rows).to_csv()))) == scores


# Whatever two rows differ in, there is not one number for both.


@st.composite
def bases(draw):
    """A row as a run folder holds it."""
    spec, score = draw(drawn.specs), draw(drawn.scores())
    return {**spec.columns(), "run": spec.address, "epoch": draw(st.integers(0, 200)), **score.as_dict()}


OF_A_SCORE = ["epoch", "total", "available", *(name for name in drawn.SCORE if name != "weights")]
FIELDS = [*(field for field in drawn.FIELDS if field != ("seed",)), *((name,) for name in OF_A_SCORE)]


@st.composite
def differing_rows(draw, field):
    """Two rows that differ in this field, whose seeds and counts may be any."""
    if field in drawn.FIELDS:
        pair = draw(drawn.pairs_in(field))
        measured = {**draw(drawn.scores()).as_dict(), "epoch": draw(st.integers(0, 200))}
        first, second = ({**spec.columns(), "run": spec.address, **measured} for spec in pair)
    else:
        (column,), first = field, draw(bases())
        others = {"epoch": st.integers(0, 200), "total": st.integers(1, first["available"])}
        others |= {"available": st.integers(first["total"], 2 * 10**6), **drawn.SCORE}
        second = {**first, column: draw(others[column])}
    second["seed"] = draw(st.sampled_from([first["seed"], first["seed"] + 1]))
    second["weights"] = draw(st.sampled_from([first["weights"], "another"]))
    second["correct"] = draw(st.integers(0, second["total"]))
    first["per_class"] = second["per_class"] = ""
    return first, second


def differ(one, other):
    """The columns in which two rows differ, but for those of the seed: an oracle of its own."""
    names = (set(one) | set(other)) - {"seed", "run", "weights", "correct", "per_class"}
    return {name for name in names if one.get(name) != other.get(name)}


@pytest.mark.parametrize("field", FIELDS, ids=" ".join)
@settings(max_examples=examples(20))
@given(st.data())
def test_no_number_and_no_label_stands_for_two(field, data):
    one, other = data.draw(differing_rows(field))
    table, mixed = pb.Table([one, other]), differ(one, other)
    if not mixed:
        return
    assert any(f"several values of {name} (" in refuses("", table.cell, error=MixedError) for name in mixed)
    assert [part.rows for part in table.configurations()] == [[one], [other]]
    first, second = labels(table.rows)
    assert first != second and any(pb.evaluation.column_label(name) in first for name in mixed)
    again = read_table(table.to_csv())
    assert again.rows == table.rows
    for part, entry in zip(again.configurations(), (one, other), strict=True):
        assert part.cell().mean == 100 * entry["correct"] / entry["total"] and part.cell().total == entry["total"]
    for name in {*one, *other, "x"} - {"seed", "run", "weights", "correct", "per_class"}:
        if mixed == {name}:
            means = {repr(entry.get(name)): 100 * entry["correct"] / entry["total"] for entry in (one, other)}
            assert {repr(value): cell.mean for value, cell in table.cells_by(name)} == means
        elif name not in mixed:
            refuses("", table.best, name, error=MixedError)
    if "epoch" not in mixed:
        refuses("", table.best_epoch().cell, error=MixedError)
        assert sorted(e["correct"] for e in table.best_epoch()) == sorted([one["correct"], other["correct"]])
    elif mixed == {"epoch"} and one["seed"] == other["seed"]:
        cell = table.best_epoch().cell()
        assert cell.mean == max(100 * e["correct"] / e["total"] for e in (one, other))
        assert cell.epoch == f"best of {', '.join(map(str, sorted((one['epoch'], other['epoch']))))}"


@given(bases(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_every_cell_is_a_recomputation_from_the_counts(base, drawn_counts):
    counts = [(seed, count % (base["total"] + 1)) for seed, count in drawn_counts]
    rows = [{**base, "seed": s, "run": f"r{s}", "weights": f"w{s}", "correct": c, "per_class": ""} for s, c in counts]
    by_seed = {}
    for seed, count in counts:
        by_seed.setdefault(seed, set()).add(count)
    table = pb.Table(rows)
    if any(len(found) > 1 for found in by_seed.values()):
        for make in (table.cell, table.best_epoch, lambda: table.best("epoch")):
            refuses("measured twice", make, error=MixedError)
        return
    shares = [100 * min(found) / base["total"] for found in by_seed.values()]
    for part in (table, read_table(table.to_csv()), table.best_epoch(), *table.configurations()):
        cell = part.cell()
        assert cell.mean == pytest.approx(fmean(shares)) and cell.seeds == tuple(sorted(by_seed))
        assert cell.std == pytest.approx(stdev(shares) if len(shares) > 1 else 0.0)
        about = cell.total, cell.available, cell.epoch, cell.chosen
        assert about == (base["total"], base["available"], base["epoch"], None)
    assert table.best("epoch") == table.cell() and len(table.configurations()) == 1


@given(st.floats(allow_nan=False), st.sampled_from([1, 2, 10**6]))
def test_neighbouring_numbers_have_labels_of_their_own(number, steps):
    other = number + steps * ulp(number)
    first, second = labels([row(**{"method.weight": weight}) for weight in (number, other)])
    assert (first == second) == (number == other)


def of_one_seed(correct, total, **changes):
    row = row_like(spec_like(), "clean", "-", 0.0)
    return pb.Table([{**row, "correct": correct, "total": total, "available": 1000, **changes}])


def test_several_seeds_are_paired():
    from scipy.stats import ttest_rel

    rows = pb.Table(rows_like_the_paper())
    ours = rows.where({"method.bound": 1.0, "protocol": "published"})
    theirs = rows.where(method="none", attack="fgsm-0.1")
    assert difference(ours, theirs).points == pytest.approx(33.51)
    spread = pb.Table({**row, "correct": row["correct"] + 10 * row["seed"]} for row in theirs)
    found = difference(ours, spread)
    counts = [[row["correct"] / 100 for row in table] for table in (ours, spread)]
    test = ttest_rel(*counts)
    assert found.seeds == (-1, 0, 1)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval()))
    refuses("method", difference, rows.where(attack="fgsm-0.1", protocol="published"), theirs, error=MixedError)


@given(st.integers(1, 500), st.data())
def test_one_seed_has_an_interval_of_the_images(total, data):
    ours, theirs = (data.draw(st.integers(0, total)) for _ in range(2))
    found = difference(of_one_seed(ours, total), of_one_seed(theirs, total))
    (l1, u1), (l2, u2) = wilson(ours, total), wilson(theirs, total)
    assert found.points == pytest.approx(100 * (ours - theirs) / total)
    assert 100 * (l1 - u2) - 1e-9 <= found.low <= found.points <= found.high <= 100 * (u1 - l2) + 1e-9
    other = difference(of_one_seed(theirs, total), of_one_seed(ours, total))
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))


def test_what_cannot_be_compared():
    assert difference(of_one_seed(1, 5), of_one_seed(1, 20)) is None  # other images
    assert difference(of_one_seed(1, 5), of_one_seed(1, 5, digest="other")) is None
    assert difference(of_one_seed(1, 5), of_one_seed(1, 5, seed=1)) is None
    assert difference(of_one_seed(1, 5), pb.Table()) is None


def test_the_best_lacks_nothing():
    def cell(mean, seeds=2):
        return Cell(mean, 0.0, tuple(range(seeds)), 10, 10)

    assert best_place([[cell(1.0), cell(2.0)], [cell(9.0), None], [cell(9.0), cell(9.0, 1)]]) == (0, 1)
    assert best_place([[cell(1.0), None], [cell(2.0), None]]) == (1, 2)  # nobody has the other
    assert best_place([[cell(1.0), None], [None, cell(2.0)]]) is None
    assert best_place([]) is None
