"""Evaluation: counts, intervals, protocols, stacks, batches, certified scores, run folders that remember."""

import shutil
import time
from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import polybound as pb
from helpers.errors import refuses
from polybound.attacks import FGSM, PGD
from polybound.data import Dataset
from polybound.evaluation import EvaluationSpec, Table, certified_name, evaluate, read_table, score_of, wilson
from polybound.evaluation.evaluate import row_facts
from polybound.runs import DataSpec, ModelSpec, Run, Spec, evaluate_run, evaluate_runs, train_runs


@given(st.integers(1, 10**5).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_wilsons_interval_solve_its_equation(pair):
    correct, total = pair
    low, high = wilson(correct, total)
    z = stats.norm.ppf(0.975)
    for end in (low, high):
        assert (correct / total - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / total, abs=1e-12)
    assert 0 <= low <= correct / total <= high <= 1


@pytest.mark.parametrize("wrong", [(0, 0), (-1, 3), (4, 3)])
def test_wilson_refuses(wrong):
    refuses("", wilson, *wrong)


@pytest.fixture(scope="module")
def trained():
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    models = [pb.paper_model("pn-4", shape=train.shape, seed=seed) for seed in (0, 1, 2)]
    stack = pb.stack(models)
    pb.fit(stack, train, "paper", epochs=10, learning_rate=0.02, milestones=())
    return stack, test


def test_scores_are_counts_of_images_right_before_and_after(trained):
    stack, test = trained
    model = stack.run(0)
    result = evaluate(model, test, ["fgsm-0.1", PGD(0.2, 5)], protocol="both", seed=3)
    clean = model(test.x).argmax(-1) == test.y
    assert result.find("clean").correct == int(clean.sum())
    assert [row["protocol"] for row in result.counted("robust")] == ["-", "sound", "published", "sound", "published"]
    assert len(result.scores) == 9 and len(result.counted("attacked")) == 5
    for attack in (FGSM(0.1), PGD(0.2, 5)):
        for protocol in ("sound", "published"):
            found = attack(model, test.x, test.y, domain=test.domain, protocol=protocol, seed=3)
            both = clean & (model(found).argmax(-1) == test.y)
            score = result.find(attack.name, protocol)
            assert abs(score.correct - int(both.sum())) <= 1  # summation order may decide an image at the border
            plain = result.find(attack.name, protocol, counted="attacked")
            assert abs(plain.correct - int((model(found).argmax(-1) == test.y).sum())) <= 1
            assert plain.correct >= score.correct and plain.interval[0] <= plain.accuracy <= plain.interval[1]
            assert score.total == score.available == len(test) and score.attack_seed == 3
            assert score.accuracy == score.correct / score.total
            assert score.interval[0] < score.accuracy < score.interval[1]
            assert sum(a for a, _ in score.classes) == score.correct
            assert [b for _, b in score.classes] == torch.bincount(test.y).tolist()
            assert (score.dataset, score.digest, score.split, score.held_out) == ("digits", test.digest, "test", 0.0)
            assert score.weights == result.find("clean").weights and score.defence == ""
    assert any("clipped to [0, 1]" in note for note in result.notes)
    assert not evaluate(model, test, ["fgsm-0.1"]).notes


def test_a_stack_scores_as_its_members_do_in_batches_of_any_size(trained):
    stack, test = trained
    together = evaluate(stack, test, "fgsm-0.1,pgd-0.1-5-0.03,apgdt-2", protocol="both", batch_size=64)
    assert together.scores.values("run") == ["run 0", "run 1", "run 2"]
    for e in range(3):
        alone = evaluate(stack.run(e), test, "fgsm-0.1,pgd-0.1-5-0.03,apgdt-2", protocol="both")
        for score in map(score_of, alone.scores):
            counted = "robust" if score.counted == "-" else score.counted
            found = together.find(score.attack, score.protocol, f"run {e}", counted)
            assert abs(found.correct - score.correct) <= 1
            assert replace(found, correct=0, per_class="") == replace(score, correct=0, per_class="")


def test_limit_keep_progress_and_names(trained):
    stack, test = trained
    steps = []
    asked = {"limit": 100, "keep": 70, "batch_size": 64, "names": ["a", "b", "c"]}
    result = evaluate(stack, test, ["fgsm-0.1"], **asked, progress=lambda *step: steps.append(step))
    assert result.scores.values("total") == [100] and result.scores.values("available") == [len(test)]
    assert [row["run"] for row in result.counted("robust")] == list("aabbcc")
    kept = result.examples
    assert torch.equal(kept.x, test.x[:70]) and torch.equal(kept.y, test.y[:70])
    images = kept.adversarial["fgsm-0.1", "sound"]
    assert images.shape == (3, 70, *test.shape) and (images - kept.x).abs().max() <= 0.1
    for e in range(3):
        assert (stack.run(e)(images[e]).argmax(-1) == kept.predictions["fgsm-0.1", "sound"][e]).float().mean() > 0.98
    assert steps[-1] == (100, 100, "done") and [done for done, *_ in steps] == sorted(done for done, *_ in steps)


def test_each_attack_is_made_once_for_scores_notes_and_examples(trained, monkeypatch):
    stack, test = trained
    attack, calls = FGSM.__call__, []
    monkeypatch.setattr(FGSM, "__call__", lambda self, *a, **o: calls.append(1) or attack(self, *a, **o))
    spec = EvaluationSpec("fgsm-0.1", limit=64, keep=10, check=32)
    result = evaluate(stack, test, spec)
    assert len(calls) == 1 and result.examples.adversarial["fgsm-0.1", "sound"].shape[:2] == (3, 10)
    assert any("gradient masking" in note for note in result.notes)
    again = evaluate(stack, test, "fgsm-0.1", limit=64)
    assert again.scores.rows == result.scores.rows == evaluate(stack, test, spec, keep=0, check=0).scores.rows


def test_tables_and_json(trained):
    stack, test = trained
    one = evaluate(stack.run(0), test, ["fgsm-0.1"], protocol="published", limit=50)
    score, entry = one.find("fgsm-0.1", "published"), row_facts(one.scores.rows[1])
    low, high = (f"{100 * end:.2f}" for end in score.interval)
    wanted = f"fgsm-0.1 published {2 * score.correct:.2f} % {low} to {high} {score.correct}/50"
    assert wanted in " ".join(str(one).replace("|", " ").split())
    assert entry["accuracy"] == score.correct / 50 and entry["low"] <= entry["accuracy"] <= entry["high"]
    with pytest.raises(KeyError):
        one.find("fgsm-0.2")
    refuses("count must be", one.counted, "clean")


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
        ((model, test), {"defence": "guided"}, "guided denoising is trained"),
        ((stack, test), {"names": ["a"]}, "1 names for 3 runs"),
        ((model, five), {}, "labels from 0 to 9, but 5 classes"),
        ((pb.paper_model("pn-4", shape=test.shape, classes=12), test), {}, "12 classes, digits has 10"),
        ((pb.paper_model("pn-4", shape=(1, 4, 4)), test), {}, "inputs must have shape"),
        ((model, Dataset("none", "test", test.x[:0], test.y[:0], test.class_names)), {}, "is empty"),
        ((model, replace(test, domain=(0.0, 1.0))), {}, "outside of the domain"),
    ]
    for positional, named, message in cases:
        refuses(message, evaluate, *positional, **named)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    recipe = pb.Recipe.from_options(epochs=2, learning_rate=0.02)
    specs = [Spec(DataSpec.of("digits", held_out=0.2), recipe=recipe, seed=seed) for seed in (0, 1)]
    other = Spec(DataSpec.of("digits"), ModelSpec("pn-4", 8), recipe)
    root = tmp_path_factory.mktemp("runs")
    return [run.path for run in [*train_runs(specs, root), *train_runs([other], root)]]


