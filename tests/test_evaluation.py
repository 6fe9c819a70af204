"""Evaluation: counts, intervals, protocols, stacks, batches, run folders that remember."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import polybound as pb
from polybound.attacks import FGSM, PGD
from polybound.data import Dataset
from polybound.errors import FileFormatError, PolyboundError
from polybound.evaluation import evaluate, evaluate_run, evaluate_runs, read_scores, wilson
from polybound.experiments import Plan, train_together


@given(st.integers(1, 10**5).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_is_the_score_interval(pair, confidence):
    correct, total = pair
    low, high = wilson(correct, total, confidence)
    oracle = stats.binomtest(correct, total).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    assert 0 <= low <= correct / total <= high <= 1


def test_wilson_refuses():
    for pair in ((0, 0), (-1, 3), (4, 3)):
        with pytest.raises(PolyboundError):
            wilson(*pair)
    with pytest.raises(PolyboundError):
        wilson(1, 2, 1.0)


@pytest.fixture(scope="module")
def trained():
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    models = [pb.paper_model("pn-4", shape=train.shape, seed=seed) for seed in (0, 1, 2)]
    stack = pb.stack(models)
    pb.fit(stack, train, epochs=10, learning_rate=0.02)
    return stack, test


def test_scores_are_counts_of_images_right_before_and_after(trained):
    stack, test = trained
    model = stack.run(0)
    result = evaluate(model, test, ["fgsm-0.1", PGD(0.2, 5)], protocol="both", seed=3, per_class=True)
    clean = model(test.x).argmax(-1) == test.y
    assert result.find("clean").correct == int(clean.sum())
    assert [row.protocol for row in result.rows] == ["-", "sound", "published", "sound", "published"]
    for attack in (FGSM(0.1), PGD(0.2, 5)):
        for protocol in ("sound", "published"):
            found = attack(model, test.x, test.y, domain=test.domain, protocol=protocol, seed=3)
            both = clean & (model(found).argmax(-1) == test.y)
            score = result.find(attack.name, protocol)
            assert abs(score.correct - int(both.sum())) <= 1  # summation order may decide an image at the border
            plain = result.attacked_only().find(attack.name, protocol)
            assert abs(plain.correct - int((model(found).argmax(-1) == test.y).sum())) <= 1
            assert plain.correct >= score.correct and plain.low <= plain.accuracy <= plain.high
            assert score.total == len(test) and score.seed == 3
            assert score.accuracy == score.correct / score.total and score.low < score.accuracy < score.high
            assert sum(a for a, _ in score.per_class) == score.correct
            assert [b for _, b in score.per_class] == torch.bincount(test.y).tolist()
    assert any("clipped to [0, 1]" in note for note in result.notes)
    assert not evaluate(model, test, ["fgsm-0.1"]).notes


def test_a_stack_scores_as_its_members_do_in_batches_of_any_size(trained):
    stack, test = trained
    together = evaluate(stack, test, "fgsm-0.1,pgd-0.1-5-0.03,apgdt-2", protocol="both", batch_size=64)
    assert [row.run for row in together.rows[:: len(together.rows) // 3]] == ["run 0", "run 1", "run 2"]
    for e in range(3):
        alone = evaluate(stack.run(e), test, "fgsm-0.1,pgd-0.1-5-0.03,apgdt-2", protocol="both")
        for row in alone.rows:
            assert abs(together.find(row.attack, row.protocol, f"run {e}").correct - row.correct) <= 1


def test_limit_keep_progress_and_names(trained):
    stack, test = trained
    steps = []
    result = evaluate(
        stack,
        test,
        ["fgsm-0.1"],
        limit=100,
        keep=70,
        batch_size=64,
        names=["a", "b", "c"],
        progress=lambda *step: steps.append(step),
    )
    assert {row.total for row in result.rows} == {100} and [row.run for row in result.rows] == list("aabbcc")
    kept = result.examples
    assert torch.equal(kept.x, test.x[:70]) and torch.equal(kept.y, test.y[:70])
    images = kept.adversarial["fgsm-0.1", "sound"]
    assert images.shape == (3, 70, *test.shape) and (images - kept.x).abs().max() <= 0.1
    for e in range(3):
        assert (stack.run(e)(images[e]).argmax(-1) == kept.predictions["fgsm-0.1", "sound"][e]).float().mean() > 0.98
    assert steps[-1] == (100, 100, "done") and [done for done, *_ in steps] == sorted(done for done, *_ in steps)


def test_tables_and_json(trained):
    stack, test = trained
    one = evaluate(stack.run(0), test, ["fgsm-0.1"], protocol="published", limit=50, per_class=True)
    assert "| fgsm-0.1 | published |" in one.table() and "95 % interval" in one.table() and "note: " in one.table()
    assert "| 9 " in one.table()
    many = evaluate(stack, test, ["fgsm-0.1"], limit=50)
    assert many.table().splitlines()[0].split("|")[1:-1] == ["run  ".center(7), " clean ", " fgsm-0.1 sound "]
    means = many.means({"run 0": "a", "run 1": "a", "run 2": "b"}).splitlines()
    values = [100 * many.find("clean", run=f"run {e}").accuracy for e in (0, 1)]
    assert [part.strip() for part in means[2].split("|")[1:4]] == [
        "a",
        "2",
        f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}",
    ]
    assert means[3].split("|")[2].strip() == "1" and "±" not in means[3]
    content = json.loads(one.to_json())
    assert content["dataset"] == "digits" and content["scores"][1]["protocol"] == "published"
    with pytest.raises(KeyError):
        one.find("fgsm-0.2")


class Masked(nn.Module):
    """A classifier whose gradient is zero nearly everywhere, by rounding its input."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model((2 * x).round() / 2)


