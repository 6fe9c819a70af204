"""The command line as its users see it: help, exit codes, one-line errors, and a few real processes."""

import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import polybound as pb
from helpers.processes import Command
from polybound.cli.train import read_options, unfold
from polybound.runs import Run

# After the branch the checkpoint has two runs, and does not fit any more: as on a full disk, writing ends early.
FULL = "import resource, polybound.cli as c; resource.setrlimit(resource.RLIMIT_FSIZE, (25000, -1)); c.main()"


def process(*words):
    """A Python process of its own, in which every warning is an error."""
    # One thread, as in the tests' own process: another number of threads gives other bits.
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    pb.paper_model("ncp-4", shape=(1, 4, 4), seed=0).save(path)
    return path


def test_exit_codes_of_the_module(tmp_path):
    good, bad = process("-m", "polybound", "--version"), process("-m", "polybound", "info", tmp_path / "none")
    assert good.returncode == 0 and good.stdout.strip() == f"polybound {pb.__version__}" and good.stderr == ""
    assert bad.returncode == 2 and bad.stdout == "" and bad.stderr.startswith("polybound: error: ")
    assert bad.stderr.count("\n") == 1


def test_every_name_of_the_facade_exists():
    for name in pb.__all__:
        assert getattr(pb, name) is not None
    with pytest.raises(AttributeError):
        _ = pb.nothing


def test_bounds_and_info(cli, model_file):
    model, shown = pb.load(model_file), cli("bounds", model_file)
    assert shown.code == 0 and "Theorem 4" in shown.out and "||x||_inf <= 1" in shown.out
    table = cli("bounds", model_file, "--json", "-n", 100).json
    values = {row["quantity"]: row["value"] for row in table["bounds"]}
    assert values["Lipschitz constant, l_inf, row-wise"] == float(pb.lipschitz(model))
    for radius in ("1e300", "1e308"):  # whose powers overflow
        assert "inf" in cli("bounds", model_file, "--radius", radius).out
        table = cli("bounds", model_file, "--radius", radius, "--json").json
        assert None in [row["value"] for row in table["bounds"]]
    facts = cli("info", model_file, "--json").json
    assert (facts["kind"], facts["config"]["degree"]) == ("NCP", 4) and "NCP" in cli("info", model_file).out
    assert facts["numbers"] == sum(p.numel() for p in model.parameters())


