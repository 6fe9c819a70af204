"""Run folders: what was changed or swapped is refused by name, what is damaged is made again, nothing is mixed up."""

import csv
import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.processes import run_code
from helpers.profiles import examples
from polybound.atomic import write_atomically
from polybound.errors import FileFormatError
from polybound.experiments import read_runs
from polybound.runs import Run, checkpoints, clean_runs, find_runs, interrupted, is_run, list_runs, train_runs
from polybound.runs.folder import Checkpoint, path_for

RECIPE = pb.Recipe.from_options(epochs=2, learning_rate=0.02, batch_size=256)
SPECS = [pb.Spec(pb.DataSpec.of("digits"), recipe=RECIPE, seed=seed) for seed in (0, 1)]
LIMIT = {"limit": 20}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    runs = train_runs(SPECS, root, epochs=(1,))
    pb.evaluate_runs([run.path for run in runs], "fgsm-0.1", **LIMIT)
    return root


@pytest.fixture
def runs(originals, tmp_path):
    """Two trained runs with scores, to be spoilt."""
    shutil.copytree(originals, tmp_path / "runs")
    return [Run.of(spec, tmp_path / "runs") for spec in SPECS]


def swap(file, text_or_bytes):
    """Another content under the same name, as an editor would write it."""
    content = text_or_bytes.encode() if isinstance(text_or_bytes, str) else text_or_bytes
    write_atomically(file, content)


def refused_everywhere(run, match):
    """Whoever asks for the run is told by name."""
    refuses(match, run.model, error=FileFormatError)
    refuses(match, pb.evaluate_run, run.path, "fgsm-0.1", **LIMIT)
    table, skipped = read_runs(run.path)
    assert len(table) == 0 and list(skipped) == [str(run.path)]
    state = next(one for one in list_runs(run.path.parent) if one.path == run.path)
    assert state.state == "damaged" and state.why
    refuses(match, train_runs, [SPECS[0]], run.path.parent, error=FileFormatError)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("schedule", "epochs", 3), ("data", "digest", "0" * 16), ("optimiser", "learning_rate", 0.5), (None, "seed", 7)],
)
def test_an_edited_spec_is_refused_by_name(runs, part, name, value):
    file = runs[0].path / "spec.json"
    content = json.loads(file.read_text())
    (content["spec"] if part is None else content["spec"][part])[name] = value
    swap(file, json.dumps(content))
    refused_everywhere(runs[0], r"spec\.json: was changed after the run was made")
    runs[0].model_file().unlink()  # and it is not trained again
    refuses(r"spec\.json: was changed", train_runs, SPECS, runs[0].path.parent, error=FileFormatError)
    assert not runs[0].model_file().exists()


def test_an_address_that_is_edited_along_or_a_spec_of_another_run_is_refused(runs):
    swap(runs[0].path / "spec.json", (runs[1].path / "spec.json").read_text())
    refused_everywhere(runs[0], r"spec\.json: another run's spec")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"address": "0"}', '{"address": "0", "spec": {}}', "\x00"])
def test_a_spec_that_is_none(runs, text):
    swap(runs[0].path / "spec.json", text)
    refused_everywhere(runs[0], r"spec\.json: not a run's spec")


def test_the_model_of_another_run_is_refused_by_name(runs):
    swap(runs[0].model_file(), runs[1].model_file().read_bytes())
    refused_everywhere(runs[0], r"model\.safetensors: not the model that this run trained")


def test_a_model_of_another_epoch_is_refused_by_name(runs):
    swap(runs[0].model_file(1), runs[0].model_file().read_bytes())
    refuses(r"epoch-1\.safetensors: not the model that this run trained", runs[0].model, 1, error=FileFormatError)
    refuses(r"epoch-1\.safetensors", pb.evaluate_run, runs[0].path, "fgsm-0.1", epoch=1)
    assert runs[0].finished()


