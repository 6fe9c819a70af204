"""Every number that a command prints belongs to its network, its data and its images."""

import ast
import csv
import io
import json
import os
import re
import shlex
import shutil
import statistics
import sys
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from safetensors import safe_open

import polybound as pb
from helpers.report_cells import accuracy_tables, cells
from helpers.watching import watched

TESTS = Path(__file__).parents[1]
ALL = 360
"""Test images of the digits."""


@pytest.fixture
def train(cli, tmp_path):
    """Train tiny runs in `tmp_path / "runs"`; their folders."""

    def run(*options, dataset="digits", samples=300, runs=tmp_path / "runs", epochs=4):
        known = ("--dataset", dataset, "--model", "pn-4", "--epochs", epochs, "--samples", samples, "--runs", runs)
        rate = () if "--learning-rate" in options else ("--learning-rate", 0.02)
        result = cli("train", *known, *rate, *options, "--json")
        assert result.code == 0, result.err
        return [Path(entry["run"]) for entry in result.json["runs"]]

    return run


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


def report_of(cli, folder, *words, code=0):
    """What `polybound report WORDS --json` prints; the page goes to a folder."""
    result = cli("report", *words, "-o", folder / "page.html", "--json")
    assert result.code == code, result.err
    return result.json


def one_line(text):
    """Whether a message on standard error is one line."""
    return len(text.strip().splitlines()) == 1 and "Traceback" not in text


def skipped(result):
    """The names of the runs that a command skipped, with the reasons."""
    return {Path(entry["run"]).name: entry["why"] for entry in result.json["skipped"]}


def tree(*folders):
    """All that lies below some folders."""
    return {path for folder in folders for path in folder.rglob("*")}


def test_each_number_stands_beside_its_number_of_images(cli, train, tmp_path):
    (run,) = train()
    expected = {}
    for limit in (7, 15, 30, None):
        found = scores_of(cli, run, "--attacks", "fgsm-0.1", *(() if limit is None else ("--limit", limit)))
        assert {s["total"] for s in found} == {limit or ALL} and {s["available"] for s in found} == {ALL}
        expected |= {(attack, limit or ALL): percent(pick(found, run, attack)) for attack in ("clean", "fgsm-0.1")}
    report = report_of(cli, tmp_path, run)
    for attack in ("clean", "fgsm-0.1"):
        shown = cells(report, attack)
        assert frozenset({ALL}) in {cell.images for cell in shown}
        for cell in shown:
            (images,) = cell.images
            assert cell.value == pytest.approx(expected[attack, images], abs=0.006), cell


DIFFERENCES = {
    "penalty": (("--method", "jacobian", "--weight"), ("0.0001", "1")),
    "learning rate": (("--learning-rate",), ("0.02", "0.05")),
    "batch size": (("--batch-size",), ("64", "32")),
    "adversary": (("--start-epoch", "1", "--adversary"), ("pgd-0.1-2-0.05", "pgd-0.3-2-0.05")),
    "start": (("--method", "projection", "--bound", "0.5", "--start-epoch"), ("1", "3")),
    "validation share": (("--validation",), ("0.1", "0.3")),
    "samples": ((), ("200", "300")),
}


def mention(value):
    """A pattern for a value in a label: as it was given, in percent, or the radius of an attack's ball."""
    ways = [value, value.split("-")[1]] if "-" in value else [value, f"{100 * float(value):g}"]
    return rf"(?<![\d.])({'|'.join(map(re.escape, ways))})(?![\d.])"


