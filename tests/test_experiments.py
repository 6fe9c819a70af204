"""Every table and figure of the paper end to end, on tiny data sets in the official formats."""

# ruff: noqa: F811 (a fixture is named again as an argument)

import json
import re
from dataclasses import replace
from importlib import import_module

import pytest
from polybound.report.shapes import Figure, Table

from polybound.data.catalogue import SOURCES
from polybound.errors import PolyboundError
from polybound.experiments.compare import DATASETS, compare, published, significance
from polybound.experiments.experiment import BOUNDS, Experiment, experiment_names, find_experiment
from polybound.experiments.results import Row, average, collect, collect_folder, read_csv, write_csv
from polybound.experiments.search import search_job
from polybound.experiments.sweep import estimate, jobs_of, sweep
from polybound.report.build import build_report
from test_data_helpers import (
    nsynth_members,
    put_mnist,
    root,  # noqa: F401
    tarred,
    tiny_cifar,
    tiny_emnist,
    tiny_mnist,
    tiny_nsynth,
    write,
)

NAMES = [
    *(f"table-{number}" for number in range(1, 12)),
    *(f"figure-{number}" for number in range(2, 15)),
    *("certified-tradeoff", "honest-table", "tradeoff"),
]


@pytest.fixture
def tiny_data(root, monkeypatch):
    """All data sets of the paper, a few images each."""
    source, contents, _ = tiny_mnist(monkeypatch, size=(8, 8))
    put_mnist(root, contents)
    for name in ("fashion-mnist", "kmnist", "mnist"):
        monkeypatch.setitem(SOURCES, name, replace(source, name=name))
    members = {}
    for part in ("letters", "byclass"):
        content, _, _ = tiny_emnist(monkeypatch, part, digest=False)
        members[part] = content
        write(root / f"emnist-{part}" / "gzip.zip", content)
    binary, _, _ = tiny_cifar(monkeypatch)
    for name, content in binary.items():
        write(root / "cifar10" / "cifar-10-batches-bin" / name, content)
    archives = {"test": tarred(nsynth_members("test"))}
    tiny_nsynth(monkeypatch, archives)
    write(root / "nsynth" / "nsynth-test.jsonwav.tar.gz", archives["test"])
    return root


def tiny(name):
    """An experiment with two epochs, one seed, three bounds and as few points of a search as there can be."""
    experiment = find_experiment(name).changed(seeds=1, budget=0.02, limit=6)
    if experiment.search:
        experiment = replace(experiment, search=dict(experiment.search) | {"points": 4})
    return experiment if experiment.bounds != BOUNDS else experiment.changed(bounds=BOUNDS[4::4])


def test_all_are_there():
    assert sorted(experiment_names()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_and_has_the_papers_layout(tiny_data, tmp_path, name):
    experiment, folder = tiny(name), tmp_path / "runs"
    sweep([experiment], folder, data_dir=tiny_data, workers=1)
    assert all(job.done(folder) for job in jobs_of(experiment, folder))
    (made,) = build_report([experiment], folder, tmp_path / "report.html")
    parts = {kind: [part for part in made.parts if isinstance(part, kind)] for kind in (Table, Figure)}
    if experiment.layout in ("table", "chosen"):
        check_table(experiment, parts[Table][0])
        assert {file.suffix for file in (tmp_path / "report").iterdir()} == {".md", ".tex", ".csv"}
    else:
        check_figure(experiment, parts[Figure][0])
        assert {".png", ".svg"} <= {file.suffix for file in (tmp_path / "report").iterdir()}
    if experiment.kind in ("accuracy", "search"):
        assert any("2 of 100 epochs" in note for note in made.notes)
    if experiment.kind == "search":
        assert "searched" in {
            row.projection for row in read_csv((tmp_path / "report" / f"{name}-scores.csv").read_text())
        }
    page = (tmp_path / "report.html").read_text()
    assert "@@" not in page and made.title in page.replace("&#x27;", "'")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)  # nothing to be fetched


