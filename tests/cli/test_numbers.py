"""Every number that a command prints belongs to its network, its data and its images."""

import json
import re
import shlex
import shutil
import statistics
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len

import polybound as pb
from polybound.evaluation.measure import Predictions
from polybound.runs import folder

SCORES = Path(__file__).parents[2] / "docs" / "results" / "scores.csv"
ALL = 360
"""Test images of the digits."""
pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def train(cli):
    """Train tiny runs below a folder; their folders."""

    def run(folder, *options, dataset="digits", samples=300, epochs=4):
        known = ("--dataset", dataset, "--model", "pn-4", "--epochs", epochs, "--samples", samples, "--runs", folder)
        result = cli("train", *known, "--learning-rate", 0.02, *options, "--json")
        assert result.code == 0, result.err
        return [Path(entry["run"]) for entry in result.json["runs"]]

    return run


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """Two seeds without a bound, one with: nothing is measured yet but the clean accuracy after training."""
    folder = tmp_path_factory.mktemp("trained") / "runs"
    return [
        *train(folder, "--seed", 0, "--seed", 1),
        *train(folder, "--method", "projection", "--bound", 1, "--start-epoch", 2),
    ]


@pytest.fixture
def runs(trained, tmp_path):
    """The same runs in a folder of this test."""
    return [Path(shutil.copytree(run, tmp_path / "runs" / run.name)) for run in trained]


def scores_of(cli, *words, code=0):
    """The scores that `polybound evaluate WORDS --json` prints, whether they were measured or stored."""
    result = cli("evaluate", *words, "--json")
    assert result.code == code, result.err
    return [{key: value for key, value in row.items() if key != "stored"} for row in result.json["scores"]]


def pick(scores, run, attack="clean"):
    """The one score of a run under an attack."""
    (score,) = [s for s in scores if Path(s["run"]).name == Path(run).name and s["attack"] == attack]
    return score


def percent(score):
    assert score["accuracy"] == pytest.approx(score["correct"] / score["total"])
    return 100 * score["correct"] / score["total"]


@dataclass(frozen=True)
class Cell:
    """An accuracy of a report: its value in percent, the images that it is of, and the words of its row and group."""

    value: float
    images: int
    row: str


def cells(cli, folder, *runs, attack="clean", code=0):
    """All accuracies under an attack that a report of runs shows."""
    result = cli("report", *runs, "-o", folder / "page.html", "--json")
    assert result.code == code, result.err
    found = []
    for section in result.json["sections"]:
        (table,) = [table for table in section["tables"] if table["title"] == "Accuracy in %"]
        columns = [i for i, name in enumerate(table["header"]) if attack in name.lower()]
        for number, row in enumerate(table["rows"]):
            group = next(text for start, text in reversed(table["groups"]) if start <= number)
            found += [
                Cell(float(row[i].split()[0]), int(row[2].split()[0]), f"{' | '.join(row)} | {group}".lower())
                for i in columns
                if row[i]
            ]
    return found


def skipped(result):
    """The names of the runs that a command skipped, with the reasons."""
    return {Path(entry["run"]).name: entry["why"] for entry in result.json["skipped"]}


def tree(folder):
    return set(folder.rglob("*"))


def test_each_number_stands_beside_its_images_and_samples(cli, train, tmp_path):
    (run,) = train(tmp_path / "runs", samples=203)
    expected = {}
    for limit in (7, None):
        words = (run, "--attacks", "fgsm-0.1", *(() if limit is None else ("--limit", limit)))
        found = scores_of(cli, *words)
        assert {s["total"] for s in found} == {limit or ALL} and {s["available"] for s in found} == {ALL}
        assert {s["data.samples"] for s in found} == {203}
        expected |= {(attack, limit or ALL): percent(pick(found, run, attack)) for attack in ("clean", "fgsm-0.1")}
        assert re.search(rf"\b{limit or ALL}\b", cli("evaluate", *words).out)
    for attack in ("clean", "fgsm-0.1"):
        shown = cells(cli, tmp_path, run, attack=attack)
        assert {cell.images for cell in shown} == {7, ALL}
        for cell in shown:
            assert cell.value == pytest.approx(expected[attack, cell.images], abs=0.006)
            assert "203 training samples" in cell.row