def test_demo(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("polybound.cli.demo.RADII", (0.2, 0.3))
    known = ("demo", "--epochs", 3, "--save", tmp_path / "models")
    result = cli(*known, "-o", tmp_path / "plot.png", columns=80)
    assert result.code == 0, result.err
    for word in ("plain", "projected", "test accuracy", "under PGD, eps 0.2", "proven accuracy, eps 0.3", "times less"):
        assert word in result.out
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", result.out).splitlines())) <= 80
    assert f"plot: {tmp_path / 'plot.png'}" in result.err and "next: polybound certify" in result.err
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    result = cli(*known, "--json", "--no-plot", "--quiet")
    report, test = result.json, pb.data.load_digits("test")
    assert result.err == "" and {path.name for path in tmp_path.iterdir()} == {"models", "plot.png"}
    assert report["runs"] == ["plain", "projected"] and report["eps"] == [0.2, 0.3]
    assert set(report["final"]) >= {"test accuracy", "theta"}
    for index, name in enumerate(report["runs"]):
        model = pb.load(tmp_path / "models" / f"{name}.safetensors")
        assert pb.Projection(model, 1.0).contains() == (name == "projected")
        clean, pgd, proven = report["final"]["test accuracy"][index], report["pgd"][name], report["certified"][name]
        assert clean == float(pb.accuracy(model, test))
        # An attack leaves at least what is proven: the proven share of each radius, by one call.
        assert all(clean >= a >= b for a, b in zip(pgd, proven, strict=True))
        assert proven[1] <= pb.certified_accuracy(model, test, 0.3, budget=0.0)


def test_train(cli, tmp_path):
    config = tmp_path / "recipe.toml"
    given = 'dataset = "digits"\nmethod = "projection"\nbounds = [1.0, 2.0]\nlearning_rate = 0.02\nstart = 1\n'
    config.write_text(given)
    words = ("--recipe", config, "--epochs", 2, "--seed", 0, "--seed", 1, "--runs", tmp_path / "runs")
    words += ("--optimiser", "momentum", "--momentum", 0.5, "--label-smoothing", 0.1)
    rows = cli("train", *words, "--json").json["runs"]
    assert [(row["seed"], row["method.bound"]) for row in rows] == [(0, 1.0), (0, 2.0), (1, 1.0), (1, 2.0)]
    assert len({row["label"] for row in rows}) == 4
    for row in rows:
        run = Run(Path(row["run"]))
        assert pb.Projection(run.model(), row["method.bound"]).contains() and row["accuracy"] > 0.2
        assert (row["optimiser.momentum"], row["loss.label_smoothing"]) == (0.5, 0.1)
        assert run.spec().columns() == {name: row[name] for name in run.spec().columns()}
        (score,) = run.scores()
        assert row["accuracy"] == score.accuracy == float(pb.accuracy(run.model(), pb.data.load_digits("test")))
    assert cli("train", *words, "--json").json["runs"] == rows
    assert "test accuracy" in cli("train", *words).out


def test_a_run_that_diverges_is_one_line_and_exit_code_1(cli, tmp_path):
    words = ("train", "--dataset", "digits", "--epochs", 2, "--samples", 300, "--learning-rate", 1e9)
    for _ in range(2):  # the second time, nothing is trained
        failed = cli(*words, "--recipe", "paper", "--runs", tmp_path, "--json")
        (entry,) = failed.json["runs"]
        assert failed.code == 1 and entry["failure"] and entry["accuracy"] is None
        assert len(failed.err.strip().splitlines()) == 1 and "Traceback" not in failed.err


def test_the_papers_recipe_is_named(tmp_path):
    paper = unfold(read_options("paper", {"dataset": "digits", "epochs": 20}, []), None)
    assert paper[0].recipe == pb.Recipe.from_options(epochs=20) and paper[0].recipe.schedule.milestones == (5, 15)
    (usual,) = unfold(read_options("paper", {"dataset": "digits"}, []), None)
    assert usual.as_dict()["schedule"]["milestones"] == [25, 75] and usual.recipe == pb.Recipe()
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "paper"\ndataset = "digits"\nlearning_rate = 0.02\n')
    (mine,) = unfold(read_options(str(file), {}, []), None)
    assert mine.recipe == pb.Recipe.from_options(learning_rate=0.02)
    (part,) = unfold(read_options("default", {"dataset": "digits", "samples": 200, "validation": 0.2}, []), None)
    assert part.recipe == pb.Recipe.for_data(200, 64)


def test_train_resumes_what_a_full_disk_interrupted(cli, refused, tmp_path):
    options = ["--dataset", "digits", "--method", "projection", "--bound", "0.5", "--bound", "1", "--epochs", "4"]
    options += ["--start-epoch", "2", "--learning-rate", "0.02", "--recipe", "paper"]
    stopped = process("-c", FULL, "train", *options, "--runs", tmp_path / "full")
    assert stopped.returncode == 2 and stopped.stderr.startswith("polybound: error: "), stopped.stderr
    assert stopped.stderr.count("\n") == 1 and ".safetensors: File too large" in stopped.stderr
    # The last checkpoint that fitted is there, and no rest of another.
    assert len(list((tmp_path / "full" / ".checkpoints").iterdir())) == 1
    rows = cli("train", "--resume", "--runs", tmp_path / "full", "--json").json["runs"]
    whole = cli("train", *options, "--runs", tmp_path / "whole", "--json").json["runs"]
    assert len(rows) == 2
    for row, other in zip(rows, whole, strict=True):
        assert row["accuracy"] == other["accuracy"]
        models = [(Path(one["run"]) / "model.safetensors").read_bytes() for one in (row, other)]
        assert models[0] == models[1]
    refused("train", "--resume", "--runs", tmp_path / "full")


def test_train_writes_events(cli, tmp_path):
    pytest.importorskip("tensorboardX")
    options = ("--dataset", "digits", "--epochs", "2", "--validation", "0.2", "--tensorboard", "--json")
    for row in cli("train", *options, "--seed", "1", "--seed", "0", "--runs", tmp_path).json["runs"]:
        (file,) = Path(row["run"]).glob("events.*")
        content = file.read_bytes()
        for line in Run(Path(row["run"])).history()[:2]:
            for name in ("loss", "validation accuracy"):
                assert name.replace(" ", "_").encode() in content and struct.pack("<f", line[name]) in content


ORDER = [
    *("demo", "train", "evaluate", "certify", "bounds", "info", "draw", "data"),
    *("runs", "experiments", "reproduce", "sweep", "report", "compare", "doctor"),
]
PAGES = [*((name,) for name in ORDER), ("data", "list"), ("data", "get"), ("data", "verify")]
PAGES += [("runs", "list"), ("runs", "show"), ("runs", "clean")]


LIGHT = """
import sys
sys.argv = ["polybound", "--help"]
from polybound.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
assert not {"torch", "numpy", "sklearn", "pooch", "importlib.metadata"} & set(sys.modules)
"""


def test_help_names_every_command_and_does_not_load_torch():
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    command = [sys.executable, "-W", "error", "-c", LIGHT]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    assert all(f" {command} " in result.stdout for command in (*ORDER, "export", "verify", "explore", "encrypt"))


def page(cli, *words):
    result = cli(*words, "--help", columns=80)
    assert result.code == 0
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in result.out.splitlines()]