def check_table(experiment, table):
    groups = [heading for _, heading in table.groups]
    assert len(groups) == len(experiment.datasets) * len(experiment.models)
    assert groups[0].startswith(DATASETS[experiment.datasets[0]])
    if experiment.layout == "chosen":
        assert [row[0] for row in table.rows] == ["no projection", "projection", "Jacobian", "L2"]
        assert len(table.header) == 3 + len(experiment.attacks)
    elif experiment.published:
        values = [value for value in published() if value.table == experiment.published]
        methods = list(dict.fromkeys(value.method for value in values))
        assert len(table.header) == 2 + len(methods)
        shown = sum(row[1] == "paper" for row in table.rows)
        assert shown == len({(v.dataset, v.model, v.attack) for v in values})
        # Every cell that the paper has a value for has one of ours in both protocols.
        for number, row in enumerate(table.rows):
            if row[1] == "paper":
                below = table.rows[number + 1]
                assert [bool(cell) for cell in below[2:]] == [bool(cell) for cell in row[2:]], (row, below)
    assert all(cell for row in table.rows for cell in row[:1])


def check_figure(experiment, figure):
    if experiment.kind == "samples":
        assert [row.title for row in figure.images] == [DATASETS[name] for name in experiment.datasets]
        return
    assert figure.panels and all(panel.lines for panel in figure.panels)
    assert all(len(line.x) == len(line.y) > 0 for panel in figure.panels for line in panel.lines)
    if experiment.kind == "growth":
        assert [panel.x_label for panel in figure.panels] == ["bound", "epoch"] * 2
        assert figure.panels[1].lines[0].x == [0, 1, 2]
    elif experiment.kind == "initial":
        assert [panel.x_label for panel in figure.panels] == ["hidden rank", "degree"]
    elif experiment.layout == "curves":
        over = {"bound": sorted(experiment.bounds), "rank": [4, 8, 16, 32, 64], "steps": [1, 2, 5, 10, 20, 40]}[
            experiment.x
        ]
        assert all(list(line.x) == over for panel in figure.panels for line in panel.lines)
        assert all(panel.log_x == (experiment.x != "steps") for panel in figure.panels)
        protocols = 2 if experiment.attacks else 1
        per_set = 1 if experiment.lines == "model" else len(experiment.models)
        assert len(figure.panels) == protocols * len(experiment.datasets) * per_set
    else:
        assert all(len(panel.lines) == 3 + len(experiment.methods) for panel in figure.panels)
        if "certified" in experiment.methods:  # trained for each radius that is certified
            assert {len(panel.lines[-1].x) for panel in figure.panels} == {len(experiment.eps)}


@pytest.fixture
def small():
    return Experiment(
        "small",
        "Small",
        datasets=("digits",),
        methods=("none", "projection"),
        bounds=(100.0, 1.0, 0.5),
        attacks=("fgsm-0.1",),
        seeds=2,
        budget=0.05,
        limit=50,
    )


def test_a_sweep_on_workers_is_a_sweep_alone(small, tmp_path):
    guess = estimate([small], tmp_path / "alone")
    assert (guess.jobs, guess.runs, guess.done) == (3, 8, 0) and guess.seconds > 0
    sweep([small], tmp_path / "alone", workers=1)
    seen = []
    sweep([small], tmp_path / "two", workers=2, on_progress=lambda *state: seen.append(state))
    assert seen[-1][:2] == (3, 3)
    assert collect(small, tmp_path / "two") == collect(small, tmp_path / "alone")
    assert len(collect(small, tmp_path / "alone")) == 8 * 3
    assert estimate([small], tmp_path / "two").seconds == 0


def test_an_estimate_counts_a_run_once(small, tmp_path, monkeypatch):
    trained = []

    def cost(plans, _data_dir):
        trained.append(plans)
        return 1.0

    monkeypatch.setattr(import_module("polybound.experiments.sweep"), "_cost", cost)
    other = replace(small, name="other", attacks=("pgd-0.1-1-0.1",))
    guess = estimate([small, other], tmp_path)
    assert (guess.jobs, guess.runs) == (6, 8)
    assert guess.seconds == 3.0  # the two seeds without a bound as one stack, and the bounds of each seed
    assert sorted(len(plans) for plans in trained) == [2, 3]  # and stacks of one kind are measured once
    wider = replace(other, bounds=(100.0, 1.0, 0.5, 0.25))
    trained.clear()
    assert estimate([small, wider], tmp_path).runs == 10
    assert [len(plans) for plans in trained] == [2, 3, 1]  # of the wider one, the bound that the first has not