@pytest.mark.parametrize("epoch", [None, 1])
@pytest.mark.parametrize("kept", [0, 10, 1000])
def test_a_truncated_model_is_trained_again_to_the_same_bits(runs, kept, epoch):
    file = runs[0].model_file(epoch)
    whole, history = file.read_bytes(), runs[0].history()
    swap(file, whole[:kept])
    assert not runs[0].finished(epoch) and runs[1].finished(epoch)
    refuses(file.name, runs[0].model, epoch, error=FileFormatError)
    again = train_runs(SPECS[:1], runs[0].path.parent, epochs=(1,))
    assert again == runs[:1] and file.read_bytes() == whole and again[0].finished(epoch)
    facts = [{key: value for key, value in line.items() if key != "seconds"} for line in history]
    found = [{key: value for key, value in line.items() if key != "seconds"} for line in runs[0].history()]
    assert sorted(map(str, found)) == sorted(map(str, facts))
    assert len(runs[0].table()) == 3  # what was measured on the same weights still holds


def test_scores_of_other_weights_are_not_shown(runs):
    digest = runs[0].digest()[:16]
    others = pb.Table({**row, "weights": "0123456789abcdef"} for row in runs[0].table())
    swap(runs[0].path / "scores.csv", others.to_csv(checked=True))
    assert len(runs[0].table()) == len(runs[0].scores()) == 0
    swap(runs[0].path / "scores.csv", (runs[1].path / "scores.csv").read_text())
    assert len(runs[0].table()) == 0
    result = pb.evaluate_run(runs[0].path, "fgsm-0.1", **LIMIT)
    assert result.scores.values("weights") == [digest] and len(runs[0].table()) == 3
    # The columns of the run are for readers of the file; the run's own spec says what it is.
    rows = runs[0].table().rows
    swap(runs[0].path / "scores.csv", (runs[0].path / "scores.csv").read_text().replace("0.02", "0.5"))
    assert Run(runs[0].path).table().rows == rows


def as_csv(lines):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def one_more(text):
    """The file with one more image right in its first line, in all columns that say so."""
    header, first, *rest = list(csv.reader(text.splitlines()))
    correct, classes = header.index("correct"), header.index("per_class")
    counts = [[int(n) for n in pair.split("/")] for pair in first[classes].split()]
    fuller = next(pair for pair in counts if pair[0] < pair[1])
    fuller[0] += 1
    first[correct] = str(int(first[correct]) + 1)
    first[classes] = " ".join(f"{right}/{total}" for right, total in counts)
    return as_csv([header, first, *rest])


@pytest.mark.parametrize(
    "spoil",
    [
        one_more,
        lambda text: as_csv([line[:-1] for line in csv.reader(text.splitlines())]),  # without checks
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(",20,", ",many,"),
        lambda text: text.replace("attack", "attaque"),
        lambda text: "",
        lambda text: text.encode() + b"\xff\xfe",
        lambda text: text + '"' + "x" * 200_000,
    ],
)
def test_damaged_scores_are_one_clear_error_that_names_the_file(runs, spoil):
    file = runs[0].path / "scores.csv"
    swap(file, spoil(file.read_text()))
    refuses(r"scores\.csv: .*; delete it to measure again", runs[0].table, error=FileFormatError)
    table, skipped = read_runs(runs[0].path.parent)
    assert table.values("run") == [SPECS[1].address] and "scores.csv" in skipped[str(runs[0].path)]
    result = pb.evaluate_runs([run.path for run in runs], "fgsm-0.1", **LIMIT)
    assert result.scores.values("run") == [SPECS[1].address] and "scores.csv" in result.skipped[str(runs[0].path)]


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=6), st.text(st.characters(), max_size=6))
def test_scores_of_data_with_any_name_are_found_again(tmp_path, name, defence):
    spec = pb.Spec(pb.DataSpec(f"folder:{name}", "1234567890123456"), recipe=RECIPE)
    run = Run.make(spec, Path(mkdtemp(dir=tmp_path)))
    run.write_model(pb.CCP(4, 3, 2, 2, seed=0), [{"epoch": 2}])
    about = run.digest()[:16], f"folder:{name}", "1234567890123456", "test", 0.0, "clean", "-", 0, defence, "-"
    score = pb.Score(*about, total=3, available=3, correct=1)
    run.add_scores([score])
    shutil.copy(run.path / "scores.csv", run.path / "copy")
    swap(run.path / "scores.csv", (run.path / "copy").read_bytes())  # so that it has to be read
    assert Run(run.path).scores() == [score] and run.spec() == spec