@pytest.mark.parametrize("what", DIFFERENCES)
def test_what_differs_has_a_row_of_its_own(cli, train, tmp_path, what):
    options, values = DIFFERENCES[what]
    runs = [run for value in values for run in (train(*options, value) if options else train(samples=int(value)))]
    assert len({run.name for run in runs}) == 2
    scores = scores_of(cli, *runs, "--attacks", "fgsm-0.1")
    report = report_of(cli, tmp_path, *runs)
    for attack in ("clean", "fgsm-0.1"):
        shown = cells(report, attack)
        expected = {value: percent(pick(scores, run, attack)) for value, run in zip(values, runs, strict=True)}
        assert sorted(cell.value for cell in shown) == pytest.approx(sorted(expected.values()), abs=0.006)
        assert len({cell.row for cell in shown}) == 2
        for value in values:
            named = [cell.value for cell in shown if re.search(mention(value), cell.row.lower())]
            assert any(number == pytest.approx(expected[value], abs=0.006) for number in named), (value, shown)


def test_a_mean_is_over_seeds_alone(cli, train):
    runs = {weight: train("--method", "jacobian", "--weight", weight, "--seed", 0, "--seed", 1) for weight in (1e-4, 1)}
    everything = [run for pair in runs.values() for run in pair]
    scores = scores_of(cli, *everything, "--attacks", "fgsm-0.1")
    words = ("evaluate", *everything, "--attacks", "fgsm-0.1", "--means")
    shown = cli(*words).out
    for attack in ("clean", "fgsm-0.1"):
        by_hand = []
        for pair in runs.values():
            values = [percent(pick(scores, run, attack)) for run in pair]
            by_hand.append((statistics.mean(values), statistics.stdev(values)))
        assert all(f"{value:.2f}" in shown for pair in by_hand for value in pair), shown
        found = [mean for mean in cli(*words, "--json").json["means"] if mean["attack"] == attack]
        assert [mean["seeds"] for mean in found] == [2, 2] and len({mean["label"] for mean in found}) == 2
        assert {mean["total"] for mean in found} == {ALL} and {mean["dataset"] for mean in found} == {"digits"}
        told = sorted((mean["mean"], mean["std"]) for mean in found)
        assert [value for pair in told for value in pair] == pytest.approx(
            [v for pair in sorted(by_hand) for v in pair]
        )
    alone = cli("evaluate", *(pair[0] for pair in runs.values()), "--attacks", "fgsm-0.1", "--means", "--json").json
    assert len(alone["means"]) == 4 and {mean["seeds"] for mean in alone["means"]} == {1}
    assert not any(mean["std"] for mean in alone["means"])


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


def test_other_data_are_another_run(cli, train, tmp_path):
    file = tmp_path / "mine.npz"
    own_data(file)
    (before,) = train("--epochs", 60, dataset=f"folder:{file}", samples=100)
    old = pick(scores_of(cli, before, "--attacks", "fgsm-0.1"), before)
    arrays = own_data(file, shift=1)
    (after,) = train("--epochs", 60, dataset=f"folder:{file}", samples=100)
    assert after.name != before.name
    found = pick(scores_of(cli, after, "--attacks", "fgsm-0.1"), after)
    with torch.no_grad():
        logits = pb.load(after / "model.safetensors")(torch.from_numpy(arrays["X_test"]))
    assert found["total"] == 60 and found["correct"] == int((logits.argmax(-1).numpy() == arrays["y_test"]).sum())
    assert found["correct"] > 30 < old["correct"]
    # The first run cannot be measured any more: its data are gone.
    again = cli("evaluate", before, "--attacks", "pgd-0.1-2-0.05")
    assert again.code == 2 and "mine.npz" in again.err and "Traceback" not in again.err


def test_each_run_has_its_own_data_set(cli, train, tmp_path):
    own_data(tmp_path / "mine.npz")
    (digits,) = train()
    (mine,) = train(dataset=f"folder:{tmp_path / 'mine.npz'}", samples=100)
    for runs in ((digits, mine), (mine, digits)):
        scores = scores_of(cli, *runs, "--attacks", "fgsm-0.1")
        for attack in ("clean", "fgsm-0.1"):
            first, second = pick(scores, digits, attack), pick(scores, mine, attack)
            assert first["dataset"] == "digits" and "mine" in second["dataset"]
            assert (first["available"], second["available"]) == (ALL, 60)
    shown = cli("evaluate", digits, mine, "--attacks", "fgsm-0.1")
    assert shown.code == 0 and "digits" in shown.out and "mine" in shown.out