def test_experiments_that_share_runs_do_not_see_each_others_scores(small, tmp_path):
    attacks = ("pgd-0.1-1-0.1", "pgd-0.1-2-0.05")
    steps = replace(
        small, name="steps", layout="curves", methods=("projection",), attacks=attacks, x="steps", lines="model"
    )
    sweep([small, steps], tmp_path, workers=1)
    assert {row.attack for row in collect(small, tmp_path)} == {"clean", "fgsm-0.1"}
    assert {row.attack for row in collect(steps, tmp_path)} == {"clean", *attacks}
    (made,) = build_report([steps], tmp_path, tmp_path / "report.html")
    (figure,) = made.parts
    assert [line.x for panel in figure.panels for line in panel.lines] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_data_set_does_not_keep_the_others_back(small, tmp_path, workers):
    both = replace(small, datasets=(f"folder:{tmp_path / 'nowhere'}", "digits"), seeds=1, methods=("none",))
    with pytest.raises(PolyboundError, match="nowhere"):
        sweep([both], tmp_path / "runs", workers=workers)
    assert {row.dataset for row in collect(both, tmp_path / "runs")} == {"digits"}


def test_scores_survive_a_csv_file(small, tmp_path):
    sweep([small], tmp_path, workers=1)
    rows = collect(small, tmp_path)
    again = read_csv(write_csv(rows))
    assert [replace(row, accuracy=0) for row in again] == [replace(row, accuracy=0) for row in rows]
    assert [row.accuracy for row in again] == pytest.approx([row.accuracy for row in rows], abs=1e-4)
    assert sorted(collect_folder(tmp_path), key=str) == sorted(rows, key=str)
    (clean,) = average(rows, method="none", attack="clean").values()
    by_hand = [row.accuracy for row in rows if row.method == "none" and row.attack == "clean"]
    assert clean.seeds == 2 and clean.mean == pytest.approx(sum(by_hand) / 2)


def rows_like_the_paper(shift=0.0, epochs=100, spread=1.0):
    """Scores as if a reproduction had been off by so many points, and its seeds by so many apart."""
    return [
        Row(
            dataset="fashion-mnist", model="pn-4", rank=16, method=method, projection="single" if bound else "",
            bound=bound, variant="", seed=seed, epochs=epochs, epoch=epochs, samples=0, validation=0.0, split="test", attack=attack,
            protocol=protocol, defence="", correct=1, total=10000, limit=0, accuracy=value + shift + spread * seed, run="r",
        )
        for method, bound, attack, protocol, value in (
            ("none", None, "clean", "-", 87.28),
            ("none", None, "fgsm-0.1", "published", 12.92),
            ("projection", 2.0, "fgsm-0.1", "published", 20.0),
            ("projection", 1.0, "fgsm-0.1", "published", 46.43),
            ("projection", 1.0, "fgsm-0.1", "sound", 60.0),
        )
        for seed in (-1, 0, 1)
    ]  # fmt: skip


def test_comparison_with_the_paper():
    table = "tab:regularization_compare_fashionmnist_emnist"
    found = {(c.paper.method, c.paper.attack): c for c in compare(rows_like_the_paper(), table=table)}
    assert set(found) == {("none", "clean"), ("none", "fgsm-0.1"), ("projection", "fgsm-0.1")}
    best = found["projection", "fgsm-0.1"]
    assert (
        best.verdict == "within" and best.bounds == 2 and best.ours.bound == 1.0 and best.difference == pytest.approx(0)
    )
    assert best.ours.std == pytest.approx(1.0) and best.ours.seeds == 3
    shifted = {(c.paper.method, c.paper.attack): c for c in compare(rows_like_the_paper(4.0), table=table)}
    assert shifted["none", "clean"].verdict == "off"
    assert shifted["none", "clean"].deviations == pytest.approx(4.0 / (0.18**2 + 1.0) ** 0.5)  # ours have 1 point
    assert shifted["none", "fgsm-0.1"].verdict == "within"  # 2 published standard deviations are 5.48 points
    assert {c.verdict for c in compare(rows_like_the_paper(epochs=10), table=table)} == {"reduced"}
    (sound,) = [c for c in compare(rows_like_the_paper(), "sound", table) if c.paper.attack != "clean"]
    assert sound.protocol == "sound" and sound.ours.mean == pytest.approx(60.0)