def test_lists_of_runs_and_those_that_can_go(runs):
    root = runs[0].path.parent
    first, second = sorted(list_runs(root), key=lambda one: one.label)
    assert (first.state, first.why, first.scores, first.label) == ("finished", "", 3, SPECS[0].label)
    assert first.size == sum(file.stat().st_size for file in first.path.iterdir()) and second.path == runs[1].path
    assert {run.path for run in find_runs(root)} == {run.path for run in runs}
    assert is_run(runs[0].path) and not is_run(root)
    young, failed = (Run.make(replace(SPECS[0], seed=seed), root) for seed in (5, 6))
    failed.write_history([{"epoch": 1, "failure": "the loss became nan"}])
    swap(runs[1].path / "scores.csv", "nonsense")
    found = {one.path: (one.state, one.why) for one in list_runs(root)}
    assert found[young.path] == ("unfinished", "not trained to the end")
    assert found[failed.path] == ("failed", "the loss became nan")
    assert found[runs[1].path][0] == "damaged" and "scores.csv" in found[runs[1].path][1]
    everything = {young.path: "unfinished", failed.path: "failed", runs[1].path: "damaged"}
    assert clean_runs(root) == {} and clean_runs(root, ["unfinished", "failed", "damaged"], dry_run=True) == everything
    for path, state in everything.items():
        assert clean_runs(root, [state]) == {path: state} and not path.exists()
    assert runs[0].finished() and len(list_runs(root)) == 1
    refuses("no such folder", list_runs, root / "nowhere")


class Stop(Exception):
    """Ends a training from outside."""


def train_one_epoch(specs, root):
    """Train until the first epoch is saved, and no further."""

    def stop(at):
        if at.epoch == 1:
            raise Stop

    with pytest.raises(Stop):
        train_runs(specs, root, on_progress=stop)


def state_of(specs, epoch=1):
    tensors = {"C": torch.zeros(1)}
    return Checkpoint(list(specs), list(range(len(specs))), True, [[] for _ in specs], epoch, tensors=tensors)


def test_what_can_go(runs):
    root = runs[0].path.parent
    half = [
        runs[0].path / ".scores.csv.abc_1234",
        runs[1].path / ".model.safetensors.x_1y2z3w",
        root / ".checkpoints" / ".a.safetensors.qqqq0000",
    ]
    (root / ".checkpoints").mkdir(exist_ok=True)
    for file in half:
        file.write_bytes(b"half")
    mine = [root / ".gitignore", root / "notes.json", root / ".table.csv.old"]
    mine += [runs[0].path / name for name in (".hidden", ".backup.json.txt", ".scores.csv")]
    for file in mine:
        file.write_text("mine")
    old = path_for(root, SPECS)
    state_of(SPECS).write(old)
    young = pb.Spec(pb.DataSpec.of("digits"), recipe=RECIPE, seed=5)
    Run.make(young, root)
    unfinished = path_for(root, [SPECS[0], young])
    state_of([SPECS[0], young]).write(unfinished)
    damaged = root / ".checkpoints" / "0.safetensors"
    damaged.write_bytes(b"nonsense")
    before = sorted(root.rglob("*"))
    said = clean_runs(root, dry_run=True)
    assert said == {**dict.fromkeys(half, "half-written"), old: "its runs are finished", damaged: "damaged"}
    assert sorted(root.rglob("*")) == before
    assert clean_runs(root) == said
    assert not any(file.exists() for file in [*half, old, damaged])
    assert all(file.exists() for file in [*mine, unfinished])
    assert clean_runs(root) == {} and all(run.finished() for run in runs)
    refuses("only failed, unfinished or damaged runs are removed, not finished", clean_runs, root, ["finished"])


