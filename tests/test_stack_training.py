"""Runs that train together: the same as alone, resumable to the bit, and safe from kill -9."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polybound as pb
from polybound.data import load_digits
from polybound.errors import PolyboundError
from polybound.experiments import Plan, train_together
from polybound.training import METHODS, Trainer

RECIPE = pb.Recipe(method="projection", epochs=6, start=3, learning_rate=0.02, every=5)
PLANS = [
    Plan("digits", "pn-4", replace(RECIPE, bound=bound), seed=seed) for seed in (1, 2) for bound in (0.5, 1.0, 2.0)
]


def weights(runs):
    return [pb.load(run.model_file).state_dict() for run in runs]


def same_bits(left, right):
    return all(torch.equal(a[name], b[name]) for a, b in zip(left, right, strict=True) for name in a)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return weights(train_together(PLANS, load_digits("train"), tmp_path_factory.mktemp("undisturbed")))


def test_a_run_of_the_stack_is_the_run_alone(tmp_path, undisturbed):
    for i in (0, 4):
        model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=PLANS[i].seed)
        pb.fit(model, load_digits("train"), PLANS[i].recipe, seed=PLANS[i].seed)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, undisturbed[i][name], rtol=1e-5, atol=1e-6)


def test_the_beginning_of_a_run_is_the_shorter_run(tmp_path, undisturbed):
    """Also if the whole run had been there before."""
    train, test = load_digits("train"), load_digits("test")
    shorter = [replace(plan, recipe=replace(plan.recipe, epochs=epochs)) for plan in PLANS for epochs in (2, 5)]
    alone = train_together([plan for plan in shorter if plan.recipe.epochs == 5], train, tmp_path / "alone", test=test)
    (before,) = train_together(PLANS[:1], train, tmp_path / "all", test=test)
    changed = before.model_file.stat().st_mtime_ns
    runs = train_together([*shorter, *PLANS], train, tmp_path / "all", test=test)
    assert same_bits(weights(runs[len(shorter) :]), undisturbed)
    assert same_bits(weights(runs[1 : len(shorter) : 2]), weights(alone))
    assert [line["epoch"] for line in runs[0].metrics()] == [1, 2, 2]
    assert before.model_file.stat().st_mtime_ns == changed
    with pytest.raises(PolyboundError, match="cannot train together"):
        train_together([*PLANS[:2], shorter[4]], train, tmp_path / "none")


def test_a_missing_beginning_is_trained_and_no_further(tmp_path):
    train, plan, seen = load_digits("train"), PLANS[0], []
    shorter = replace(plan, recipe=replace(plan.recipe, epochs=5))
    (alone,) = train_together([shorter], train, tmp_path / "alone")
    train_together([plan], train, tmp_path)
    missing, _ = train_together([shorter, plan], train, tmp_path, on_progress=seen.append)
    assert {(at.epoch, at.epochs) for at in seen if at.step == 0} == {(epoch, 5) for epoch in range(1, 6)}
    assert same_bits(weights([missing]), weights([alone]))


def test_folders_hold_everything_and_nothing_is_trained_twice(tmp_path):
    train, test = load_digits("train"), load_digits("test")
    runs = train_together(PLANS[:3], train, tmp_path, test=test, validation=test)
    for plan, run in zip(PLANS, runs, strict=False):
        assert run.finished and run.failure is None
        assert json.loads((run.path / "config.json").read_text()) == plan.config() == run.config()
        lines = run.metrics()
        assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6, 6]
        assert all("validation accuracy" in line and "loss" in line for line in lines[:-1])
        assert lines[-1]["evaluation"] == "clean" and lines[-1]["test accuracy"] > 0.5
        assert pb.Projection(pb.load(run.model_file), plan.recipe.bound).contains()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert len(before) == 9  # three files a run, and no checkpoint left
    assert train_together(PLANS[:3], train, tmp_path, test=test) == runs
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    more = train_together(PLANS[:4], train, tmp_path)
    assert more[:3] == runs and more[3].finished


def test_options_that_do_not_matter_do_not_make_another_run():
    plain = Plan("digits", "pn-4", pb.Recipe())
    assert plain.config() == Plan("digits", "pn-4", pb.Recipe(bound=3.0, eps=0.2, penalty=1.0, every=3)).config()
    assert plain.config() != Plan("digits", "pn-4", pb.Recipe(epochs=3)).config()
    assert Plan("digits", "pn-4", pb.Recipe(method="projection")).config() != plain.config()


@pytest.mark.parametrize("method", [*METHODS, "none+at", "projection+at", "jacobian+at", "l2+at"])
@pytest.mark.parametrize("start", [0, 2, 50])
@pytest.mark.parametrize("adversary_start", [None, 0, 50])
def test_the_config_of_a_run_says_when_what_begins(method, start, adversary_start):
    recipe = pb.Recipe(method=method, start=start, adversary_start=adversary_start)
    again = Plan.of(Plan("digits", "pn-4", recipe).config()).recipe
    assert again.phases() == recipe.phases()


def test_bounds_share_an_adversary_that_comes_before_them(tmp_path):
    """Until the projection begins there is one network to train, and it is the same as without the others."""
    recipe = pb.Recipe(method="projection+at", epochs=4, start=2, adversary_start=1, learning_rate=0.02, every=3)
    plans = [Plan("digits", "pn-4", replace(recipe, bound=bound, random_start=True)) for bound in (0.5, 1.0)]
    seen = []
    runs = train_together(plans, load_digits("train"), tmp_path / "both", on_progress=seen.append)
    assert [len(at.losses) for at in seen if at.step == 0] == [1, 1, 2, 2]
    for plan, run in zip(plans, runs, strict=True):
        model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
        pb.fit(model, load_digits("train"), plan.recipe)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, pb.load(run.model_file).state_dict()[name], rtol=1e-5, atol=1e-6)


def test_runs_without_a_bound_train_among_the_bounded(tmp_path):
    free = Plan("digits", "pn-4", replace(RECIPE, method="none"), seed=1)
    runs = train_together([PLANS[0], free], load_digits("train"), tmp_path)
    alone = train_together([free], load_digits("train"), tmp_path / "alone")
    for name, tensor in pb.load(alone[0].model_file).state_dict().items():
        torch.testing.assert_close(pb.load(runs[1].model_file).state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bounds", [(1.0, 50.0, 200.0, 1e5), (1.0, 6.0, 6.5, 1e5)])
def test_bounds_that_never_bind_are_trained_once(tmp_path, bounds, monkeypatch):
    """The norms grow from 5.3 at the branch to 7.2: a bound of 6 seems to leave them alone at first, and does not."""
    recipe = replace(RECIPE, learning_rate=0.08, start=1)
    plans = [Plan("digits", "pn-4", replace(recipe, bound=bound), seed=1) for bound in bounds]
    plans.append(Plan("digits", "pn-4", replace(recipe, method="none"), seed=1))
    sizes = []

    class Spy(Trainer):
        def __init__(self, model, *rest):
            sizes.append(model.runs)
            super().__init__(model, *rest)

    monkeypatch.setattr("polybound.experiments.stack.Trainer", Spy)
    runs = train_together(plans, load_digits("train"), tmp_path)
    if bounds[1] == 50.0:
        assert sizes == [1, 2]
        assert runs[4].metrics()[-1]["note"] == "never constrained, so one with digits-pn-4-projection-50-s1"
    else:
        assert sizes == [1, 2, 1, 1, 1, 1]  # 1 and 6; then 6.5, for itself; then 1e5 and none
        assert "note" not in runs[2].metrics()[-1] and "note" in runs[4].metrics()[-1]
    for plan, run in zip(plans, runs, strict=True):
        model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=1)
        pb.fit(model, load_digits("train"), plan.recipe, seed=1)
        for name, tensor in pb.load(run.model_file).state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_a_run_that_is_no_longer_finite_ends_and_the_others_go_on(tmp_path):
    wild = replace(RECIPE, method="projection", learning_rate=5.0, start=0, every=1)
    plans = [Plan("digits", "pn-4", replace(wild, bound=bound), seed=0) for bound in (0.2, 1e9)]
    runs = train_together(plans, load_digits("train"), tmp_path, test=load_digits("test"))
    assert runs[0].failure is None and runs[0].model_file.exists()
    assert "became" in runs[1].failure and "epoch" in runs[1].failure and not runs[1].model_file.exists()
    assert runs[1].finished
    alone = train_together(plans[:1], load_digits("train"), tmp_path / "alone")
    for name, tensor in pb.load(alone[0].model_file).state_dict().items():
        torch.testing.assert_close(pb.load(runs[0].model_file).state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_plans_that_do_not_fit_together(tmp_path):
    other = Plan("digits", "pn-4", replace(RECIPE, learning_rate=0.5))
    with pytest.raises(PolyboundError, match="cannot train together"):
        train_together([PLANS[0], other], load_digits("train"), tmp_path)


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
    from polybound.runs import checkpoint_path

    file = checkpoint_path(tmp_path, [PLANS[0].config()])
    file.write_bytes(b"nonsense")
    with pytest.raises(PolyboundError, match=file.name):
        train_together(PLANS[:1], load_digits("train"), tmp_path)


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from test_stack_training import PLANS, load_digits, train_together
plans = PLANS if sys.argv[3] == "stack" else PLANS[4:5]
print("ready", flush=True)
train_together(plans, load_digits("train"), Path(sys.argv[2]), save_every=0.0)
print("done", flush=True)
"""