def test_samples_and_images_are_said_wherever_a_number_is(cli, train, tmp_path):
    (run,) = train(samples=203)
    words = (run, "--attacks", "fgsm-0.1", "--limit", 51)
    score = pick(scores_of(cli, *words), run)
    assert (score["total"], score["available"]) == (51, ALL)
    report = report_of(cli, tmp_path, run)
    # Training has measured the clean accuracy on all images; that is a row of its own.
    assert [cell.images for cell in cells(report, "clean")] in ([{51}, {ALL}], [{ALL}, {51}])
    assert [cell.images for cell in cells(report, "fgsm-0.1")] == [{51}]
    shown = cli("report", run, "-o", tmp_path / "page.html").out
    page = re.sub(r"<[^>]*>", " ", (tmp_path / "page.html").read_text(encoding="utf-8"))
    for text in (*accuracy_tables(report), shown, page, cli("evaluate", *words).out):
        assert re.search(r"\b51\b", text) and re.search(r"\b203\b", text), text
    for text in (shown, page):
        assert re.search(r"203\s+(\w+\s+)?samples|samples\W+203", text)
    assert 203 in [value for name, value in score.items() if name.endswith("samples")]


def test_one_bad_run_does_not_keep_the_others_back(cli, train, tmp_path):
    (good,) = train()
    known = ("--dataset", "digits", "--model", "pn-4", "--epochs", 2, "--samples", 300)
    failed = cli("train", *known, "--learning-rate", 1e9, "--runs", good.parent, "--json")
    diverged = Path(failed.json["runs"][0]["run"])
    (whole,) = train("--seed", 5, runs=tmp_path / "elsewhere")
    interrupted = good.parent / whole.name
    interrupted.mkdir()
    shutil.copy(whole / "spec.json", interrupted)
    mistyped, other = good.parent / "digits-pn-4-nnone", tmp_path / "other"
    other.mkdir()
    bad = [diverged, interrupted, mistyped, other]
    result = cli("evaluate", bad[0], good, *bad[1:], "--attacks", "fgsm-0.1", "--json")
    assert result.code == 1, result.err
    assert {Path(score["run"]).name for score in result.json["scores"]} == {good.name}
    assert set(skipped(result)) == {run.name for run in bad} and all(skipped(result).values())
    shown = cli("report", bad[0], good, *bad[1:], "-o", tmp_path / "page.html")
    assert shown.code == 1 and (tmp_path / "page.html").exists()
    assert all(run.name in shown.out + shown.err for run in bad)
    expected = percent(pick(result.json["scores"], good))
    assert [c.value for c in cells(report_of(cli, tmp_path, *bad, good, code=1))] == pytest.approx(
        [expected], abs=0.006
    )
    for command in ("evaluate", "report"):
        nothing = cli(command, *bad, cwd=tmp_path)
        assert nothing.code == 2 and not cli(command, good, cwd=tmp_path).code


def test_a_report_is_never_written_into_a_folder_of_runs(cli, train, tmp_path):
    train("--seed", 0, "--seed", 1)
    runs = sorted((tmp_path / "runs").glob("[!.]*"))
    words = [run.relative_to(tmp_path) for run in runs]
    scores = scores_of(cli, *runs, "--attacks", "fgsm-0.1")
    before = tree(tmp_path / "runs")
    shown = cli("report", *words, "-o", "runs.html", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert tree(tmp_path / "runs") == before
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "runs"]
    assert (tmp_path / "runs.html").exists() and list(folder.iterdir()) and folder.name in shown.out + shown.err
    assert scores_of(cli, *sorted((tmp_path / "runs").glob("[!.]*")), "--attacks", "fgsm-0.1") == scores