def test_what_is_being_trained_stays(tmp_path):
    spec = pb.Spec(pb.DataSpec.of("digits", samples=64), pb.ModelSpec("pn-4", rank=2), RECIPE)
    run, state = Run.of(spec, tmp_path), path_for(tmp_path, [spec])
    half = [run.path / ".model.safetensors.abcd1234", state.with_name(f".{state.name}.abcd1234")]
    removed = []

    def clean(_):
        for file in half:
            file.write_bytes(b"half")
        with ThreadPoolExecutor(1) as other:  # locks are of a thread, as they are of a process
            removed.append(other.submit(clean_runs, tmp_path, ["unfinished"]).result())

    train_runs([spec], tmp_path, on_progress=clean)
    assert removed and not any(removed) and run.finished() and all(file.exists() for file in half)
    assert clean_runs(tmp_path) == dict.fromkeys(half, "half-written") and run.finished()


def test_what_was_interrupted(tmp_path):
    assert interrupted(tmp_path) == []
    train_one_epoch(SPECS, tmp_path)
    assert interrupted(tmp_path) == [SPECS] and not Run.of(SPECS[0], tmp_path).finished()
    seen = []
    train_runs(SPECS, tmp_path, on_progress=seen.append)
    assert {at.epoch for at in seen} == {2} and interrupted(tmp_path) == [] and not checkpoints(tmp_path)


def test_failures(tmp_path):
    spec = pb.Spec(pb.DataSpec.of("digits"), recipe=RECIPE.replace({"learning_rate": 1e9}))
    (run,) = train_runs([spec], tmp_path)
    assert run.failure.startswith("the loss of run 0 became nan in epoch 1") and "smaller learning rate" in run.failure
    assert run.finished() and not run.model_file().exists() and run.digest() is None and run.digests() == {}
    assert run.history() == [{"epoch": 1, "failure": run.failure}]
    refuses("no model; it ended with: the loss", run.model)
    train_runs([spec], tmp_path, on_progress=lambda _: pytest.fail("it is not tried again"))
    assert [one.state for one in list_runs(tmp_path)] == ["failed"] and not checkpoints(tmp_path)
    assert "the loss of run 0 became nan" in read_runs(tmp_path)[1][str(run.path)]


def test_what_is_no_run_and_what_is_not_trained(tmp_path):
    refuses("no run folder", Run(tmp_path).model)
    run = Run.of(SPECS[0], tmp_path)
    assert not run.finished() and run.history() == [] and len(run.table()) == 0
    run = Run.make(SPECS[0], tmp_path)
    assert Run.make(SPECS[0], tmp_path) == run and not run.finished() and run.spec() == SPECS[0]
    refuses("not trained yet", run.model)
    swap(run.path / "history.jsonl", "{\n")
    refuses(r"history\.jsonl: not JSON lines", run.history, error=FileFormatError)


def test_a_model_may_be_trained_on(runs):
    """What is handed out is the caller's own; it does not change what the next one gets."""
    model = runs[0].model()
    with torch.no_grad():
        model.C.zero_()
    assert not torch.equal(runs[0].model().C, model.C)
    runs[0].history().clear()
    assert runs[0].finished() and runs[0].history()
    # It is checked against the history however often it was read.
    other = {"weights": {"model.safetensors": "0" * 64}}
    runs[0].write_history([line | (other if "weights" in line else {}) for line in runs[0].history()])
    refuses("not the model that this run trained", runs[0].model, error=FileFormatError)


