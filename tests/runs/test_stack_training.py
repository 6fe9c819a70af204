"""Runs that train together: the same as alone, resumable to the bit, and safe from kill -9."""

import json
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from helpers.processes import run_code
from polybound.data import load_digits
from polybound.runs import Checkpoint, DataSpec, ModelSpec, Run, Spec, checkpoints, find_runs, interrupted, train_runs
from polybound.runs.folder import path_for
from polybound.training import METHODS, Adversary, Plain, Trainer

RECIPE = pb.Recipe.from_options(method="projection", epochs=6, start=3, learning_rate=0.02, every=5)
DIGITS = DataSpec.of("digits")


def spec_of(recipe=RECIPE, seed=0, **changes):
    return Spec(DIGITS, ModelSpec("pn-4"), recipe.replace(changes), seed)


SPECS = [spec_of(bound=bound, seed=seed) for seed in (1, 2) for bound in (0.5, 1.0, 2.0)]


def weights(runs, epoch=None):
    return [pb.load(run.model_file(epoch)).state_dict() for run in runs]


def same_bits(left, right):
    return all(torch.equal(a[name], b[name]) for a, b in zip(left, right, strict=True) for name in a)


def assert_near(left, right, rtol=1e-5, atol=1e-6):
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=rtol, atol=atol)


def alone(spec):
    """The weights that `fit` trains."""
    model = pb.paper_model(spec.model.name, shape=(1, 8, 8), seed=spec.seed)
    pb.fit(model, load_digits("train"), spec.recipe, seed=spec.seed)
    return model.state_dict()


def epochs_of(run):
    return [line["epoch"] for line in run.history() if "epoch" in line]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return weights(train_runs(SPECS, tmp_path_factory.mktemp("undisturbed")))


def test_a_run_of_the_stack_is_the_run_alone(undisturbed):
    for i in (0, 4):
        assert_near(alone(SPECS[i]), undisturbed[i])


def test_the_beginning_of_a_run_is_the_shorter_run(tmp_path, undisturbed):
    """A model that is kept on the way is that of a run which ends there, also if the whole run had been there."""
    shorter = [replace(spec, recipe=spec.recipe.replace({"epochs": 5})) for spec in SPECS]
    ended = train_runs(shorter, tmp_path / "ended")
    (before,) = train_runs(SPECS[:1], tmp_path / "all")
    changed = before.model_file().stat().st_mtime_ns
    runs = train_runs(SPECS, tmp_path / "all", epochs=(2, 5))
    assert runs[0] == before and before.model_file().stat().st_mtime_ns == changed
    assert same_bits(weights(runs), undisturbed)
    assert same_bits(weights(runs, 5), weights(ended))
    for run in runs:
        assert run.finished() and run.finished(2) and run.finished(5) and not run.finished(3)
        assert epochs_of(run) == [1, 2, 3, 4, 5, 6]
        assert sorted(run.digests()) == [2, 5, 6] and len(set(run.digests().values())) == 3
    # The runs of a seed are one until their bounds begin.
    assert len({run.digest(2) for run in runs}) == 2 and len({run.digest(5) for run in runs}) == 6
    refuses(r"cannot train together.*schedule\.epochs", train_runs, [*SPECS[:2], shorter[4]], tmp_path / "none")


def test_a_missing_beginning_is_trained_and_no_further(tmp_path):
    (run,) = train_runs(SPECS[:1], tmp_path)
    history, seen = run.history(), []
    shorter = replace(SPECS[0], recipe=RECIPE.replace({"bound": 0.5, "epochs": 5}))
    ended = train_runs([shorter], tmp_path / "ended")
    train_runs(SPECS[:1], tmp_path, epochs=(5,), on_progress=seen.append)
    assert {(at.epoch, at.epochs) for at in seen if at.step == 0} == {(epoch, 5) for epoch in range(1, 6)}
    assert same_bits(weights([run], 5), weights(ended))
    # What was known of the whole run still is.
    assert run.finished() and run.history()[:-1] == history
    assert list(run.history()[-1]["weights"]) == [run.model_file(5).name]
    train_runs(SPECS[:1], tmp_path, epochs=(5, 6, 99), on_progress=lambda _: pytest.fail("nothing is left to do"))
    assert not run.model_file(6).exists()


@pytest.mark.parametrize("every", [5, 1000])
def test_a_beginning_is_inside_its_bound(tmp_path, every):
    specs = [spec_of(bound=bound, every=every, start=1) for bound in (0.5, 1e4, 1e5)]
    runs = train_runs(specs, tmp_path, epochs=(3,))
    for spec, run in zip(specs, runs, strict=True):
        for epoch in (3, None):
            assert pb.Projection(run.model(epoch), spec.recipe.method.bound).contains()
    assert same_bits(weights(runs[1:2], 3), weights(runs[2:], 3))


