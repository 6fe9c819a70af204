"""The command line as its users see it: real processes, exit codes, one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import polybound as pb


def polybound(*args, cwd=None):
    command = [sys.executable, "-W", "error", "-c", "from polybound.cli import main; main()", *map(str, args)]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300)


def refused(*args):
    result = polybound(*args)
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    pb.paper_model("ncp-4", shape=(1, 4, 4), seed=0).save(path)
    return path


def test_help_names_every_command_and_does_not_load_torch():
    code = "import sys; sys.argv = ['polybound', '--help']\nfrom polybound.cli import main\ntry: main()\nexcept SystemExit as e: assert not e.code\nassert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    for command in ("demo", "bounds", "info"):
        assert command in result.stdout
        assert "Example" in polybound(command, "--help").stdout


def test_importing_polybound_is_light():
    code = "import sys, polybound; assert 'torch' not in sys.modules; dir(polybound); assert polybound.CCP; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_name_of_the_facade_exists():
    for name in pb.__all__:
        assert getattr(pb, name) is not None
    with pytest.raises(AttributeError):
        _ = pb.nothing


def test_version():
    assert polybound("--version").stdout.strip() == f"polybound {pb.__version__}"


def test_bounds(model_file):
    shown = polybound("bounds", model_file)
    assert shown.returncode == 0 and "Theorem 4" in shown.stdout and "||x||_inf <= 1" in shown.stdout
    table = json.loads(polybound("bounds", model_file, "--json", "-n", 100).stdout)
    values = {row["quantity"]: row["value"] for row in table["bounds"]}
    assert values["Lipschitz constant, l_inf, row-wise"] == float(pb.lipschitz(pb.load(model_file)))


def test_info(model_file):
    assert "NCP" in polybound("info", model_file).stdout
    facts = json.loads(polybound("info", model_file, "--json").stdout)
    assert facts["kind"] == "NCP" and facts["config"]["degree"] == 4
    assert facts["numbers"] == sum(p.numel() for p in pb.load(model_file).parameters())


def test_demo(tmp_path):
    result = polybound("demo", "--epochs", 4, "--save", tmp_path / "models", "-o", tmp_path / "plot.png")
    assert result.returncode == 0, result.stderr
    for word in ("plain", "projected", "test accuracy", "times less"):
        assert word in result.stdout
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    projected = pb.load(tmp_path / "models" / "projected.safetensors")
    assert pb.Projection(projected, 1.0).contains()
    assert not pb.Projection(pb.load(tmp_path / "models" / "plain.safetensors"), 1.0).contains()


def test_demo_as_json(tmp_path):
    result = polybound("demo", "--epochs", 2, "--json", "--no-plot", cwd=tmp_path)
    report = json.loads(result.stdout)
    assert report["runs"] == ["plain", "projected"] and set(report["final"]) >= {"test accuracy", "theta"}
    assert list(tmp_path.iterdir()) == []


def test_bad_files_are_refused_in_one_line(tmp_path, model_file):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a model")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model_file.read_bytes()[:-100])
    for command in ("bounds", "info"):
        for path in (garbage, cut, tmp_path, tmp_path / "missing"):
            error = refused(command, path)
            assert error.startswith("polybound: error: ") and str(path) in error and error.count("\n") == 1


def test_bad_options_are_refused(model_file, tmp_path):
    assert "bound" in refused("demo", "--bound", "-1", "--epochs", "2")
    assert "no such folder" in refused("demo", "-o", tmp_path / "nowhere" / "plot.png")
    assert "radius" in refused("bounds", model_file, "--radius", "-1")
    refused("demo", "--epochs", "none")
    refused("bounds", model_file, "-n", "0")
    refused("bounds")
    refused("unknown")


def test_train(tmp_path):
    config = tmp_path / "recipe.toml"
    config.write_text(
        'dataset = "digits"\nmethod = "projection"\nbounds = [1.0, 2.0]\nlearning_rate = 0.02\nstart = 1\n'
    )
    command = (
        "train",
        "--recipe",
        config,
        "--epochs",
        2,
        "--seed",
        0,
        "--seed",
        1,
        "--runs",
        tmp_path / "runs",
        "--json",
    )
    rows = json.loads(polybound(*command).stdout)
    assert [(row["seed"], row["bound"]) for row in rows] == [(0, 1.0), (0, 2.0), (1, 1.0), (1, 2.0)]
    for row in rows:
        model = pb.load(f"{row['run']}/model.safetensors")
        assert pb.Projection(model, row["bound"]).contains() and row["test accuracy"] > 0.2
    assert json.loads(polybound(*command).stdout) == rows
    assert "test accuracy" in polybound(*command[:-1]).stdout


def test_train_refuses_what_it_cannot_do(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("epochs = ")
    unknown = tmp_path / "unknown.toml"
    unknown.write_text("colour = 'red'\n")
    runs = ("--runs", tmp_path / "runs")
    assert "which data set" in refused("train", *runs)
    assert "no data set is called" in refused("train", "--dataset", "nothing", *runs)
    assert "method must be one of" in refused("train", "--dataset", "digits", "--method", "dropout", *runs)
    assert "takes no bound" in refused("train", "--dataset", "digits", "--bound", "1", *runs)
    assert "no model called" in refused("train", "--dataset", "digits", "--model", "pn-5", "--epochs", "1", *runs)
    assert "not TOML" in refused("train", "--recipe", bad, *runs)
    assert "colour" in refused("train", "--recipe", unknown, *runs)
    assert "no recipe called" in refused("train", "--recipe", "papers", *runs)
    assert "nothing to resume" in refused("train", "--resume", *runs)
    assert "takes no seed" in refused("train", "--resume", "--seed", "1", *runs)


def test_train_resumes_what_a_full_disk_interrupted(tmp_path):
    options = ["--dataset", "digits", "--method", "projection", "--bound", "0.5", "--bound", "1", "--epochs", "4"]
    options += ["--start-epoch", "2", "--learning-rate", "0.02", "--recipe", "paper"]
    # After the branch the checkpoint has two runs, and does not fit any more: as on a full disk, writing ends early.
    code = "import resource, sys, polybound.cli as c; resource.setrlimit(resource.RLIMIT_FSIZE, (25000, -1)); c.main()"
    command = [sys.executable, "-c", code, "train", *options, "--runs", str(tmp_path / "full")]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert stopped.returncode == 2 and stopped.stderr.startswith("polybound: error: "), stopped.stderr
    assert stopped.stderr.count("\n") == 1 and ".safetensors: File too large" in stopped.stderr
    assert (
        len(list((tmp_path / "full" / ".checkpoints").iterdir())) == 1
    )  # the last that fitted, and no rest of another
    rows = json.loads(polybound("train", "--resume", "--runs", tmp_path / "full", "--json").stdout)
    whole = json.loads(polybound("train", *options, "--runs", tmp_path / "whole", "--json").stdout)
    for row, other in zip(rows, whole, strict=True):
        assert row["test accuracy"] == other["test accuracy"]
        assert (Path(row["run"]) / "model.safetensors").read_bytes() == (
            Path(other["run"]) / "model.safetensors"
        ).read_bytes()
    refused("train", "--resume", "--runs", tmp_path / "full")


def test_train_writes_events(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    options = ("--dataset", "digits", "--epochs", "3", "--validation", "0.2", "--tensorboard", "--json")
    (row,) = json.loads(polybound("train", *options, "--runs", tmp_path).stdout)
    (file,) = Path(row["run"]).glob("events.*")
    content, found = file.read_bytes(), {}
    while content:  # records: length, its checksum, an event, its checksum
        length = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
        content = content[16 + length :]
    metrics = [json.loads(line) for line in (Path(row["run"]) / "metrics.jsonl").read_text().splitlines()][:3]
    assert found["loss"] == pytest.approx({line["epoch"]: line["loss"] for line in metrics})
    assert found["validation_accuracy"] == pytest.approx(
        {line["epoch"]: line["validation accuracy"] for line in metrics}
    )