def test_a_bound_that_fewer_seeds_have_is_not_the_best():
    rows = rows_like_the_paper()
    lucky = replace(next(row for row in rows if row.bound == 2.0), bound=0.5, accuracy=99.0)
    found = {c.paper.attack: c for c in compare([*rows, lucky]) if c.paper.method == "projection"}
    assert found["fgsm-0.1"].ours.bound == 1.0 and found["fgsm-0.1"].bounds == 2


def test_variants_of_a_method_are_compared_one_by_one_and_other_ranks_left_out():
    table = "tab:regularization_compare_fashionmnist_emnist"
    plain = [row for row in rows_like_the_paper() if row.attack == "clean"]
    penalised = [
        replace(row, method="l2", variant=f"penalty {w}", accuracy=a) for row in plain for w, a in ((1, 80), (2, 87))
    ]
    wide = [replace(row, rank=64, accuracy=50.0) for row in plain]
    deep = [replace(row, model="pn-10", rank=rank, accuracy=50.0 + rank / 4) for row in plain for rank in (16, 64, 128)]
    found = {(c.paper.method, c.variant): c for c in compare([*plain, *penalised, *wide], table=table)}
    (tenth,) = compare(deep, table=table)
    assert tenth.ours.mean == pytest.approx(66.0)  # the rank that the experiments have
    assert {key: c.verdict for key, c in found.items()} == {
        ("none", ""): "within",
        ("l2", "penalty 1"): "off",
        ("l2", "penalty 2"): "within",
    }
    assert found["none", ""].ours.mean == pytest.approx(87.28)


def test_each_table_has_its_own_rank():
    rows = [
        replace(row, model="pn-10", rank=rank, method="none+at", accuracy=60.0 + rank / 16)
        for row in rows_like_the_paper() for rank in (16, 64) if row.method == "none"
    ]  # fmt: skip
    (found,) = compare(rows)
    assert found.paper.table == find_experiment("table-3").published
    assert find_experiment("table-3").ranks == (16,) and found.ours.mean == pytest.approx(61.0)


def test_significance_is_paired_by_seed():
    rows = rows_like_the_paper()
    ours = [row for row in rows if row.bound == 1.0 and row.protocol == "published"]
    theirs = [row for row in rows if row.method == "none" and row.attack == "fgsm-0.1"]
    assert significance(ours, theirs).difference == pytest.approx(33.51)
    spread = [replace(row, accuracy=row.accuracy + 0.1 * row.seed) for row in theirs]
    result = significance(ours, spread)
    assert result.seeds == 3 and result.p < 1e-4
    from scipy.stats import ttest_rel

    assert result.p == pytest.approx(ttest_rel([r.accuracy for r in ours], [r.accuracy for r in spread]).pvalue)


def test_bad_experiments_are_refused(tmp_path):
    with pytest.raises(PolyboundError, match="no experiment is called 'table-12'"):
        find_experiment("table-12")
    with pytest.raises(PolyboundError, match="budget"):
        find_experiment("table-1").changed(budget=0.0)
    with pytest.raises(PolyboundError, match="no projection called 'nuclear'"):
        find_experiment("tradeoff").changed(projections=("spectral", "nuclear"))
    file = tmp_path / "mine.toml"
    file.write_text("colours = 3\n")
    with pytest.raises(PolyboundError, match="colours"):
        find_experiment(str(file))
    file.write_text('datasets = ["digits"]\n')
    assert find_experiment(str(file)).datasets == ("digits",)
    with pytest.raises(PolyboundError, match="engine"):
        sweep([find_experiment(str(file))], tmp_path, engine="slurm", workers=2)


def test_the_budget_scales_the_schedule():
    recipe = find_experiment("table-1").changed(budget=0.1).recipe_for("projection")
    assert (recipe.epochs, recipe.start, recipe.milestones) == (10, 5, (2, 8))
    adversarial = find_experiment("table-3").changed(budget=0.1, recipe={"adversary_start": 20})
    assert adversarial.recipe_for("none+at").adversary_start == 2
    assert json.dumps(recipe.as_dict())