def test_folders_hold_everything_and_nothing_is_trained_twice(tmp_path):
    runs = train_runs(SPECS[:3], tmp_path)
    for spec, run in zip(SPECS, runs, strict=False):
        assert run == Run.of(spec, tmp_path) and run.finished() and run.failure is None
        assert json.loads((run.path / "spec.json").read_text()) == {"address": spec.address, "spec": spec.as_dict()}
        assert run.spec() == spec
        *lines, last = run.history()
        assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert all(set(line) == {"epoch", "loss", "rate", "seconds"} for line in lines)
        assert last == {"weights": {"model.safetensors": run.digest()}, "run": spec.address}
        assert pb.Projection(run.model(), spec.recipe.method.bound).contains()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    # Three files a run, and no checkpoint left.
    assert len([path for path in before if path.suffix != ".lock"]) == 9
    assert train_runs(SPECS[:3], tmp_path) == runs
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    more = train_runs(SPECS[:4], tmp_path)
    assert more[:3] == runs and more[3].finished()
    assert train_runs([], tmp_path) == []


def test_a_history_measures_the_networks_that_are_kept(tmp_path):
    """Inside of their bounds, though no projection came just before; and as `fit` measures them."""
    recipe = RECIPE.replace({"epochs": 3, "start": 1, "every": 1000})
    data = DataSpec.of("digits", samples=200, held_out=0.25)
    specs = [Spec(data, ModelSpec("pn-4", rank=2), recipe.replace({"bound": bound})) for bound in (0.2, 0.4)]
    runs = train_runs(specs, tmp_path, epochs=(1, 2))
    train, validation = data.load("train"), data.load("validation")
    for spec, run in zip(specs, runs, strict=True):
        model = pb.paper_model("pn-4", shape=train.shape, rank=2, seed=0)
        history = pb.fit(model, train, spec.recipe, validation=validation)
        for line, kept in zip(run.history(), (1, 2, None), strict=False):
            assert line["validation accuracy"] == pb.accuracy(run.model(kept), validation).item()
            assert line["validation accuracy"] == history["validation accuracy"][line["epoch"] - 1]


@pytest.mark.parametrize("attack", ["fgsm-0.1", "pgd-0.1-3-0.05"])
def test_bounds_share_an_adversary_that_comes_before_them(tmp_path, attack):
    recipe = RECIPE.replace({"epochs": 4, "start": 2, "every": 3, "adversary": Adversary(attack), "adversary_start": 1})
    specs = [spec_of(recipe, bound=bound) for bound in (0.5, 1.0)]
    seen = []
    runs = train_runs(specs, tmp_path / "both", on_progress=seen.append)
    assert [len(at.losses) for at in seen if at.step == 0] == [1, 1, 2, 2]
    for spec, run in zip(specs, runs, strict=True):
        assert_near(alone(spec), run.model().state_dict())


@pytest.mark.parametrize("bounds", [(1.0, 50.0, 200.0, 1e5), (1.0, 6.0, 6.5, 1e5)])
def test_bounds_that_never_bind_are_trained_once(tmp_path, bounds, monkeypatch):
    """The norms grow from 5.3 at the branch to 7.2: a bound of 6 seems to leave them alone at first, and does not."""
    recipe = RECIPE.replace({"learning_rate": 0.08, "start": 1, "milestones": ()})
    specs = [spec_of(recipe, bound=bound, seed=1) for bound in bounds]
    specs.append(Spec(DIGITS, recipe=replace(recipe, method=Plain()), seed=1))
    sizes = []

    class Spy(Trainer):
        def __init__(self, model, *rest):
            sizes.append(model.runs)
            super().__init__(model, *rest)

    monkeypatch.setattr("polybound.runs.train.Trainer", Spy)
    runs = train_runs(specs, tmp_path)
    notes = [[line["note"] for line in run.history() if "note" in line] for run in runs]
    if bounds[1] == 50.0:
        assert sizes == [1, 2]
        assert notes[2:] == [[f"never constrained, so one with {specs[1].label}"]] * 3
    else:
        assert sizes == [1, 2, 1, 1, 1, 1]  # 1 and 6; then 6.5, for itself; then 1e5 and none
        assert not notes[2] and notes[4]
    for spec, run in zip(specs, runs, strict=True):
        assert_near(run.model().state_dict(), alone(spec), rtol=1e-4, atol=1e-5)