def child(folder, what):
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(folder), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("what", ["run", "stack"])
def test_kill_9_at_any_moment_costs_nothing(tmp_path, undisturbed, what):
    plans = PLANS if what == "stack" else PLANS[4:5]
    whole = undisturbed if what == "stack" else weights(train_together(plans, load_digits("train"), tmp_path / "whole"))
    kills, generator = int(os.environ.get("POLYBOUND_KILLS", "4")), random.Random(0)
    killed = 0
    while killed < kills:
        with child(tmp_path / "killed", what) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(generator.uniform(0.0, 0.25))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
        killed += 1
        if "done" in rest:  # it was faster than the kill: begin anew
            for file in (tmp_path / "killed").rglob("*"):
                if file.is_file():
                    file.unlink()
    with child(tmp_path / "killed", what) as process:
        assert "done" in process.stdout.read()
    runs = train_together(plans, load_digits("train"), tmp_path / "killed")
    assert same_bits(weights(runs), whole)
    leftovers = [path.name for path in (tmp_path / "killed").rglob("*") if path.is_file()]
    assert {name for name in leftovers if not name.startswith(".")} == {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
    }


def test_sigint_saves_and_stops(tmp_path, undisturbed):
    with child(tmp_path, "stack") as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
    assert same_bits(weights(train_together(PLANS, load_digits("train"), tmp_path)), undisturbed)