def copy_of(run, folder, scores=False):
    shutil.copytree(run, folder)
    if not scores:
        (folder / "scores.csv").unlink(missing_ok=True)
    return folder


def address(path):
    return Run(path).spec().address


def test_run_folders_remember_their_scores(runs, tmp_path, monkeypatch):
    runs = [copy_of(path, tmp_path / path.name) for path in runs]
    first = evaluate_runs(runs, "fgsm-0.1", protocol="both")
    assert [row["run"] for row in first.counted("robust")] == [address(path) for path in runs for _ in range(3)]
    for path in runs:
        scores = Run(path).scores()
        assert {(s.attack, s.protocol, s.counted) for s in scores} == {
            ("clean", "-", "-"),
            *(("fgsm-0.1", protocol, way) for protocol in ("sound", "published") for way in ("robust", "attacked")),
        }
        alone = evaluate(pb.load(path / "model.safetensors"), pb.data.load_digits("test"), "fgsm-0.1")
        assert abs(alone.find("fgsm-0.1").correct - first.find("fgsm-0.1", "sound", address(path)).correct) <= 1
        spec = Run(path).spec()
        for row in Run(path).table():
            assert spec.columns().items() <= row.items() and (row["run"], row["epoch"]) == (spec.address, 2)
    before = [(path / "scores.csv").read_bytes() for path in runs]
    # Nothing is measured twice ...
    with monkeypatch.context() as patch:
        patch.setitem(evaluate.__globals__, "Predictions", None)
        again = evaluate_runs(runs, "fgsm-0.1", protocol="both")
        assert again.scores.rows == first.scores.rows and again.notes == first.notes
        assert evaluate_run(runs[0], "fgsm-0.1").scores.rows == first.scores.rows[:3]
        with pytest.raises(TypeError):
            evaluate_run(runs[0], "fgsm-0.1", limit=100)
    assert before == [(path / "scores.csv").read_bytes() for path in runs]
    # ... but another seed, limit, split or defence is another question.
    other = evaluate_runs(runs[:2], "fgsm-0.1", split="validation", limit=70, seed=1, defence="median")
    assert other.scores.values("total") == [70] and score_of(other.scores.rows[0]).classes
    assert len(Run(runs[0]).scores()) == 8 and len(Run(runs[2]).scores()) == 5