def test_a_dry_run_touches_nothing(cli, tmp_path):
    names = ("emnist-letters", "digits")
    words = (
        "sweep",
        "table-1",
        *(word for name in names for word in ("--dataset", name)),
        "--model",
        "pn-4",
        "--dry-run",
    )
    env = {name: tmp_path / name for name in ("POLYBOUND_DATA", "HOME", "XDG_CACHE_HOME")}
    with watched(tmp_path) as seen:
        shown = cli(*words, "--runs", tmp_path / "runs", cwd=tmp_path, env=env)
        found = cli(*words, "--runs", tmp_path / "runs", "--json", cwd=tmp_path, env=env)
    assert not seen.connections
    assert not seen.writes and not tree(tmp_path)
    assert shown.code == found.code == 0, shown.err
    assert found.json["missing"] == ["emnist-letters"] and "emnist-letters" in shown.out + shown.err


def alike(option, value):
    """An option with its value, however a number or a path is written."""
    with suppress(ValueError):
        return option, float(value)
    return option, Path(value).name


def test_the_hint_after_a_sweep_works(cli, tmp_path):
    given = "--dataset digits --model pn-4 --method none --method projection --bound 1 --bound 0.5 --seeds 1"
    given = shlex.split(f"{given} --budget 0.04 --samples 200 --limit 20 --measure-every 25 --runs my-runs")
    done = cli("sweep", "table-1", *given, "--workers", 1, cwd=tmp_path)
    assert done.code == 0, done.err
    hint = shlex.split(re.search(r"polybound (report [^`]*)", " ".join(done.out.split()))[1])
    assert {alike(*pair) for pair in pairwise(hint)} >= {
        alike(*pair) for pair in zip(given[::2], given[1::2], strict=True)
    }
    shown = cli(*hint, "--json", cwd=tmp_path)
    assert shown.code == 0, shown.err
    tables = accuracy_tables(shown.json)
    assert tables
    for text in tables:
        assert re.search(r"\b\d+\.\d\d\b", text) and re.search(r"\b20\b", text) and re.search(r"\b200\b", text)


def test_a_report_of_nothing_is_an_error(cli, tmp_path):
    result = cli("report", "table-1", "--dataset", "digits", "--runs", "nowhere", cwd=tmp_path)
    assert result.code == 2 and one_line(result.err) and "nowhere" in result.err
    assert not result.out.strip() and not tree(tmp_path)


def edit_spec(run, other):
    content = json.loads((run / "spec.json").read_text(encoding="utf-8"))
    assert content["spec"]["seed"] == 0
    content["spec"]["seed"] = 1
    (run / "spec.json").write_text(json.dumps(content), encoding="utf-8")


def swap_weights(run, other):
    shutil.copy(other / "model.safetensors", run)


@pytest.mark.parametrize(
    ("tamper", "reason", "evaluated"),
    [(edit_spec, r"spec|address", True), (swap_weights, r"model|weights|digest", False)],
)
def test_what_was_changed_by_hand_is_refused(cli, train, tmp_path, tamper, reason, evaluated):
    (good,), (bad,) = train("--seed", 2), train("--seed", 0)
    (other,) = train("--seed", 3, runs=tmp_path / "elsewhere")
    if evaluated:
        scores_of(cli, good, bad, "--attacks", "fgsm-0.1")
    tamper(bad, other)
    result = cli("evaluate", good, bad, "--attacks", "fgsm-0.1", "--json")
    assert result.code == 1, result.err
    assert {Path(score["run"]).name for score in result.json["scores"]} == {good.name}
    assert list(skipped(result)) == [bad.name] and re.search(reason, skipped(result)[bad.name].lower())
    expected = percent(pick(result.json["scores"], good))
    shown = cli("report", good, bad, "-o", tmp_path / "page.html")
    assert shown.code == 1 and bad.name in shown.out + shown.err
    report = report_of(cli, tmp_path, good, bad, code=1)
    assert [cell.value for cell in cells(report)] == pytest.approx([expected], abs=0.006)
    refused = cli("certify", bad, "--eps", 0.01, "--images", 1)
    assert refused.code == 2 and bad.name in refused.err and re.search(reason, refused.err.lower())
    assert cli("certify", good, "--eps", 0.01, "--images", 1).code == 0


