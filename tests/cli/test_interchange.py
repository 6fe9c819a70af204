"""`polybound export` and `polybound verify`, ONNX files in the other commands, and what they say without the extra."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import polybound as pb
from helpers.onnx_graphs import off, run
from helpers.processes import run_code


@pytest.fixture(scope="module")
def model():
    return pb.paper_model("pn-4", shape=(1, 8, 8), seed=1)


@pytest.fixture(scope="module")
def model_file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def net(cli, model_file):
    path = model_file.parent / "net.onnx"
    assert cli("export", model_file, path, "--dataset", "digits").code == 0
    return path


def test_export_writes_a_network_with_what_the_data_say(net, model):
    entries = {entry.key: json.loads(entry.value) for entry in onnx.load(net).metadata_props}
    assert entries["class_names"] == [str(digit) for digit in range(10)] and entries["domain"] == [-1.0, 1.0]
    assert entries["scaling"] == {"factor": 0.125, "offset": -1.0} and len(entries["bounds"]) == 3
    x = torch.rand(3, 1, 8, 8)
    assert off(run(net, x), model(x)) < 1e-5


def test_a_scaling_comes_from_the_source_and_is_never_guessed(cli, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    scalings = {}
    raw = {"bytes": rng.integers(0, 256, (40, 2), dtype=np.uint8), "floats": rng.integers(-1, 2, (40, 2)).astype("f4")}
    pb.CCP(2, 2, 2, 2, seed=0).save(tmp_path / "m.safetensors")
    for name, x in raw.items():
        np.savez(tmp_path / f"{name}.npz", X=x, y=y)
        file = tmp_path / f"{name}.onnx"
        words = ("--dataset", f"folder:{tmp_path / name}.npz", "--no-bounds")
        assert cli("export", tmp_path / "m.safetensors", file, *words).code == 0
        scalings[name] = pb.deploy.read_onnx(file).metadata.scaling
    assert scalings == {"bytes": (1 / 127.5, -1.0), "floats": None}


def test_onnx_files_are_models_to_every_command(cli, net, model_file):
    assert cli("info", net, "--json").json["config"] == cli("info", model_file, "--json").json["config"]
    assert cli("bounds", net, "--json").json == cli("bounds", model_file, "--json").json
    words = ("--dataset", "digits", "--eps", "0.05", "-n", "20", "--json")
    (one,), (other,) = (cli("certify", file, *words).json["rows"] for file in (net, model_file))
    assert (one["verified"], one["falsified"]) == (other["verified"], other["falsified"])
    words = ("--dataset", "digits", "--attacks", "fgsm-0.1", "--limit", "50", "--json")
    one, other = (cli("evaluate", file, *words).json["scores"][0] for file in (net, model_file))
    assert one["correct"] == other["correct"]


def test_a_benchmark_by_one_command(cli, model_file, tmp_path):
    words = ("--vnnlib", "--eps", "0.02", "--eps", "0.2", "--images", "4", "--dataset", "digits", "--timeout", "20")
    result = cli("export", model_file, *words, "-o", tmp_path / "b", "--json").json
    assert len(result["files"]) == 10 and Path(result["files"][-1]).name == "instances.csv"
    answers = set()
    for line in (tmp_path / "b" / "instances.csv").read_text().splitlines():
        network, question, seconds = line.split(",")
        files = [tmp_path / "b" / name for name in (network, question)]
        answer = cli("verify", *files, "--timeout", seconds, "-o", tmp_path / "r")
        assert answer.code == 0 and (tmp_path / "r").read_text() == answer.out
        answers.add(answer.out.splitlines()[0])
    assert answers <= {"sat", "unsat"} and "sat" in answers


def test_run_folders_know_their_data(cli, digits_run, tmp_path):
    assert cli("export", digits_run, tmp_path / "net.onnx", "--no-bounds").code == 0
    assert pb.deploy.read_onnx(tmp_path / "net.onnx").metadata.class_names == tuple("0123456789")
    assert (
        cli("export", digits_run, "--vnnlib", "--eps", "0.1", "-n", "2", "--no-bounds", "-o", tmp_path / "b").code == 0
    )
    [network] = (tmp_path / "b" / "onnx").iterdir()
    assert network.name == f"{digits_run.name}.onnx"


def test_correct_images_only(cli, model_file, tmp_path, model):
    words = ("--vnnlib", "--eps", "0", "--images", "5", "--dataset", "digits", "--correct-only", "--no-bounds")
    assert cli("export", model_file, *words, "-o", tmp_path).code == 0
    for line in (tmp_path / "instances.csv").read_text().splitlines():
        network, question, _ = line.split(",")
        assert cli("verify", tmp_path / network, tmp_path / question).out == "unsat\n"


def test_a_run_that_is_not_decided_has_exit_code_1(cli, tmp_path):
    pb.paper_model("pn-10", shape=(1, 8, 8), seed=0).save(tmp_path / "m.safetensors")
    words = ("--vnnlib", "--eps", "0.3", "--images", "4", "--dataset", "digits", "--correct-only", "--no-bounds")
    cli("export", tmp_path / "m.safetensors", *words, "-o", tmp_path)
    seen = set()
    for line in (tmp_path / "instances.csv").read_text().splitlines():
        network, question, _ = line.split(",")
        result = cli("verify", tmp_path / network, tmp_path / question, "--timeout", "0", "--json")
        seen.add((result.json["answer"], result.code))
    assert seen <= {("timeout", 1), ("sat", 0), ("unsat", 0)}


WITHOUT = """
import contextlib, io, json, pathlib, sys
assert not set({blocked!r}) & set(sys.modules)
file = pathlib.Path(sys.argv[1])
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from polybound.cli import main
results = []
for words in {commands!r}:
    sys.argv, out, err, code = ["polybound", *words], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    results.append([code, out.getvalue(), err.getvalue()])
file.write_text(json.dumps(results))
"""


def without(file, blocked, *commands):
    """Exit code, output and errors of commands in one process that cannot import some packages, by way of a file."""
    code = WITHOUT.format(blocked=blocked, commands=[[str(word) for word in words] for words in commands])
    assert run_code(code, file) == 0
    return json.loads(file.read_text())


def test_without_the_extra_each_command_says_which(model_file, net, tmp_path):
    commands = [
        ("export", model_file, "a.onnx"),
        ("export", model_file, "-o", tmp_path, "--vnnlib", "--eps", "0.1", "--dataset", "digits"),
        ("verify", net, tmp_path / "p.vnnlib"),
        ("certify", net, "--dataset", "digits", "--eps", "0.1"),
        ("bounds", net),
        ("info", net),
    ]
    for code, out, err in without(tmp_path / "results", ["onnx"], *commands):
        assert code == 2 and out == "" and err.count("\n") == 1 and "pip install 'polybound[onnx]'" in err


def test_what_needs_no_extra_works_without(model_file, net, tmp_path):
    question = tmp_path / "p.vnnlib"
    question.write_text(pb.deploy.robustness_vnnlib(torch.zeros(64), 0, 0.001, 10))
    answer, info = without(tmp_path / "results", ["onnxruntime"], ("verify", net, question), ("info", model_file))
    assert answer[0] == 0 and answer[1].splitlines()[0] in ("sat", "unsat") and info[0] == 0