def test_commands_come_in_the_order_in_which_they_are_needed(cli):
    found = [match.group(1) for line in page(cli) if (match := re.match(r"│ ([a-z]+)  ", line))]
    assert [name for name in found if name in ORDER] == ORDER


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page(cli, words):
    lines = page(cli, *words)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    # Flags are flags: no type, and no way to ask for what is the default anyway.
    assert "<bool>" not in text and not re.search(r"--.*<list", text) and not re.search(r"--no-(?!plot)", text)
    if words in (("data",), ("runs",)):
        return
    examples = [line for line in lines if line.startswith((" Example", " polybound "))]
    assert re.match(r" Examples?: *$", examples[0]) and len(examples) >= 2
    assert all(line.startswith(f" polybound {' '.join(words)}") for line in examples[1:])
    assert "--quiet" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    def complete(**environment):
        command = [sys.executable, "-c", "import sys; sys.argv = ['polybound']; from polybound.cli import main; main()"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=100)
        assert done.stderr == ""
        return done.stdout

    assert "_POLYBOUND_COMPLETE" in complete(_POLYBOUND_COMPLETE=f"source_{shell}")
    words = {"COMP_WORDS": "polybound ce", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "polybound ce"}
    words |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "certify" in complete(_POLYBOUND_COMPLETE=f"complete_{shell}", **words)


def test_quiet_leaves_the_result_alone(cli, tmp_path):
    words = ("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path)
    loud, quiet = cli(*words, columns=100), cli(*words, "--quiet", columns=100)
    again = cli(*words, "-q", columns=100)
    assert "1 run" in loud.err  # the progress bar
    assert quiet.err == again.err == "" and quiet.out == again.out == loud.out != ""


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

LONG = 10**9
COMMANDS = {
    "demo": (["demo", "--no-plot", "--epochs", LONG], "starts again"),
    "train": (["train", "--dataset", "digits", "--epochs", LONG, "--runs", "runs"], "polybound train --resume"),
    "sweep by workers": (["sweep", "long.toml", "--runs", "runs", "--workers", 2], "the same command goes on"),
    "evaluate": (
        ["evaluate", "m.safetensors", "--dataset", "digits", "--attacks", f"pgd-0.1-{LONG}-0.01"],
        "the same command goes on",
    ),
    "certify by workers": (
        ["certify", "m.safetensors", "--dataset", "digits", "--workers", 2, *["--eps", 0.01] * 5000],
        "no proofs were written",
    ),
}


def wait_for(happened, command):
    while command.running() and not happened():
        time.sleep(0.05)
    assert command.running()


@ON_LINUX
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n.endswith("workers") else []) for n in COMMANDS]
)
def test_one_line_says_how_to_go_on(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pb.paper_model("pn-4", shape=(1, 8, 8), seed=0).save("m.safetensors")
    (tmp_path / "long.toml").write_text(
        f'datasets = ["digits"]\nmodels = ["pn-4", "ncp-4"]\nseeds = 1\nrecipe = {{epochs = {LONG}}}\n'
    )
    words, said = COMMANDS[name]
    command = Command(*words, errors=tmp_path / "errors")
    try:
        if name == "certify by workers":
            wait_for(lambda: command.workers() == 2 and command.worked() > 1.0, command)
        elif name.startswith(("train", "sweep")):
            wait_for(lambda: any(tmp_path.glob("runs/.checkpoints/*.safetensors")), command)
        else:
            wait_for(lambda: command.worked() > 1.0, command)
        assert command.interrupt() == 130
    finally:
        command.kill()
    line = (tmp_path / "errors").read_text()
    assert line.startswith("polybound: stopped: ") and said in line and line.count("\n") == 1, line


REPLACED = """
import multiprocessing, os, signal, time
from joblib.externals.loky import get_reusable_executor
from polybound.parallel import in_workers
signal.signal(signal.SIGINT, signal.default_int_handler)
list(in_workers(abs, [1, 2, 3], workers=2))
get_reusable_executor(reuse=True).shutdown(wait=True)  # as if the idle workers had reached their time limit
try:
    for _ in in_workers(time.sleep, [0] + [1000] * 5, workers=2):
        print(len(multiprocessing.active_children()))
        os.killpg(os.getpgid(0), signal.SIGINT)
        time.sleep(1000)
except KeyboardInterrupt:
    print(len(multiprocessing.active_children()))
"""


@ON_LINUX
def test_ctrl_c_in_the_caller_ends_the_workers_and_is_not_seen_by_them():
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n0\n", "")