def test_the_defence_is_named_and_means_are_json_too(cli, train):
    runs = train("--seed", 0, "--seed", 1)
    words = (*runs, "--attacks", "fgsm-0.1", "--limit", 40)
    plain, defended = scores_of(cli, *words), scores_of(cli, *words, "--defence", "gaussian")
    assert {score["defence"] for score in plain} == {""} and {score["defence"] for score in defended} == {"gaussian"}
    assert "gaussian" in cli("evaluate", *words, "--defence", "gaussian").out
    assert "gaussian" in cli("evaluate", *words, "--defence", "gaussian", "--means").out
    for options, scores, defence in (((), plain, ""), (("--defence", "gaussian"), defended, "gaussian")):
        means = cli("evaluate", *words, *options, "--means", "--json").json["means"]
        assert {mean["defence"] for mean in means} == {defence} and {mean["seeds"] for mean in means} == {2}
        for mean in means:
            values = [percent(pick(scores, run, mean["attack"])) for run in runs]
            assert mean["mean"] == pytest.approx(statistics.mean(values)) and mean["total"] == 40


@contextmanager
def calls(name, room):
    """How often functions of a name are called in a room of the package."""
    found = []

    def look(frame, event, _):
        if event == "call" and frame.f_code.co_name == name and f"/polybound/{room}/" in frame.f_code.co_filename:
            found.append(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)


def test_a_place_for_the_proofs_is_looked_for_before_the_work(cli, train, tmp_path):
    (run,) = train()
    words = ("certify", run, "--eps", 0.01, "--images", 2, "--save")
    with calls("certify", "certificates") as work:
        refused = cli(*words, tmp_path / "nofolder" / "p.json")
    assert refused.code == 2 and one_line(refused.err) and "nofolder" in refused.err
    assert not work and not (tmp_path / "nofolder").exists()
    with calls("certify", "certificates") as work:
        assert cli(*words, tmp_path / "p.json").code == 0
    assert work and (tmp_path / "p.json").exists()


def test_results_are_printed_although_they_cannot_be_kept(cli, train, tmp_path):
    (run,) = train()
    shutil.copytree(run, tmp_path / "copy" / run.name)
    before = tree(run)
    with watched(run, read_only=True):
        result = cli("evaluate", run, "--attacks", "fgsm-0.1", "--json")
    assert result.code == 0, result.err
    assert tree(run) == before and run.name in result.err
    expected = scores_of(cli, tmp_path / "copy" / run.name, "--attacks", "fgsm-0.1")
    for attack in ("clean", "fgsm-0.1"):
        assert pick(result.json["scores"], run, attack)["correct"] == pick(expected, run, attack)["correct"]


def test_every_command_takes_a_run_or_a_model_file(cli, train, tmp_path):
    (run,) = train("--method", "projection", "--bound", 1, "--start-epoch", 2)
    file = tmp_path / "m.safetensors"
    shutil.copy(run / "model.safetensors", file)
    bounds = [cli("bounds", what, "--json") for what in (run, file)]
    assert [result.code for result in bounds] == [0, 0], bounds[0].err
    assert bounds[0].json["bounds"] == bounds[1].json["bounds"]
    facts = [cli("info", what, "--json") for what in (run, file)]
    assert [result.code for result in facts] == [0, 0], facts[0].err
    for name in ("kind", "config", "parameters", "numbers"):
        assert facts[0].json[name] == facts[1].json[name]
    expected = scores_of(cli, run, "--attacks", "fgsm-0.1")
    found = scores_of(cli, file, "--dataset", "digits", "--attacks", "fgsm-0.1")
    for attack in ("clean", "fgsm-0.1"):
        one, (other,) = pick(expected, run, attack), [score for score in found if score["attack"] == attack]
        assert all(one[name] == other[name] for name in ("correct", "total", "available", "dataset", "split"))
    for words in (("certify", run), ("certify", file, "--dataset", "digits")):
        assert cli(*words, "--eps", 0.01, "--images", 1).code == 0
    refused = cli("evaluate", file, "--attacks", "fgsm-0.1")
    assert refused.code == 2 and "--dataset" in refused.err