@pytest.mark.parametrize(
    "change",
    [{"limit": 7}, {"limit": 15}, {"seed": 1}, {"split": "validation"}, {"split": "train"}, {"defence": "median"}],
    ids=str,
)
def test_every_question_is_a_row_of_its_own(runs, tmp_path, change):
    here = copy_of(runs[0], tmp_path / "here")
    base = {"limit": 30}
    first = evaluate_run(here, "fgsm-0.1", **base)
    second = evaluate_run(here, "fgsm-0.1", **base | change)
    there = copy_of(runs[0], tmp_path / "there")
    again = evaluate_run(there, "fgsm-0.1", **base | change), evaluate_run(there, "fgsm-0.1", **base)
    assert (second.scores.rows, first.scores.rows) == (again[0].scores.rows, again[1].scores.rows)
    # A clean accuracy does not depend on the seed of an attack; everything else is there twice.
    assert len(Run(here).scores()) == (5 if "seed" in change else 6)


def test_runs_with_the_same_weights_are_measured_once(runs, tmp_path, monkeypatch):
    folders = [copy_of(runs[i], tmp_path / name) for name, i in (("a", 0), ("b", 1), ("c", 0))]
    stacks, certified = [], []
    attack, certify = PGD.__call__, pb.certify
    watched = lambda self, model, *a, **o: stacks.append(model.runs) or attack(self, model, *a, **o)  # noqa: E731
    monkeypatch.setattr(PGD, "__call__", watched)
    monkeypatch.setattr("polybound.evaluation.measure.certify", lambda *a, **o: certified.append(1) or certify(*a, **o))
    result = evaluate_runs(folders, "pgd-0.1-5-0.03", certify=[0.01], limit=50)
    assert stacks == [2] and len(certified) == 2
    scores = {p.name: {(s.attack, s.protocol, s.counted): s.correct for s in Run(p).scores()} for p in folders}
    assert scores["a"] == scores["c"] != scores["b"] and len(scores["a"]) == 4
    assert [row["run"] for row in result.counted("robust")] == [address(path) for path in folders for _ in range(3)]


