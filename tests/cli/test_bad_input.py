"""Bad input, as clumsy people and broken disks give it: one line that says what is wrong, exit code 2, no traceback."""

import csv
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import polybound as pb
from helpers.errors import refuses

SHAPE = (1, 8, 8)
DEEP = "[" * 100_000
EVALUATE = "evaluate ok.safetensors --dataset digits --attacks fgsm-0.1"
TRAIN = "train --dataset digits --epochs 1 --runs runs"

# The command, and a word of the one line that it is answered with.
REFUSED = [
    # Numbers that make no sense, or more than the machine has.
    (f"{TRAIN} --rank 1000000000", "more than there is"),
    (f"{TRAIN} --seed -1", "--seed must be a whole number of at least 0"),
    (f"{TRAIN} --start-epoch 0.2", "--start-epoch is no option of none training; it belongs to method projection"),
    (f"{TRAIN} --protocol sound", "--protocol requires an adversary: --adversary fgsm-0.1"),
    ("train --dataset folder:uneven.npz --epochs 1 --runs runs", "50"),
    (f"{TRAIN} --optimiser nonsense", "error: --optimiser must be one of"),
    (f"{TRAIN} --batch-size 0", "error: --batch-size must be"),
    (f"{TRAIN} --samples 99999999", "1,437 samples"),
    ("demo --bound nan --json", "above 0"),
    ("bounds ok.safetensors --radius nan", "radius"),
    (f"{EVALUATE} --certify nan --limit 3", "error: --certify takes a radius"),
    ("certify ok.safetensors --dataset digits --eps 0.1 --budget nan -n 1", "budget"),
    ("sweep table-1 --dry-run --seeds 0", "error: --seeds must be"),
    # Names of what there is not.
    (f"{TRAIN} --device nonsense", "cannot be used"),
    ("train --dataset dígits☃ --runs runs", "no data set"),
    (f"{TRAIN} --set factor={DEEP}", "factor"),
    ("demo -o plot.xyz", "must end in"),
    ("evaluate ok.safetensors --dataset digits --attacks fgsm-0.1 --split nonsense", "error: --split must be"),
    ("evaluate ok.safetensors --attacks fgsm-0.1", "no data set: pass --dataset NAME"),
    ("data get nonsense", "no data set"),
    ("compare scores.csv --protocol nonsense", "protocol must be"),
    # Weights that are no numbers.
    ("bounds nan.safetensors", "not all finite"),
    ("certify nan.safetensors --dataset digits --eps 0.1", "not all finite"),
    # Files that are none, or folders, or empty, or of something else.
    ("info deep.safetensors", "config"),
    ("info junk", "safetensors"),
    ("runs show junk-run", "not a run's spec"),
    ("runs list nowhere", "no such folder"),
    ("train --resume --runs deep-checkpoint", "not a checkpoint"),
    ("train --recipe junk.toml --runs runs", "not TOML"),
    ("train --dataset digits --epochs 1 --runs junk", "Not a directory"),
    ("sweep junk.toml --dry-run", "not an experiment"),
    ("compare junk", "decode"),
    ("compare many.csv", "correct cannot be 'many'"),
    ("report figure-5 --figures nowhere", "no such folder"),
    ("certify ok.safetensors --check deep-run/spec.json", "not JSON"),
    ("certify ok.safetensors --dataset digits --eps 0.1 --save .", "a folder"),
    ("demo -o folder.png", "a folder"),
    ("report junk.toml -o out.html", "junk.toml"),
    ("reproduce table-1 --dataset digits -o nowhere/out.html --runs runs", "no such folder"),
    # Options that are missing, unknown, or do not go together.
    ("train --runs runs", "no data set: pass --dataset NAME"),
    (f"{TRAIN} --bound 1", "--bound is no option of none training"),
    (f"{TRAIN} --set momentum", "NAME=VALUE"),
    (f"{TRAIN} --recipe papers", "no recipe called"),
    (f"{TRAIN} --method projection --bound 1 --start-epoch 5", "it starts after 5 epochs"),
    ("train --recipe colour.toml --runs runs", "colour"),
    ("train --resume --runs runs", "nothing to resume"),
    ("train --resume --seed 1 --runs runs", "takes no seeds"),
    (f"{EVALUATE} --defence prayer", "unknown defence"),
    ("certify ok.safetensors --dataset digits", "--eps"),
    ("certify ok.safetensors --eps 0.1", "--dataset"),
    ("certify ok.safetensors --dataset digits --eps 0.1 --eps 0.2 --save x.json", "one --eps"),
    ("sweep figure-1", "figure-1 is a drawing"),
    ("reproduce figure-1 -o a.html", "must end in .svg"),
    ("explore digits digits digits", "one network or two, not 3"),
    ("explore nope", "nope: no run folder"),
    ("explore digits -o nowhere/e.html", "nowhere: no such folder"),
    ("explore pn-4 --dataset digits", "the model takes (1, 28, 28)"),
    ("explore ok.safetensors", "--dataset"),
    ("draw nope", "none of pn-4, pn-10"),
    ("draw pn-4 -o a.png", "must end in .svg"),
    ("draw pn-4 --shape 1;2", "separated by commas"),
    ("draw digits --rank 3", "--rank is for the paper's models"),
    ("export ok.safetensors", "OUT.onnx"),
    ("export ok.safetensors a.onnx --eps 1", "--vnnlib"),
    ("export ok.safetensors a.onnx --dataset fashion", "fashion"),
    ("export ok.safetensors -o b --vnnlib", "--eps"),
    ("export ok.safetensors -o b --vnnlib --eps 0.1", "--dataset"),
    ("verify net.onnx ok.safetensors", "not a text"),
    ("verify ok.safetensors ok.safetensors", "ONNX"),
    ("verify net.onnx empty", "empty: it declares no X_0"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder full of good and bad files."""
    folder = tmp_path_factory.mktemp("bad")
    model = pb.paper_model("pn-4", shape=SHAPE, seed=0)
    model.save(folder / "ok.safetensors")
    pb.deploy.to_onnx(model, folder / "net.onnx", bounds=False)
    (folder / "colour.toml").write_text("dataset = 'digits'\ncolour = 'red'\n")
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    bad = pb.paper_model("pn-4", shape=SHAPE, seed=0)
    with torch.no_grad():
        bad.V.view(-1)[7] = nan
    bad.save(folder / "nan.safetensors")
    headers = {"deep": DEEP}
    for name, header in headers.items():
        save_file(state, folder / f"{name}.safetensors", metadata={"polybound": header})
    (folder / "deep-checkpoint" / ".checkpoints").mkdir(parents=True)
    save_file(state, folder / "deep-checkpoint" / ".checkpoints" / "0.safetensors", metadata={"state": DEEP})
    junk = bytes(range(256))
    (folder / "empty").touch()
    np.savez(folder / "uneven.npz", X=np.zeros((30, 8, 8), np.float32), y=np.zeros(50, np.int64))
    for name, content in (("junk", junk), ("junk.toml", junk), ("deep-run/spec.json", DEEP.encode())):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "junk-run").mkdir()
    (folder / "junk-run" / "spec.json").write_bytes(junk)
    (folder / "folder.png").mkdir()
    return folder


@pytest.fixture(scope="module")
def scores(place, cli):
    """Files of scores: a good one, and some in which a number is none."""
    (run,) = cli("train", "--dataset", "digits", "--epochs", 1, "--runs", place / "scored", "--json").json["runs"]
    header, row = csv.reader((Path(run["run"]) / "scores.csv").read_text().splitlines())
    for name, changes in {"scores": {}, "many": {"correct": "many"}}.items():
        with (place / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, [changes.get(key, old) for key, old in zip(header, row, strict=True)]])


@pytest.mark.usefixtures("scores")
@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words[:60] for words, _ in REFUSED])
def test_refused_in_one_line(cli, place, words, said):
    before = set(place.rglob("*"))
    result = cli(*(word.strip("'") for word in words.split(" ")), cwd=place)
    assert result.code == 2 and result.out == "", result
    assert result.err.startswith("polybound: error: ") and result.err.count("\n") == 1 and said in result.err
    assert set(place.rglob("*")) == before


@pytest.mark.parametrize("words", ["bounds ok.safetensors -n 0", "demo --epochs none", "bounds", "unknown"])
def test_what_the_parser_refuses(refused, words):
    assert "Usage" in refused(*words.split())


def test_a_line_break_in_a_path_is_refused(refused, tmp_path):
    error = refused("train", "--dataset", "digits", "--runs", tmp_path / "a\nb")
    assert error.count("\n") == 1 and r"a\nb' has a line break" in error and not list(tmp_path.iterdir())


def test_images_of_another_data_set_are_refused_before_their_labels(refused, tmp_path):
    pb.CCP(64, 4, 4, 2, seed=0).save(tmp_path / "four.safetensors")
    error = refused("certify", tmp_path / "four.safetensors", "--dataset", "digits", "--eps", "0.1")
    assert "digits has 10 classes, the model 4" in error


def test_a_split_that_the_run_does_not_have(refused, place, scores):
    (run,) = (place / "scored").glob("digits*")
    error = refused("evaluate", run, "--attacks", "fgsm-0.1", "--split", "validation")
    assert "this run held none of its training images out" in error and "--validation 0.1" in error


def test_an_option_of_a_file_keeps_its_name(refused, tmp_path):
    """What was not typed is not answered by an option."""
    (tmp_path / "recipe.toml").write_text("dataset = 'digits'\nbatch_size = 0\n")
    assert "error: batch_size must be" in refused("train", "--recipe", tmp_path / "recipe.toml", "--runs", tmp_path)


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_weights_that_are_no_numbers_have_no_bound(value):
    model = pb.paper_model("pn-4", shape=SHAPE, seed=0)
    with torch.no_grad():
        model.C[3, 5] = value
    one = pb.paper_model("pn-4", shape=SHAPE, seed=1)
    for network in (model, model.factors(), pb.stack([one, model])):
        others = (lambda m: pb.lipschitz(m, 2, "paper"), lambda m: pb.lipschitz(m, method="local", box=(-0.1, 0.1)))
        complexities = (lambda m: pb.rademacher(m, 100), lambda m: pb.rademacher(m, 100, "2"))
        for bound in (pb.lipschitz, *others, *complexities, pb.theta, pb.gamma):
            refuses("not all finite", bound, network, error=pb.NonFiniteError)
    for bound in (pb.bounds, pb.theory.sensitivity):
        refuses("not all finite", bound, model, error=pb.NonFiniteError)


@pytest.mark.parametrize("seed", [2**62, -(10**30), 1.5, "3", [1, 2]])
def test_seeds_of_models(seed):
    refuses("seed", pb.paper_model, "pn-4", shape=SHAPE, seed=seed)


def test_a_norm_may_be_a_number():
    one, other = (pb.training.Recipe.from_options(method="projection", bound=1.0, norm=norm) for norm in (2, "2"))
    assert one == other and one.method.norm == "2"
    refuses("norm must be 'inf' or '2', got 3", pb.training.Recipe.from_options, method="projection", bound=1.0, norm=3)


SETTINGS = [
    *("milestones=5", "milestones=null", "seeds=5", "seeds=[]", "bounds=1", "model=[]", "model=5", "rank=x"),
    *("method=[]", "adversary=5", "=3", "nonsense", "samples=100000", "samples=2.5", "dataset=5", "dataset=[]"),
    *(f"seeds=[{10**30}]", "seeds=[true]", "seeds=[1.5]", "bounds=[[1]]", "validation=null"),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_options_of_the_wrong_kind_are_refused_before_anything_is_written(refused, tmp_path, setting):
    given = [] if setting.startswith("dataset") else ["--dataset", "digits"]
    assert refused("train", *given, "--set", "epochs=1", "--set", setting, "--runs", tmp_path / "runs")
    assert not list(tmp_path.iterdir())


UNKNOWN = ("--method", "projection", "--set", 'bound={"X": 1}')


@pytest.mark.parametrize(
    "words", [UNKNOWN, (*UNKNOWN, "--start-epoch", 0), ("--device", "nonsense"), ("--device", "meta")]
)
def test_what_cannot_be_trained_leaves_nothing(refused, tmp_path, words):
    assert refused("train", "--dataset", "digits", "--epochs", 1, *words, "--runs", tmp_path / "runs")
    assert not list(tmp_path.iterdir())


FIELDS = [
    *("datasets = 5", "datasets = 'digits'", "attacks = 'fgsm-0.1'", "attacks = ['nonsense']", "attacks = [5]"),
    *("bounds = 1.0", "bounds = ['a']", "kind = 'nonsense'", "layout = 'nonsense'", "x = 'nonsense'", "lines = 'x'"),
    *("seeds = 1.5", "seeds = true", "limit = 1.5", "ranks = 4", "splits = ['nonsense']", "splits = ['validation']"),
    *("defences = ['nonsense']", "eps = ['a']", "eps = [-1]", "recipe = 5", "options = {jacobian = 5}", "title = 5"),
    *("projections = ['nuclear']", "methods = ['none+at']", "budget = 0.0", "colours = 3"),
    *("options = {jacobain = {weight = 1}}", "kind = 'search'", "layerwise = 5", "models = ['nonsense']", "no = 1"),
]


@pytest.mark.parametrize("field", FIELDS)
def test_experiments_with_a_field_of_the_wrong_kind_are_refused_before_any_work(refused, tmp_path, field):
    file = tmp_path / "mine.toml"
    file.write_text(field + ("" if field.startswith("datasets") else "\ndatasets = ['digits']"))
    message = refused("sweep", file, "--runs", tmp_path / "runs", "--workers", 1)
    assert len(message.splitlines()) == 1 and not list(tmp_path.glob("runs/[!.]*"))