def test_gradient_masking_is_flagged(trained):
    stack, test = trained
    honest = evaluate(stack.run(0), test, ["pgd-0.3-10-0.1"], limit=60, check=60)
    assert any("no sign of gradient masking" in note for note in honest.notes)
    masked = evaluate(Masked(stack.run(0)), test, ["fgsm-0.3"], limit=60, check=60)
    assert any("gradient masking?" in note for note in masked.notes)
    assert masked.find("fgsm-0.3").correct == masked.find("clean").correct  # it finds nothing at all


def test_what_does_not_fit(trained):
    stack, test = trained
    model = stack.run(0)
    five = replace(test, class_names=test.class_names[:5])
    cases = [
        ((model, test, "nonsense"), {}, "unknown attack"),
        ((model, test), {"protocol": "honest"}, "protocol must be"),
        ((model, test), {"limit": 0}, "limit must be"),
        ((model, test), {"batch_size": 0}, "batch_size must be"),
        ((model, test), {"defence": "prayer"}, "unknown defence"),
        ((model, test), {"defence": "guided"}, "is trained for a model"),
        ((stack, test), {"names": ["a"]}, "1 names for 3 runs"),
        ((model, five), {}, "labels from 0 to 9, but 5 classes"),
        ((pb.paper_model("pn-4", shape=test.shape, classes=12), test), {}, "12 classes, digits has 10"),
        ((pb.paper_model("pn-4", shape=(1, 4, 4)), test), {}, "inputs must have shape"),
        ((model, Dataset("none", "test", test.x[:0], test.y[:0], test.class_names)), {}, "is empty"),
        ((model, replace(test, domain=(0.0, 1.0))), {}, "outside of the domain"),
    ]
    for positional, named, message in cases:
        with pytest.raises(PolyboundError, match=message):
            evaluate(*positional, **named)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    recipe = pb.Recipe(epochs=2, learning_rate=0.02)
    plans = [Plan("digits", "pn-4", recipe, seed=seed, validation=0.2) for seed in (0, 1)]
    plans.append(Plan("digits", "pn-4", recipe, seed=0, rank=8))
    root = tmp_path_factory.mktemp("runs")
    data = pb.data.load("digits", "train", validation=0.2)
    folders = [run.path for run in train_together(plans[:2], data, root)]
    return folders + [run.path for run in train_together(plans[2:], pb.data.load_digits("train"), root)]