def test_runs_that_cannot_be_evaluated_are_refused_alone_and_skipped_among_others(runs, tmp_path):
    refuses("no run to evaluate", evaluate_runs, [], "fgsm-0.1")
    refuses("split", evaluate_run, runs[2], "fgsm-0.1", split="validation")
    good, bad, failed, young = (copy_of(runs[1], tmp_path / name) for name in ("good", "bad", "failed", "young"))
    (bad / "model.safetensors").write_bytes(b"half a mod")
    Run(failed).write_history([{"epoch": 1, "failure": "the loss became nan"}])
    (young / "model.safetensors").unlink()
    reasons = {
        bad: "not a whole safetensors file",
        failed: "the loss became nan",
        young: "not trained yet",
        tmp_path / "mistyped": "no run folder",
    }
    for path, why in reasons.items():
        refuses(why, evaluate_run, path, "fgsm-0.1")
    result = evaluate_runs([*reasons, good], "fgsm-0.1", limit=20)
    assert result.scores.values("run") == [address(good)] and len(result.scores) == 3
    assert list(result.skipped) == list(map(str, reasons))
    assert all(why in result.skipped[str(path)] for path, why in reasons.items())


def test_model_files_and_runs_of_several_data_sets(runs, tmp_path):
    file = tmp_path / "m.safetensors"
    pb.load(runs[0] / "model.safetensors").save(file)
    refuses("no data set: pass --dataset NAME", evaluate_runs, [file], "fgsm-0.1")
    folder = copy_of(runs[2], tmp_path / "run")
    result = evaluate_runs([file, folder], "fgsm-0.1", dataset="digits", limit=30)
    assert result.scores.values("run") == [str(file), address(folder)]
    direct = evaluate(pb.load(file), pb.data.load_digits("test"), "fgsm-0.1", limit=30)
    assert [score_of(row) for row in result.scores.where(run=str(file))] == [score_of(row) for row in direct.scores]


def test_certified_accuracy_is_next_to_the_attacked_one(runs, tmp_path):
    data = pb.data.load_digits("test")
    folder, asked = copy_of(runs[0], tmp_path / "run"), {"limit": 40, "certify": [0.02, 0.1, "0.2:norm=2"]}
    result = evaluate_run(folder, ["pgd-0.1-20-0.01"], **asked)
    certified, attacked, clean = map(result.find, ("certified-0.1", "pgd-0.1-20-0.01", "clean"))
    assert certified.accuracy <= attacked.accuracy <= clean.accuracy
    assert 0 < result.find("certified-0.02").accuracy <= clean.accuracy
    assert certified.accuracy == pytest.approx(pb.certified_accuracy(Run(folder).model(), data, 0.1, images=40))
    found = pb.certify(Run(folder).model(), data.x[:40], data.y[:40], 0.2, norm="2", domain=data.domain, nodes=256)
    assert result.find("certified-0.2:norm=2").correct == found.count("verified")
    before = (folder / "scores.csv").stat().st_mtime_ns
    again = evaluate_run(folder, ["pgd-0.1-20-0.01"], **asked)
    assert again.scores.rows == result.scores.rows and (folder / "scores.csv").stat().st_mtime_ns == before
    refuses("denoiser", evaluate_run, folder, [], defence="median", **asked)
    refuses("0.5:norm=2", evaluate_run, folder, [], certify=["0.2:norm=1"])
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert pb.evaluate(linear, data, [], certify=[0.0], limit=5).find("certified-0").accuracy <= 1
    refuses("relu in 2", pb.evaluate, torch.nn.Sequential(*linear, torch.nn.ReLU()), data, [], certify=[0.1], limit=5)


