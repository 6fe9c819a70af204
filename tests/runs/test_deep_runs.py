"""Deep networks by name, in run folders: the same bits after a kill -9, alone or beside others; statistics included."""

import json

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from helpers.processes import Command
from polybound.models import BoxNet
from polybound.runs import DataSpec, ModelSpec, Run, Spec, checkpoints, train_runs

DIGITS = DataSpec.of("digits", samples=128)
SMALL = ModelSpec("polynet", parameters={"width": 4, "blocks": (1, 1)})
RECIPE = pb.Recipe.from_options(
    {"optimiser": "adamw", "schedule": "one-cycle", "learning_rate": 0.01, "augment": "shift-1, flip", "clip": 1.0},
    epochs=3,
    batch_size=16,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of every deep model, and where they are."""
    specs = [Spec(DIGITS, SMALL, RECIPE, seed) for seed in (0, 1)]
    for name, given in (("pi-net", {"width": 4, "degrees": (2, 2)}), ("polymlp", {"width": 8})):
        specs.append(Spec(DIGITS, ModelSpec(name, parameters=given), RECIPE))
    root = tmp_path_factory.mktemp("runs")
    return specs, [run for one in (specs[:2], specs[2:3], specs[3:]) for run in train_runs(one, root)]


def test_models_by_name_have_their_parameters_in_their_address():
    assert SMALL.as_dict() == {"name": "polynet", "width": 4, "blocks": [1, 1]}
    assert ModelSpec("pn-4").as_dict() == {"name": "pn-4", "rank": 16}
    assert ModelSpec("polynet") == ModelSpec("polynet", parameters={"blocks": [1, 1, 1]}) != SMALL
    specs = [Spec(DIGITS, model, RECIPE) for model in (SMALL, ModelSpec("polynet"), ModelSpec("pi-net"))]
    assert len({spec.address for spec in specs}) == 3
    for spec in specs:
        assert Spec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec == Spec.from_columns(spec.columns())
        assert hash(spec) == hash(Spec.from_dict(spec.as_dict()))
    assert list(specs[0].difference(specs[1])) == ["model.width", "model.blocks"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: ModelSpec("polynet", 8), "rank is no parameter of model polynet; it has width, blocks"),
        (lambda: ModelSpec("pn-4", parameters={"width": 8}), "width is no parameter of model pn-4; it has rank"),
        (lambda: ModelSpec("polynet", parameters={"width": -1}), "width must be a whole number of at least 0, got -1"),
        (lambda: ModelSpec("polynet", parameters={"blocks": "1,1"}), "blocks must be a whole number"),
        (lambda: pb.stack([pb.PolyNet((1, 8, 8), width=2, seed=0)] * 2), "a PolyNet has no stacks"),
        (lambda: pb.paper_model("pi-net", (1, 2, 2)), "images of (1, 2, 2) are too small for 2 poolings"),
        (lambda: pb.paper_model("pi-net", (4,), parameters={"degrees": ()}), "PiNet takes one or more degrees"),
        (lambda: pb.paper_model("polymlp", (4,), runs=2), "a PolyMLP has no stacks: its runs are trained one by one"),
        (lambda: pb.models.register_model("mine", "", pb.PolyNet, seed=3), "parameter cannot be called 'seed'"),
        (lambda: BoxNet((1, 8, 8), kernels=(3,)), "as many kernels and strides as channels"),
        (lambda: BoxNet((1, 8, 8), kernels=(9, 1)), "too small for kernels"),
        (lambda: BoxNet((1, 8, 8), pixels=30), "at most 20 squares"),
        (lambda: BoxNet((1, 8, 8), hidden=0), "hidden must be"),
    ],
)
def test_models_that_cannot_be(model, message):
    assert message in refuses("", model)


def test_every_run_is_as_if_it_were_alone(trained):
    specs, runs = trained
    for spec, run in zip(specs, runs, strict=True):
        model = spec.model.build(DIGITS.load("train"), seed=spec.seed)
        data = DIGITS.load("train")
        pb.fit(model, data, spec.recipe, seed=spec.seed)
        stored = run.model()
        assert not stored.training and stored.config() == model.config()
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, stored.state_dict()[name]), name


def test_kill_9_of_a_deep_run(trained, tmp_path):
    """The checkpoint holds weights, statistics and the optimiser's memory; augmentation needs none."""
    specs, runs = trained
    words = ["train", "--dataset", "digits", "--samples", 128, "--recipe", tmp_path / "recipe.toml", "--runs", tmp_path]
    recipe = RECIPE.as_dict()
    (tmp_path / "recipe.toml").write_text(
        'recipe = "paper"\nmodel = "polynet"\nwidth = 4\nblocks = [1, 1]\noptimiser = "adamw"\nschedule = "one-cycle"\n'
        f'learning_rate = 0.01\nbatch_size = 16\nepochs = 3\nclip = {recipe["clip"]}\naugment = "shift-1, flip"\n'
    )
    for _ in range(2):
        before = {file: file.stat().st_mtime_ns for file in checkpoints(tmp_path)}
        command = Command(*words)
        try:
            while command.running():
                if any(before.get(file) != file.stat().st_mtime_ns for file in checkpoints(tmp_path)):
                    break
        except FileNotFoundError:
            pass  # it is over
        command.kill()
    run = Run.of(specs[0], tmp_path)
    if not run.finished():
        assert len(checkpoints(tmp_path)) == 1
    train_runs(specs[:1], tmp_path)
    assert run.digest() == runs[0].digest() is not None and not checkpoints(tmp_path)
    lines = [{key: line.get(key) for key in ("epoch", "loss", "rate")} for line in run.history()]
    assert lines == [{key: line.get(key) for key in ("epoch", "loss", "rate")} for line in runs[0].history()]


def test_a_step_after_every_checkpoint_is_the_same(tmp_path, monkeypatch):
    spec = Spec(DIGITS, SMALL, RECIPE)
    (whole,) = train_runs([spec], tmp_path / "whole")
    from polybound.runs import train as module

    real = module.Session.after_step

    def stop_soon(self, trainer):
        real(self, trainer)
        if trainer.step % 2 == 0 and trainer.step < trainer.steps:
            self._save(trainer)
            trainer.stop()

    monkeypatch.setattr(module.Session, "after_step", stop_soon)
    for _ in range(20):
        try:
            train_runs([spec], tmp_path / "parts")
            break
        except KeyboardInterrupt:
            continue
    assert Run.of(spec, tmp_path / "parts").digest() == whole.digest() is not None


def test_earlier_epochs_and_bounds(tmp_path):
    recipe = RECIPE.replace({"method": "projection", "bound": 0.5, "start": 1, "every": 3})
    spec = Spec(DIGITS, SMALL, recipe)
    (run,) = train_runs([spec], tmp_path, epochs=[2])
    for epoch in (2, None):
        model = run.model(epoch)
        assert pb.Projection(model, 0.5).contains()
    (alone,) = train_runs([spec], tmp_path / "other")  # what is written on the way changes nothing
    assert run.digest() == alone.digest()


def test_experiments_have_deep_models(tmp_path, cli):
    (tmp_path / "deep.toml").write_text(
        'datasets = ["digits"]\nmodels = ["polynet"]\nmethods = ["none", "projection"]\nbounds = [4.0]\n'
        'attacks = ["fgsm-0.1"]\nseeds = 1\nsamples = 64\nparameters = {polynet = {width = 2, blocks = [1]}}\n'
        'options = {projection = {start = 1}}\nrecipe = {epochs = 2, augment = "flip", clip = 1.0}\n'
    )
    done = cli("sweep", tmp_path / "deep.toml", "--runs", tmp_path / "runs", "--workers", 1)
    assert done.code == 0, done
    runs = sorted((tmp_path / "runs").glob("digits-*"))
    assert len(runs) == 2 and all(len(Run(path).scores()) >= 3 for path in runs)
    shown = cli("report", tmp_path / "deep.toml", "--runs", tmp_path / "runs", "-o", tmp_path / "page.html")
    assert shown.code == 0 and "polynet" in (tmp_path / "page.html").read_text().lower(), shown