DIFFERENCES = {
    "fgsm-0.05": (("--start-epoch", 1, "--adversary", "fgsm-0.05"), 300),
    "fgsm-0.3": (("--start-epoch", 1, "--adversary", "fgsm-0.3"), 300),
    "learning rate 0.05": (("--learning-rate", 0.05), 300),
    "200 training samples": ((), 200),
    "held out 0.3": (("--validation", 0.3), 300),
}


def test_what_differs_has_a_row_of_its_own(cli, train, tmp_path):
    """Here from training to the page; `report/test_laws.py` has all fields."""
    runs = {
        words: train(tmp_path / "runs", *options, samples=samples)[0]
        for words, (options, samples) in DIFFERENCES.items()
    }
    scores, shown = scores_of(cli, *runs.values(), "--attacks", ""), cells(cli, tmp_path, *runs.values())
    assert len({run.name for run in runs.values()}) == len({cell.row for cell in shown}) == len(shown) == len(runs)
    for words, run in runs.items():
        (value,) = [cell.value for cell in shown if words in cell.row]
        assert value == pytest.approx(percent(pick(scores, run)), abs=0.006)


def test_a_mean_is_over_seeds_alone_and_of_one_defence(cli, runs):
    for defence in ("", "gaussian"):
        words = (*runs, "--attacks", "fgsm-0.1", "--limit", 40, *(("--defence", defence) if defence else ()))
        scores, shown = scores_of(cli, *words), cli("evaluate", *words, "--means").out
        means = cli("evaluate", *words, "--means", "--json").json["means"]
        assert {row["defence"] for row in (*scores, *means)} == {defence} and defence in shown
        for attack in ("clean", "fgsm-0.1"):
            values = [percent(pick(scores, run, attack)) for run in runs]
            by_hand = [(statistics.mean(values[:2]), statistics.stdev(values[:2]), 2), (values[2], 0.0, 1)]
            found = [mean for mean in means if mean["attack"] == attack]
            assert len({mean["label"] for mean in found}) == 2 and {mean["total"] for mean in found} == {40}
            told = sorted((mean["mean"], mean["std"], mean["seeds"]) for mean in found)
            assert np.ravel(told) == pytest.approx(np.ravel(sorted(by_hand)))
            assert all(f"{mean:.2f}" in shown for mean, _, _ in by_hand), shown


def own_data(path, shift=0):
    """An npz file of three easy classes; another shift gives each class another number."""
    random = np.random.default_rng(0)
    centres = random.uniform(-0.8, 0.8, (3, 16))
    arrays = {}
    for suffix, count in (("", 150), ("_test", 60)):
        y = np.arange(count) % 3
        x = np.clip(centres[y] + 0.1 * random.standard_normal((count, 16)), -1, 1)
        arrays |= {f"X{suffix}": x.astype(np.float32), f"y{suffix}": (y + shift) % 3}
    np.savez(path, **arrays)
    return arrays


def test_other_data_are_another_run(cli, train, runs, tmp_path):
    file = tmp_path / "mine.npz"
    own_data(file)
    (before,) = train(tmp_path / "runs", "--epochs", 60, dataset=f"folder:{file}", samples=100)
    for some in ((runs[0], before), (before, runs[0])):
        scores = scores_of(cli, *some, "--attacks", "fgsm-0.1")
        for attack in ("clean", "fgsm-0.1"):
            first, old = pick(scores, runs[0], attack), pick(scores, before, attack)
            assert (first["dataset"], first["available"], old["available"]) == ("digits", ALL, 60)
            assert "mine" in old["dataset"]
    arrays = own_data(file, shift=1)
    (after,) = train(tmp_path / "runs", "--epochs", 60, dataset=f"folder:{file}", samples=100)
    assert after.name != before.name
    found = pick(scores_of(cli, after, "--attacks", ""), after)
    with torch.no_grad():
        logits = pb.load(after / "model.safetensors")(torch.from_numpy(arrays["X_test"]))
    assert found["total"] == 60 and found["correct"] == int((logits.argmax(-1).numpy() == arrays["y_test"]).sum())
    assert found["correct"] > 30
    # The first run cannot be measured any more: its data are gone.
    again = cli("evaluate", before, "--attacks", "pgd-0.1-2-0.05")
    assert again.code == 2 and "mine.npz" in again.err and "Traceback" not in again.err