OTHER = """
import sys
import polybound as pb
from pathlib import Path
pb.evaluate_run(Path(sys.argv[1]), "fgsm-0.1", limit=5)
sys.exit(len(pb.Run(Path(sys.argv[1])).scores()))
"""


def test_what_another_process_writes_is_noticed(runs):
    assert len(runs[0].scores()) == 3
    assert run_code(OTHER, runs[0].path) == 6
    assert len(runs[0].scores()) == 6
    link = runs[0].path.parent / "link"
    link.symlink_to(runs[0].path, target_is_directory=True)
    result = pb.evaluate_runs([runs[0].path, link], "fgsm-0.1", limit=7)  # a run by several paths is one
    assert len(result.scores) == 3 and sorted({score.total for score in runs[0].scores()}) == [5, 7, 20]


def test_scores_that_are_added_at_once_are_all_kept_and_once(runs):
    known = runs[0].scores()

    def add(worker):
        for seed in range(5):  # each of them by two workers
            Run(runs[0].path).add_scores([replace(known[1], attack_seed=100 * (worker // 2) + seed + 1)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    found = [score.identity for score in Run(runs[0].path).scores()]
    assert len(found) == len(set(found)) == 3 + 4 * 5
    with (runs[0].path / "scores.csv").open() as file:
        assert sum(1 for _ in file) == 1 + 3 + 4 * 5


@pytest.mark.parametrize("line", ["5", "[]", "null", '{"weights": "model.safetensors"}'])
def test_a_history_that_is_none(runs, line):
    swap(runs[0].path / "history.jsonl", line + "\n" + (runs[0].path / "history.jsonl").read_text())
    for ask in (runs[0].model, runs[0].finished, runs[0].scores):
        refuses("not a run's history", ask, error=FileFormatError)
    assert list_runs(runs[0].path.parent)[0].state == "damaged"


def test_the_state_of_other_runs_is_refused(tmp_path):
    train_one_epoch(SPECS[:1], tmp_path)
    (file,) = checkpoints(tmp_path)
    file.rename(path_for(tmp_path, SPECS[1:]))
    refuses("the state of other runs", train_runs, SPECS[1:], tmp_path, error=FileFormatError)


def write_data(file, seed):
    random = np.random.default_rng(seed)
    y = np.arange(60) % 3
    x = (random.integers(0, 60, (60, 1, 4, 4)) + 60 * y[:, None, None, None]).astype(np.uint8)
    np.savez(file, X=x, y=y)


def test_other_data_are_another_run(tmp_path):
    file = tmp_path / "mine.npz"
    write_data(file, 0)
    name, root = f"folder:{file}", tmp_path / "runs"
    old = pb.Spec(pb.DataSpec.of(name), recipe=RECIPE)
    (before,) = train_runs([old], root)
    first = pb.evaluate_run(before.path, "fgsm-0.1")
    weights = before.model_file().read_bytes()
    write_data(file, 1)
    new = pb.Spec(pb.DataSpec.of(name), recipe=RECIPE)
    assert set(old.difference(new)) == {"data.digest"} and old.address != new.address
    refuses("is not the data of this run: these are", pb.evaluate_run, before.path, "fgsm-0.1")
    refuses("is not the data of this run: these are", train_runs, [pb.Spec(old.data, recipe=RECIPE, seed=3)], root)
    (after,) = train_runs([new], root)
    second = pb.evaluate_run(after.path, "fgsm-0.1")
    assert after != before and after.model_file().read_bytes() != weights
    assert first.scores.values("digest") == [old.data.digest] != second.scores.values("digest")
    both = pb.evaluate_runs([before.path, after.path], "fgsm-0.1")
    assert both.scores.values("run") == [new.address] and "not the data" in both.skipped[str(before.path)]
    table, skipped = read_runs(root)
    assert not skipped and len(table.configurations()) == 6  # clean, robust and attacked, of either
    write_data(file, 0)
    assert pb.evaluate_run(before.path, "fgsm-0.1").scores.rows == first.scores.rows