def test_run_folders_remember_their_scores(runs, monkeypatch):
    first = evaluate_runs(runs, "fgsm-0.1", protocol="both")
    assert [row.run for row in first.rows] == [path.name for path in runs for _ in range(3)]
    for path in runs:
        scores = read_scores(path)
        assert {(s.attack, s.protocol) for s in scores} == {
            ("clean", "-"),
            ("fgsm-0.1", "sound"),
            ("fgsm-0.1", "published"),
        }
        alone = evaluate(pb.load(path / "model.safetensors"), pb.data.load_digits("test"), "fgsm-0.1")
        assert abs(alone.find("fgsm-0.1").correct - first.find("fgsm-0.1", "sound", path.name).correct) <= 1
    before = [(path / "evaluation.json").read_bytes() for path in runs]
    # Nothing is measured twice ...
    with monkeypatch.context() as patch:
        patch.setattr("polybound.evaluation.stored.evaluate", None)
        again = evaluate_runs(runs, "fgsm-0.1", protocol="both")
        assert again.rows == first.rows and again.notes == first.notes
        assert evaluate_run(runs[0], "fgsm-0.1").rows == first.rows[:2]
    assert before == [(path / "evaluation.json").read_bytes() for path in runs]
    # ... but another seed, limit, split or defence is another question.
    other = evaluate_runs(runs[:2], "fgsm-0.1", split="validation", limit=70, seed=1, defence="median", per_class=True)
    assert {row.total for row in other.rows} == {70} and other.rows[0].per_class is not None
    assert len(read_scores(runs[0])) == 5 and len(read_scores(runs[2])) == 3


def test_runs_with_the_same_weights_are_measured_once(runs, tmp_path, monkeypatch):
    import polybound.evaluation.stored as stored

    folders = []
    for name, source in (("a", runs[0]), ("b", runs[1]), ("c", runs[0])):
        (tmp_path / name).mkdir()
        for file in ("config.json", "model.safetensors"):
            (tmp_path / name / file).write_bytes((source / file).read_bytes())
        folders.append(tmp_path / name)
    measured = []

    def watched(model, *args, **options):
        measured.append(options["names"])
        return evaluate(model, *args, **options)

    monkeypatch.setattr(stored, "evaluate", watched)
    result = evaluate_runs(folders, "pgd-0.1-5-0.03", certify=[0.01], limit=50)
    assert measured == [["a", "b"]] * 2  # clean, and under attack
    scores = {path.name: {(s.attack, s.protocol): s.correct for s in read_scores(path)} for path in folders}
    assert scores["a"] == scores["c"] != scores["b"] and len(scores["a"]) == 3
    assert [row.run for row in result.rows] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_guided_denoising_is_trained_once_for_each_run(runs, monkeypatch):
    from polybound.defences import GuidedDenoiser

    fitted = []
    monkeypatch.setattr(GuidedDenoiser, "fit", lambda self, model, x, y, domain: fitted.append(len(x)) or self.eval())
    result = evaluate_runs(runs[:2], "fgsm-0.1", protocol="both", limit=64, defence="guided")
    assert len(result.rows) == 6 and fitted == [len(pb.data.load("digits", "train", validation=0.2))] * 2


def test_run_folders_that_cannot_be_evaluated(runs, tmp_path):
    with pytest.raises(PolyboundError, match="no run to evaluate"):
        evaluate_runs([], "fgsm-0.1")
    with pytest.raises(PolyboundError, match="no model to evaluate"):
        evaluate_run(tmp_path, "fgsm-0.1")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("config.json", "model.safetensors"):
        (damaged / name).write_bytes((runs[0] / name).read_bytes())
    for content in ("{}", "[", '[{"attack": "clean", "split": "test", "seed": 0, "limit": null, "defence": null}]'):
        (damaged / "evaluation.json").write_text(content)
        with pytest.raises(FileFormatError, match=r"evaluation\.json: not an evaluation"):
            evaluate_run(damaged, "fgsm-0.1")
    (damaged / "evaluation.json").unlink()
    (damaged / "config.json").write_text("{}")
    with pytest.raises(FileFormatError, match="no 'dataset'"):
        evaluate_run(damaged, "fgsm-0.1")


def copied(run, folder):
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((run / name).read_bytes())
    return folder


def test_command_line(runs, tmp_path):
    from test_cli import polybound

    folder = copied(runs[0], tmp_path / runs[0].name)
    attack = ("evaluate", folder, "--attacks", "fgsm-0.1,pgd-0.2-3-0.1", "--protocol", "both", "--limit", 80)
    result = polybound(*attack, "--picture", tmp_path / "p.png", "--save-examples", tmp_path / "e.npz", "--check", 20)
    assert result.returncode == 0, result.stderr
    assert "fgsm-0.1" in result.stdout and "published" in result.stdout and "gradient masking" in result.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    saved = np.load(tmp_path / "e.npz")
    assert saved["x"].shape == (80, 1, 8, 8) and saved["fgsm-0.1 sound"].shape == (1, 80, 1, 8, 8)
    assert set(saved) == {"x", "y", "runs"} | {
        f"{name} {protocol}" for name in ("fgsm-0.1", "pgd-0.2-3-0.1") for protocol in ("sound", "published")
    }