def test_bad_runs_are_skipped_and_named_and_the_others_shown(cli, train, runs, tmp_path):
    """A run that diverged, was interrupted, mistyped, swapped, edited or cut off, and a folder of something else."""
    good, swapped, bounded = runs
    root = good.parent
    known = ("--dataset", "digits", "--model", "pn-4", "--epochs", 2, "--samples", 300, "--learning-rate", 1e9)
    for _ in range(2):  # the second time, nothing is trained
        failed = cli("train", *known, "--runs", root, "--json")
        (entry,) = failed.json["runs"]
        assert failed.code == 1 and entry["failure"] and entry["accuracy"] is None
        assert len(failed.err.strip().splitlines()) == 1 and "Traceback" not in failed.err
    diverged, (whole, edited, emptied, cut) = (
        Path(entry["run"]),
        train(tmp_path / "elsewhere", *(word for seed in (2, 3, 4, 5) for word in ("--seed", seed))),
    )
    interrupted = root / whole.name
    interrupted.mkdir()
    shutil.copy(whole / "spec.json", interrupted)
    edited, emptied, cut = (Path(shutil.move(run, root)) for run in (edited, emptied, cut))
    before = scores_of(cli, good, emptied, cut, bounded, "--attacks", "fgsm-0.1")
    shutil.copy(bounded / "model.safetensors", swapped)
    content = json.loads((edited / "spec.json").read_text())
    content["spec"]["seed"] = 1
    (edited / "spec.json").write_text(json.dumps(content))
    contents = {file: file.read_bytes() for file in (emptied / "model.safetensors", cut / "model.safetensors")}
    for share, (file, content) in zip((0.0, 0.5), contents.items(), strict=True):
        file.write_bytes(content[: int(share * len(content))])
    mistyped, other = root / "digits-pn-4-nnone", tmp_path / "other"
    other.mkdir()
    reasons = {
        diverged: "finite|nan",
        interrupted: "not trained",
        mistyped: "no",
        other: "no run folder",
        swapped: "another digest",
        edited: "changed after",
        emptied: "model",
        cut: "model",
    }
    bad = list(reasons)
    result = cli("evaluate", bad[0], good, *bad[1:], "--attacks", "fgsm-0.1", "--json")
    assert result.code == 1, result.err
    assert {Path(score["run"]).name for score in result.json["scores"]} == {good.name}
    assert set(skipped(result)) == {run.name for run in bad}
    for run, reason in reasons.items():
        assert re.search(reason, skipped(result)[run.name].lower()), skipped(result)[run.name]
    shown = cli("report", bad[0], good, *bad[1:], "-o", tmp_path / "page.html")
    assert shown.code == 1 and all(run.name in shown.out + shown.err for run in set(bad) - {emptied, cut})
    assert (tmp_path / "page.html").exists()
    assert percent(pick(before, good)) == pytest.approx(
        next(cell.value for cell in cells(cli, tmp_path, diverged, good, code=1)), abs=0.006
    )
    for command in ("evaluate", "report"):
        nothing = cli(command, *bad[:4], cwd=tmp_path)
        assert nothing.code == 2 and not cli(command, good, cwd=tmp_path).code
    for run in (swapped, edited):
        refused = cli("certify", run, "--eps", 0.01, "--images", 1)
        assert refused.code == 2 and run.name in refused.err and re.search(reasons[run], refused.err.lower())
    # What is only damaged is trained again, to the same bits and scores.
    assert train(root, "--seed", 4, "--seed", 5) == [emptied, cut]
    assert all(file.read_bytes() == content for file, content in contents.items())
    assert scores_of(cli, good, emptied, cut, bounded, "--attacks", "fgsm-0.1") == before