def test_a_run_that_diverged_is_a_failure(cli, tmp_path):
    words = ("train", "--dataset", "digits", "--model", "pn-4", "--epochs", 2, "--samples", 300)
    words = (*words, "--learning-rate", 1e9, "--runs", tmp_path)
    for _ in range(2):  # the second time, nothing is trained
        result = cli(*words, "--json")
        (entry,) = result.json["runs"]
        assert result.code == 1 and entry["failure"] and entry["accuracy"] is None
        assert one_line(result.err)
        shown = cli(*words)
        assert shown.code == 1 and one_line(shown.err)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_model_is_noticed_and_trained_again(cli, train, share):
    (good,), (bad,) = train("--seed", 0), train("--seed", 1)
    scores = scores_of(cli, good, bad, "--attacks", "fgsm-0.1")
    file = bad / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    result = cli("evaluate", good, bad, "--attacks", "fgsm-0.1", "--json")
    assert result.code == 1 and list(skipped(result)) == [bad.name] and skipped(result)[bad.name]
    assert {Path(score["run"]).name for score in result.json["scores"]} == {good.name}
    assert (*train("--seed", 0), *train("--seed", 1)) == (good, bad)
    assert file.read_bytes() == content
    assert scores_of(cli, good, bad, "--attacks", "fgsm-0.1") == scores