def test_a_run_that_is_no_longer_finite_ends_and_the_others_go_on(tmp_path):
    wild = RECIPE.replace({"learning_rate": 5.0, "start": 0, "every": 1})
    specs = [spec_of(wild, bound=bound) for bound in (0.2, 1e9)]
    runs = train_runs(specs, tmp_path)
    assert runs[0].failure is None and runs[0].model_file().exists()
    assert "became" in runs[1].failure and "epoch" in runs[1].failure and not runs[1].model_file().exists()
    assert runs[1].finished() and "failure" in runs[1].history()[-1]
    refuses("no model; it ended with: the loss of run", runs[1].model)
    (single,) = train_runs(specs[:1], tmp_path / "alone")
    assert_near(single.model().state_dict(), runs[0].model().state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("optimiser.learning_rate", spec_of(learning_rate=0.5)),
        ("schedule.batch_size", spec_of(batch_size=32)),
        ("model.rank", replace(SPECS[0], model=ModelSpec("pn-4", 8))),
        ("data.held_out", replace(SPECS[0], data=DataSpec.of("digits", held_out=0.5))),
        ("adversary", spec_of(adversary="fgsm-0.1")),
        ("options of projection", spec_of(every=7)),
        ("options of l2", Spec(DIGITS, recipe=replace(RECIPE, method=METHODS.build("l2")))),
    ],
)
def test_specs_that_do_not_fit_together(tmp_path, name, other):
    first = SPECS[0] if "l2" not in name else Spec(DIGITS, recipe=replace(RECIPE, method=Plain()))
    refuses(f"cannot train together.*{name}", train_runs, [first, other], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
    file = path_for(tmp_path, SPECS[:1])
    file.parent.mkdir()
    file.write_bytes(b"nonsense")
    refuses(file.name, train_runs, SPECS[:1], tmp_path)


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/runs"]
from test_stack_training import SPECS, at_write, train_runs
specs = SPECS if sys.argv[3] == "stack" else SPECS[4:5]
if sys.argv[4] == "kill":
    at_write(int(sys.argv[5]), lambda: os.kill(os.getpid(), signal.SIGKILL))
def watch(at):
    if sys.argv[4] == "signal" and at.epoch == 2:
        os.kill(os.getpid(), int(sys.argv[5]))
train_runs(specs, Path(sys.argv[2]), save_every=0.0, on_progress=watch)
"""


def child(folder, *words):
    """Train in another process; whether it came to its end."""
    return run_code(CHILD, Path(__file__).parents[1], folder, *words) == 0


def at_write(number, act):
    """Act in the midst of a write, by its number; every file is written in two moments, its bytes and its new name."""
    fsync, calls = os.fsync, []

    def counting(descriptor):
        calls.append(descriptor)
        if len(calls) == number:
            act()
        fsync(descriptor)

    os.fsync = counting
    return calls


def files_of(folder):
    """The names of all files but locks and those that a killed process left half-written."""
    names = [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {name for name in names if not name.startswith(".")}


@pytest.mark.parametrize("what", ["run", "stack"])
def test_kill_9_in_the_midst_of_any_write_costs_nothing(tmp_path, undisturbed, what):
    """What a dead process leaves is what it had written, so it is killed at writes, drawn at random.

    A run has many more writes than a process lives through here; one that has fewer left comes to its end, and is
    started again.
    """
    specs = SPECS if what == "stack" else SPECS[4:5]
    whole = undisturbed if what == "stack" else weights(train_runs(specs, tmp_path / "whole"))
    kills, generator, folder = int(os.environ.get("POLYBOUND_KILLS", "2")), random.Random(0), tmp_path / "killed"
    while kills:
        if child(folder, what, "kill", generator.randint(2, 9)):
            shutil.rmtree(folder)
        else:
            kills -= 1
    assert child(folder, what, "no")
    runs = train_runs(specs, folder, on_progress=lambda _: pytest.fail("all were done"))
    assert same_bits(weights(runs), whole)
    assert files_of(folder) == {"spec.json", "history.jsonl", "model.safetensors"} and not checkpoints(folder)


class Crash(BaseException):
    """Nothing catches it."""


@pytest.mark.parametrize("bounds", [(2.0,), (0.5, 1e4, 1e5)])
def test_a_crash_in_the_midst_of_every_single_write_costs_nothing(tmp_path, monkeypatch, bounds):
    specs = [spec_of(bound=bound, epochs=2, start=1, batch_size=256) for bound in bounds]
    monkeypatch.setattr(os, "fsync", os.fsync)  # which puts it back in the end
    real, writes = os.fsync, at_write(0, None)
    runs = train_runs(specs, tmp_path / "whole", epochs=(1,), save_every=0.0)
    expected = [weights(runs), weights(runs, 1), [epochs_of(run) for run in runs]]

    def crash():
        raise Crash

    for number in range(1, len(writes) + 1):
        os.fsync, folder = real, tmp_path / str(number)
        at_write(number, crash)
        with pytest.raises(Crash):
            train_runs(specs, folder, epochs=(1,), save_every=0.0)
        os.fsync = real
        runs = train_runs(specs, folder, epochs=(1,), save_every=0.0)
        assert same_bits(weights(runs), expected[0]) and same_bits(weights(runs, 1), expected[1])
        assert [epochs_of(run) for run in runs] == expected[2] and not checkpoints(folder)
        assert not list(folder.rglob(".*.*"))
    assert number >= 2 * (3 * len(specs) + 2)  # spec, history and model of each, and a checkpoint after every epoch


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(tmp_path, undisturbed, name):
    assert not child(tmp_path, "stack", "signal", int(name))
    (specs,) = interrupted(tmp_path)
    assert specs == SPECS and not any(run.finished() for run in find_runs(tmp_path))
    (file,) = checkpoints(tmp_path)
    state = Checkpoint.read(file)
    assert state.epoch == 2 and state.step < 2  # Python looks for signals between two of its instructions
    assert same_bits(weights(train_runs(SPECS, tmp_path)), undisturbed)
    assert interrupted(tmp_path) == []