def test_a_report_is_never_written_into_a_folder_of_runs(cli, runs, tmp_path):
    before = tree(tmp_path / "runs")
    shown = cli("report", *(run.relative_to(tmp_path) for run in runs), "-o", "runs.html", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert tree(tmp_path / "runs") == before
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "runs"]
    assert (tmp_path / "runs.html").exists() and list(folder.iterdir()) and folder.name in shown.out + shown.err


def test_a_dry_run_touches_nothing(cli, tmp_path, monkeypatch):
    def connect(*_):
        raise AssertionError("somebody was asked for something")

    monkeypatch.setattr("socket.socket.connect", connect)
    names = ("--dataset", "emnist-letters", "--dataset", "digits", "--model", "pn-4", "--dry-run")
    env = {name: tmp_path / name for name in ("POLYBOUND_DATA", "HOME", "XDG_CACHE_HOME")}
    for form in ((), ("--json",)):
        found = cli("sweep", "table-1", *names, "--runs", tmp_path / "runs", *form, cwd=tmp_path, env=env)
        assert found.code == 0 and "emnist-letters" in found.out + found.err, found.err
        assert not tree(tmp_path)
    assert found.json["missing"] == ["emnist-letters"]


def alike(option, value):
    """An option with its value, however a number or a path is written."""
    with suppress(ValueError):
        return option, float(value)
    return option, Path(value).name


def test_the_hint_after_a_sweep_works_and_has_all_digits(cli, tmp_path):
    given = "--dataset digits --model pn-4 --method none --method projection --bound 1 --bound 0.523456789 --seeds 1"
    given = shlex.split(f"{given} --budget 0.0212345678 --samples 50 --limit 20 --measure-every 25 --runs my-runs")
    done = cli("sweep", "table-1", *given, "--workers", 1, cwd=tmp_path)
    assert done.code == 0, done.err
    hint = shlex.split(re.search(r"polybound (report [^`]*)", " ".join(done.out.split()))[1])
    assert {alike(*pair) for pair in pairwise(hint)} >= {
        alike(*pair) for pair in zip(given[::2], given[1::2], strict=True)
    }
    shown = cli(*hint, "--json", cwd=tmp_path)
    assert shown.code == 0, shown.err
    table, text = shown.json["sections"][0]["tables"][0], json.dumps(shown.json["sections"][0])
    assert any(re.search(r"\b\d+\.\d\d\b", cell) for row in table["rows"] for cell in row)
    assert re.search(r"\b20\b", text) and re.search(r"\b50\b", text)


def test_a_place_for_the_proofs_is_looked_for_before_the_work(cli, runs, tmp_path, monkeypatch):
    words = ("certify", runs[0], "--eps", 0.01, "--images", 2, "--save")
    assert cli(*words, tmp_path / "p.json").code == 0 and (tmp_path / "p.json").exists()
    monkeypatch.setattr("polybound.cli.certify.certify", lambda *_, **__: pytest.fail("it began"))
    refused = cli(*words, tmp_path / "nofolder" / "p.json")
    assert refused.code == 2 and refused.err.count("\n") == 1 and "nofolder" in refused.err


def test_results_are_printed_although_they_cannot_be_kept(cli, runs, trained, monkeypatch):
    def read_only(*_):
        raise PermissionError(13, "Permission denied")

    before, words = tree(runs[0]), ("--attacks", "fgsm-0.1")
    with monkeypatch.context() as patch:
        patch.setattr("polybound.runs.folder.write_atomically", read_only)
        result = cli("evaluate", runs[0], *words, "--json")
    assert result.code == 0, result.err
    assert tree(runs[0]) == before and runs[0].name in result.err
    assert [row["correct"] for row in result.json["scores"]] == [
        row["correct"] for row in scores_of(cli, runs[0], *words)
    ]