@given(st.floats(0, 10), st.floats(0, 10))
def test_radii_have_one_name_each(one, other):
    assert (certified_name(one) == certified_name(other)) == (one == other)
    assert certified_name("0.10:seconds=1.0") == "certified-0.1:seconds=1"


@pytest.mark.parametrize(
    "wrong", ["x", "0.1:nodes=x", "0.1:nodes=-1", "0.1:seconds=nan", "0.1:cells=3", "0.1:nodes=3:nodes=4", "-1"]
)
def test_radii_that_are_none(wrong):
    refuses("certify takes a radius", certified_name, wrong)


def test_models_after_earlier_epochs_are_measured_as_such(tmp_path):
    spec = Spec(DataSpec.of("digits"), recipe=pb.Recipe.from_options(epochs=3, learning_rate=0.02))
    (run,) = train_runs([spec], str(tmp_path), epochs=(1,))
    last, early = pb.evaluate_run(run.path, "fgsm-0.1"), pb.evaluate_run(run.path, "fgsm-0.1", epoch=1)
    assert last.scores.values("epoch") == [3] and early.scores.values("epoch") == [1]
    assert early.find("clean").correct == round(360 * pb.accuracy(run.model(1), pb.data.load_digits("test")).item())
    assert run.table().values("epoch") == [3, 1] and len(run.table()) == 6
    refuses("not trained yet", pb.evaluate_run, run.path, "fgsm-0.1", epoch=2)


@pytest.fixture(scope="module")
def hard():
    """A network and images of which some are verified by branch and bound alone."""
    model = pb.CCP(features=4, rank=16, classes=3, degree=8, seed=0, dtype=torch.float64)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1.5)
    x = 2 * torch.rand(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    return model, Dataset("points", "test", x, model(x).argmax(1), ("a", "b", "c"))


def verified(hard, radius):
    (score,) = [row for row in evaluate(*hard, [], certify=[radius]).scores if row["counted"] == "verified"]
    return score["attack"], score["correct"]


def test_a_slow_machine_certifies_as_many_images(hard, monkeypatch):
    quick, hours = verified(hard, 0.2), count()
    monkeypatch.setattr(time, "perf_counter", lambda: 3600.0 * next(hours))
    assert verified(hard, 0.2) == quick
    assert quick[0] == "certified-0.2:nodes=256" and quick[1] > verified(hard, "0.2:nodes=0")[1]
    assert verified(hard, "0.2:seconds=60") == ("certified-0.2:seconds=60", verified(hard, "0.2:nodes=0")[1])


def test_a_larger_budget_never_certifies_less(hard):
    found = [verified(hard, f"0.2:nodes={nodes}")[1] for nodes in (0, 1, 8, 64, 512)]
    assert found == sorted(found) and found[0] < found[-1]
    assert verified(hard, "0.2:nodes=8:seconds=1e6") == ("certified-0.2:nodes=8:seconds=1000000", found[2])


def test_scores_from_before_were_a_matter_of_one_second(hard):
    row = dict(evaluate(*hard, [], certify=[0.2]).scores.rows[-1])
    old = Table([{**row, "attack": "certified-0.2"}, {**row, "attack": "certified-0.2:norm=2"}, row])
    (first, second, third) = read_table(old.to_csv())
    assert first["attack"] == "certified-0.2:seconds=1" and second["attack"] == "certified-0.2:norm=2:seconds=1"
    assert third["attack"] == "certified-0.2:nodes=256"
    assert read_table(Table([first, second, third]).to_csv()).rows == [first, second, third]