def command(monkeypatch, capsys, *words):
    """The command line in this process; its output, its errors, its exit code."""
    from polybound.cli import main

    monkeypatch.setattr("sys.argv", ["polybound", "evaluate", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return *capsys.readouterr(), stop.value.code or 0


def test_what_the_command_prints(runs, tmp_path, monkeypatch, capsys):
    folder = copied(runs[0], tmp_path / runs[0].name)
    words = (folder, "--attacks", "fgsm-0.1", "--protocol", "both", "--limit", 80)
    output, _, code = command(monkeypatch, capsys, *words, "--json")
    assert code == 0 and len(json.loads(output)["scores"]) == 3 and (folder / "evaluation.json").exists()
    label = folder.name.rsplit("-s", 1)[0]
    assert f"| {label} " in command(monkeypatch, capsys, *words, "--means")[0]
    assert "attacked images alone" in command(monkeypatch, capsys, *words, "--count", "attacked")[0]
    output, _, code = command(monkeypatch, capsys, *words, "--defence", "gaussian", "--per-class")
    assert code == 0 and "class" in output
    for options, message in [
        (("--attacks", "nonsense"), "unknown attack 'nonsense'"),
        (("--attacks", "fgsm--1"), "not of the form fgsm-EPS"),
        (("--count", "all"), "count must be"),
        (("--protocol", "honest"), "protocol must be"),
        (("--defence", "prayer"), "unknown defence"),
        (("--picture", tmp_path / "nowhere" / "p.png"), "no such folder"),
        (("--split", "train set"), "split"),
    ]:
        output, errors, code = command(monkeypatch, capsys, folder, *options)
        assert code == 2 and output == "" and errors.count("\n") == 1 and message in errors
    assert "no model to evaluate" in command(monkeypatch, capsys, tmp_path)[1]
    monkeypatch.setattr("polybound.cli.evaluate.find_spec", lambda _: None)
    assert "needs matplotlib" in command(monkeypatch, capsys, folder, "--picture", tmp_path / "p.png")[1]


def test_certified_accuracy_is_next_to_the_attacked_one():
    data = pb.data.load_digits("test")
    model = pb.paper_model("pn-4", shape=data.shape, seed=[0, 1], runs=2)
    pb.fit(model, pb.data.load_digits("train"), epochs=6, learning_rate=0.02, method="projection", bound=1.0, start=1)
    result = pb.evaluate(model, data, ["pgd-0.1-20-0.01"], limit=60, certify=[0.02, 0.1], names=["a", "b"])
    for run in ("a", "b"):
        certified, attacked = result.find("certified-0.1", run=run), result.find("pgd-0.1-20-0.01", run=run)
        clean = result.find("clean", run=run)
        assert certified.accuracy <= attacked.accuracy <= clean.accuracy
        assert 0 < result.find("certified-0.02", run=run).accuracy <= clean.accuracy
        alone = pb.certified_accuracy(model.run(0 if run == "a" else 1), data, 0.1, images=60)
        assert certified.accuracy == pytest.approx(alone)
    with pytest.raises(PolyboundError, match="no polynomial network"):
        pb.evaluate(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), data, [], certify=[0.1], limit=5)


def test_certified_scores_of_a_run_are_kept(tmp_path):
    from polybound.experiments import Plan, train_together

    recipe = pb.Recipe(epochs=3, learning_rate=0.02)
    (run,) = train_together([Plan("digits", "pn-4", recipe)], pb.data.load_digits("train"), tmp_path)
    options = {"limit": 20, "certify": [0.05]}
    first = pb.evaluate_run(run.path, ["fgsm-0.1"], **options)
    before = (run.path / "evaluation.json").stat().st_mtime_ns
    again = pb.evaluate_run(run.path, ["fgsm-0.1"], **options)
    assert again.rows == first.rows and (run.path / "evaluation.json").stat().st_mtime_ns == before
    assert [row.attack for row in first.rows] == ["clean", "fgsm-0.1", "certified-0.05"]
    with pytest.raises(PolyboundError, match="denoiser"):
        pb.evaluate_run(run.path, ["fgsm-0.1"], defence="median", **options)