def test_every_command_takes_a_run_or_a_model_file(cli, runs, tmp_path):
    run, file = runs[2], tmp_path / "m.safetensors"
    shutil.copy(run / "model.safetensors", file)
    for command, names in (("bounds", ["bounds"]), ("info", ["kind", "config", "parameters", "numbers"])):
        one, other = (cli(command, what, "--json").json for what in (run, file))
        assert all(one[name] == other[name] for name in names)
    expected = scores_of(cli, run, "--attacks", "fgsm-0.1")
    found = scores_of(cli, file, "--dataset", "digits", "--attacks", "fgsm-0.1")
    for one, other in zip(expected, found, strict=True):
        assert all(one[name] == other[name] for name in ("correct", "total", "available", "dataset", "split"))
    for words in (("certify", run), ("certify", file, "--dataset", "digits")):
        assert cli(*words, "--eps", 0.01, "--images", 1).code == 0


def lines_of(text):
    """What a terminal shows of a text, line by line, colours and cursor movements left out."""
    plain = re.sub(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return re.split(r"[\r\n]+", plain)


def assert_fits(text, columns):
    assert "…" not in text and "..." not in text
    wide = [line for line in lines_of(text) if cell_len(line.rstrip()) > columns]
    assert not wide, wide[0]


@pytest.mark.parametrize("command", ["train", "evaluate", "report", "compare"])
def test_tables_fit_the_terminal(cli, runs, tmp_path, command):
    some = [run.relative_to(tmp_path) for run in runs]
    attacks = ("--attacks", "paper", "--protocol", "both", "--limit", 10)
    known = ("--dataset", "digits", "--model", "pn-4", "--epochs", 2, "--samples", 100, "--seed", 0, "--seed", 1)
    projected = ("--method", "projection", "--bound", 1, "--bound", 0.5, "--learning-rate", 0.02)
    words = {
        "train": ("train", *known, *projected),
        "evaluate": ("evaluate", *some, *attacks),
        "report": ("report", *some, "-o", "page.html"),
        "compare": ("compare", "some.csv"),
    }[command]
    if command == "compare":
        header, *rows = SCORES.read_text().splitlines(keepends=True)
        (tmp_path / "some.csv").write_text("".join([header, *(row for row in rows if ",pn-4," in row)][:2000]))
    if command == "report":
        assert cli("evaluate", *some, *attacks, cwd=tmp_path).code == 0
    further = {"train": ("--runs", "others"), "evaluate": ("--means",)}.get(command, ())
    for columns, more in ((80, ()), (200, further)):
        result = cli(*words, *more, cwd=tmp_path, columns=columns)
        assert result.code == 0 or (command == "compare" and result.code == 1), result.err
        assert_fits(result.out, columns)
        assert_fits(result.err, columns)
        assert len(lines_of(result.out)) > 4
        if command == "train":
            assert any("loss" in line for line in lines_of(result.err))
            assert any("━━━━" in line for line in lines_of(result.err))


def test_each_file_is_read_and_each_run_measured_once(cli, tmp_path, monkeypatch):
    reads, measured, of = Counter(), [], Predictions.of

    def counted(read):
        return lambda file, *rest: reads.update([file]) or read(file, *rest)

    def counted_of(predictions, metric, *rest):
        if metric.name == "clean" and not predictions._known:
            measured.extend(predictions.names)
        return of(predictions, metric, *rest)

    for name in ("_read_lines", "_read_model", "_read_scores"):
        monkeypatch.setattr(folder, name, counted(getattr(folder, name)))
    monkeypatch.setattr(Predictions, "of", counted_of)
    options = "--dataset digits --model pn-4 --budget 0.02 --samples 100 --limit 20 --seeds 2 --workers 1"
    result = cli("reproduce", "table-1", *options.split(), "--runs", tmp_path / "runs", cwd=tmp_path)
    assert result.code == 0, result.err
    runs = len(list((tmp_path / "runs").glob("*/model.safetensors")))
    assert runs == 34 and 0 < max(reads.values()) <= 2, reads.most_common(3)
    # Runs with the same weights may be measured as one.
    assert 0 < len(measured) <= runs