def lines_of(text):
    """What a terminal shows of a text, line by line, colours and cursor movements left out."""
    plain = re.sub(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return re.split(r"[\r\n]+", plain)


def assert_fits(text, columns):
    assert "…" not in text and "..." not in text
    wide = [line for line in lines_of(text) if cell_len(line.rstrip()) > columns]
    assert not wide, wide[0]


@pytest.mark.parametrize("command", ["train", "evaluate", "report", "compare"])
def test_tables_fit_the_terminal(cli, train, tmp_path, command):
    options = ("--method", "projection", "--bound", 1, "--bound", 0.5, "--start-epoch", 2, "--seed", 0, "--seed", 1)
    if command == "compare":
        words = ("compare", TESTS.parent / "docs" / "results" / "scores.csv")
    elif command == "train":
        words = ("train", "--dataset", "digits", "--model", "pn-4", "--epochs", 4, "--samples", 300, *options)
        words = (*words, "--learning-rate", 0.02)
    else:
        runs = [run.relative_to(tmp_path) for run in train(*options)]
        attacks = ("--attacks", "paper", "--protocol", "both", "--limit", 10)
        words = ("evaluate", *runs, *attacks)
        if command == "report":
            assert cli(*words, cwd=tmp_path).code == 0
            words = ("report", *runs, "-o", "page.html")
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


def test_machines_get_json_or_csv(cli, train):
    runs = train("--seed", 0, "--seed", 1)
    words = ("evaluate", *runs, "--attacks", "fgsm-0.1,pgd-0.1-2-0.05", "--protocol", "both", "--limit", 20)
    as_json, as_csv = cli(*words, "--json").json["scores"], cli(*words, "--csv")
    assert as_csv.code == 0, as_csv.err
    rows = list(csv.DictReader(io.StringIO(as_csv.out)))
    names = ("dataset", "split", "attack", "protocol", "counted", "defence", "correct", "total")
    assert [row["run"] for row in rows] == [s["address"] for s in as_json]
    assert [[row[name] for name in names] for row in rows] == [[str(s[name]) for name in names] for s in as_json]
    assert len(rows) == 2 * (1 + 2 * 2) and {row["counted"] for row in rows} == {"-", "robust"}


class CleanPasses:
    """How often runs are given clean test images to classify, other than by an attack that asks for a gradient."""

    def __init__(self, patch, image):
        self.runs, self.inside, self.image = 0, 0, image.flatten()
        for name, module in list(sys.modules.items()):
            if name.startswith("polybound.attacks"):
                for kind in {k for k in vars(module).values() if isinstance(k, type) and k.__module__ == name}:
                    if {"logits", "gradient"} <= set(vars(kind)):
                        patch.setattr(kind, "logits", self._counted(kind.logits))
                        patch.setattr(kind, "gradient", self._quiet(kind.gradient))
        self.hook = torch.nn.modules.module.register_module_forward_pre_hook(self._called)

    def _counted(self, method):
        def logits(classifier, x, *args, **options):
            self._see(x, classifier.runs)
            with self._within():
                return method(classifier, x, *args, **options)

        return logits

    def _quiet(self, method):
        def gradient(*args, **options):
            with self._within():
                return method(*args, **options)

        return gradient

    @contextmanager
    def _within(self):
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def _called(self, module, arguments):
        if isinstance(module, pb.models.PolynomialNetwork) and not torch.is_grad_enabled():
            self._see(arguments[0], module.runs)

    def _see(self, x, runs):
        # Not the first image: that alone may be asked for, to see how many classes there are.
        rows = x.reshape(-1, len(self.image)) if x.numel() % len(self.image) == 0 else x[:0]
        if not self.inside and len(rows) > 1 and torch.equal(rows[1], self.image.to(rows)):
            self.runs += runs or 1


def test_each_file_is_read_and_each_run_measured_once(cli, tmp_path, monkeypatch):
    options = "--dataset digits --model pn-4 --budget 0.04 --samples 200 --limit 20 --seeds 2 --workers 1"
    passes = CleanPasses(monkeypatch, pb.data.load_digits("test").x[1])
    try:
        with watched(tmp_path / "runs") as seen:
            result = cli("reproduce", "table-1", *options.split(), "--runs", tmp_path / "runs", cwd=tmp_path)
    finally:
        passes.hook.remove()
    assert result.code == 0, result.err
    runs = [path.parent for path in (tmp_path / "runs").glob("*/model.safetensors")]
    assert len(runs) == 34
    often = {path.relative_to(tmp_path): count for path, count in seen.reads.items() if path.parent in runs}
    assert max(often.values(), default=0) <= 2, max(often.items(), key=lambda item: item[1])
    # Runs with the same weights may be measured as one.
    assert 0 < passes.runs <= len(runs)


def test_the_watch_sees_every_way_to_read(tmp_path):
    pb.paper_model("pn-4", shape=(1, 2, 2), seed=0).save(tmp_path / "m.safetensors")
    (tmp_path / "a.txt").write_text("a")
    with watched(tmp_path) as seen:
        pb.load(tmp_path / "m.safetensors")
        (tmp_path / "a.txt").read_text()
        (tmp_path / "a.txt").read_bytes()
        os.close(os.open(tmp_path / "a.txt", os.O_RDONLY))
        (tmp_path / "b.txt").write_text("b")
    assert seen.reads == {tmp_path / "m.safetensors": 1, tmp_path / "a.txt": 3}
    assert seen.writes == [str(tmp_path / "b.txt")]
    with safe_open(tmp_path / "m.safetensors", framework="pt"):
        (tmp_path / "a.txt").read_text()
    assert seen.reads.total() == 4
    with watched(tmp_path, read_only=True), pytest.raises(PermissionError):
        (tmp_path / "b.txt").write_text("c")
    assert (tmp_path / "b.txt").read_text() == "b"


def test_sweeps_are_killed_by_what_they_did_not_by_the_clock():
    """`test_kill_9_of_a_sweep` is in a file that sleeps only while it waits for a state, and never asks for the time."""
    syntax = ast.parse((TESTS / "experiments" / "test_sweep_faults.py").read_text(encoding="utf-8"))
    waiting = {id(node) for loop in ast.walk(syntax) if isinstance(loop, ast.While) for node in ast.walk(loop)}
    clock = [node for node in ast.walk(syntax) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time"]
    assert {node.attr for node in clock} == {"sleep"}
    assert [node.lineno for node in clock if id(node) not in waiting] == []