def test_a_search_has_as_many_different_points_as_it_says_and_its_best_have_several_seeds(tmp_path):
    """Two values a matrix: the estimator proposes points again long before all 32 were seen."""
    named = find_experiment("table-10")
    wanted = {"dataset": "digits", "values": [1.0, 2.0], "points": 30, "finalists": 2, "seeds": 2}
    small = replace(named, budget=0.02, samples=200, limit=20, search=dict(named.search) | wanted)
    search_job(small).carry_out(tmp_path, None)
    result = search_job(small).result(tmp_path)
    trials = result["trials"]
    assert len({tuple(trial["bounds"].values()) for trial in trials}) == len(trials) == 30
    whole = [trial["full"] for trial in trials if trial["full"] is not None]
    finalists = [trial for trial in trials if trial["mean"] is not None]
    assert sorted(trial["full"] for trial in finalists) == sorted(whole)[-2:]
    assert result["accuracy"] == max(trial["mean"] for trial in finalists)


def test_the_best_of_several_epochs_counts_under_the_published_protocol_alone(tmp_path):
    named = find_experiment("table-1").changed(
        datasets=("digits",), models=("pn-4",), methods=("none", "projection"), bounds=(100.0, 1.0), seeds=1
    )
    shorter = {"epochs": 8, "start": 4, "milestones": [2, 6], "learning_rate": 0.02}
    several = replace(named, recipe=shorter, limit=40, measure_every=2, attacks=("fgsm-0.1",))
    sweep([several], tmp_path, workers=1)
    rows = collect(several, tmp_path)
    found = {(row.method, row.bound, row.attack, row.protocol, row.epoch): row.accuracy for row in rows}
    for method, bound in (("none", None), ("projection", 100.0), ("projection", 1.0)):
        epochs = {
            protocol: {key[-1] for key in found if key[:2] == (method, bound) and key[3] == protocol}
            for protocol in ("-", "published", "sound")
        }
        assert epochs == {"-": {6, 8}, "published": {6, 8}, "sound": {8}}
    assert {row.epochs for row in rows} == {8}
    top = average(rows, method="projection", attack="fgsm-0.1", protocol="published")[1.0]
    assert top.mean == max(found["projection", 1.0, "fgsm-0.1", "published", epoch] for epoch in (6, 8))
    assert top.seeds == 1
    plan = several.entries()[0].plan
    assert len(several.earlier(plan)) == 1
    assert not replace(several, layout="chosen").earlier(plan)  # its epoch would be chosen on the test split
    last = collect(replace(several, measure_every=0), tmp_path)
    assert {row.epoch for row in last} == {8} and len(last) < len(rows)
    page = build_report([several], tmp_path, tmp_path / "report.html")[0]
    assert any("after the best epoch measured (of 6, 8)" in note for note in page.notes)
    assert collect(several, tmp_path / "elsewhere", scores=rows) == rows
    assert collect(replace(several, measure_every=0), tmp_path / "elsewhere", scores=rows) == last


def test_scores_stand_in_for_run_folders_that_are_not_there(small, tmp_path):
    whole = replace(small, attacks=("fgsm-0.1", "fgsm-0.01"), limit=0)
    sweep([small, whole], tmp_path / "runs", workers=1)
    kept = collect_folder(tmp_path / "runs")
    assert {row.limit for row in kept} == {0, 50}
    for experiment in (small, whole):
        rows = collect(experiment, tmp_path / "runs")
        assert {row.limit for row in rows} == {experiment.limit}
        assert collect(experiment, tmp_path / "elsewhere", scores=kept) == rows
        folders = build_report([experiment], tmp_path / "runs", tmp_path / "folders.html")[0].parts
        scores = build_report([experiment], tmp_path / "elsewhere", tmp_path / "scores.html", scores=kept)[0].parts
        assert [part.title for part in folders if part not in scores] == ["Bounds of the runs with seed 0"]
        assert [part for part in folders if part in scores] == scores
        (against,) = [part for part in scores if part.title == "Projection against none, sound protocol"]
        assert [row[2] for row in against.rows] == [attack.upper() for attack in experiment.attacks]
        assert all(row[5] == "2" and 0.0 <= float(row[6]) <= 1.0 for row in against.rows)
    wrong = [replace(row, accuracy=-1.0) for row in kept]
    assert collect(small, tmp_path / "runs", scores=wrong) == collect(small, tmp_path / "runs")  # folders come first
