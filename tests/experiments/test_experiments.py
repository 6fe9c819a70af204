"""Every table and figure of the paper end to end, on tiny data sets in the official formats."""

import re
from dataclasses import replace
from statistics import fmean

import pytest

import polybound.experiments.results as results
import polybound.report.build as build
from helpers import data as on_disk
from helpers.errors import refuses
from helpers.reports import row_like, rows_like_the_paper, spec_like
from polybound import experiments
from polybound.data.catalogue import SOURCES
from polybound.evaluation import MixedError, Table
from polybound.experiments import Experiment, compare, experiment_scores, find_experiment, preview, read_scores, sweep
from polybound.experiments.results import digests
from polybound.experiments.sweep import jobs_of
from polybound.report import build_report
from polybound.report.draw import draw
from polybound.report.elements import Figure
from polybound.report.elements import Table as Shown
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.theory import theta
from polybound.training import Plain

NAMES = [
    *(f"table-{number}" for number in range(1, 12)),
    *(f"figure-{number}" for number in range(2, 15)),
    *("certified-tradeoff", "honest-table", "tradeoff"),
]


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory):
    """All data sets of the paper, a few images each."""
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        source, contents, _ = on_disk.tiny_mnist(patch, size=(8, 8))
        on_disk.put_mnist(root, contents)
        for name in ("fashion-mnist", "kmnist", "mnist"):
            patch.setitem(SOURCES.entries, name, replace(source, name=name))
        for part in ("letters", "byclass"):
            content, _, _ = on_disk.tiny_emnist(patch, part)
            on_disk.write(root / f"emnist-{part}" / "gzip.zip", content)
        on_disk.put_cifar(root / "cifar10", on_disk.tiny_cifar(patch)[0])
        archives = {"test": on_disk.tarred(on_disk.nsynth_members("test"))}
        on_disk.tiny_nsynth(patch, archives)
        on_disk.write(root / "nsynth" / "nsynth-test.jsonwav.tar.gz", archives["test"])
        yield root


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory):
    """A folder for the runs of all experiments: what several need is trained once."""
    return tmp_path_factory.mktemp("runs")


def tiny(name):
    """An experiment with two epochs, one seed, three bounds and as few points of a search as there can be."""
    experiment = find_experiment(name).changed(seeds=1, budget=0.02, limit=6)
    if len(experiment.models) > 2:  # PN-10 is as PN-4
        experiment = experiment.changed(models=experiment.models[::2])
    if experiment.search:
        experiment = replace(experiment, search=dict(experiment.search) | {"points": 4})
    if experiment.bounds == experiments.BOUNDS:
        experiment = experiment.changed(bounds=experiments.BOUNDS[4::4])
    return experiment.changed(bounds=experiment.bounds[:1]) if experiment.layout == "tradeoff" else experiment


def test_all_are_there():
    assert sorted(experiments.experiment_names()) == sorted(NAMES)


@pytest.fixture
def first_panels(monkeypatch):
    """Of every figure only the first panel and row of images are drawn: the others are alike, and matplotlib is slow."""

    def draw_first(figure, *paths):
        draw(replace(figure, panels=figure.panels[:1], images=figure.images[:1]), *paths)

    monkeypatch.setattr(build, "draw", draw_first)
    for name in ("RANKS", "DEGREES"):  # of the networks whose bounds are compared at initialisation
        monkeypatch.setattr(results, name, getattr(results, name)[:2])


@pytest.mark.usefixtures("first_panels")
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_and_has_the_papers_layout(tiny_data, shared_runs, tmp_path, name):
    experiment, folder = tiny(name), shared_runs
    sweep([experiment], folder, data_dir=tiny_data, workers=1)
    jobs = jobs_of(experiment, folder, digests(tiny_data), tiny_data)
    assert jobs and all(job.done(folder) for job in jobs)
    (made,) = build_report([experiment], folder, tmp_path / "report.html", data_dir=tiny_data).sections
    parts = {kind: [part for part in made.parts if isinstance(part, kind)] for kind in (Shown, Figure)}
    if experiment.layout in ("table", "chosen"):
        check_table(experiment, parts[Shown][0])
        assert {file.suffix for file in (tmp_path / "report").iterdir()} == {".md", ".tex", ".csv"}
    else:
        check_figure(experiment, parts[Figure][0])
        assert {".png", ".svg"} <= {file.suffix for file in (tmp_path / "report").iterdir()}
    if experiment.kind in ("accuracy", "search"):
        assert any("2 of 100 epochs" in note for note in made.notes)
    if experiment.kind == "search":
        scores = read_scores(tmp_path / "report" / f"{name}-scores.csv")
        assert {experiments.row_kind(row) for row in scores} == {"", "single", "layer-wise"}
    page = (tmp_path / "report.html").read_text()
    assert made.title in page.replace("&#39;", "'")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)  # nothing to be fetched


def check_table(experiment, table):
    groups = [heading for _, heading in table.groups]
    assert len(groups) == len(experiment.datasets) * len(experiment.models)
    assert groups[0].startswith(experiments.DATASETS[experiment.datasets[0]])
    if experiment.layout == "chosen":
        assert [row[0] for row in table.rows] == ["no projection", "projection", "Jacobian", "L2"]
        assert len(table.header) == 3 + len(experiment.attacks)
    elif experiment.published:
        values = [value for value in experiments.published() if value.table == experiment.published]
        methods = list(dict.fromkeys(value.method for value in values))
        assert len(table.header) == 2 + len(methods)
        values = [value for value in values if value.model.lower() in experiment.models]
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
        assert [row.title for row in figure.images] == [experiments.DATASETS[name] for name in experiment.datasets]
        return
    assert figure.panels and all(panel.lines for panel in figure.panels)
    assert all(len(line.x) == len(line.y) > 0 for panel in figure.panels for line in panel.lines)
    if experiment.kind == "growth":
        assert [panel.x_label for panel in figure.panels] == ["bound", "epoch"] * 2
        assert figure.panels[1].lines[0].x == [0, 1, 2]
    elif experiment.kind == "initial":
        assert [panel.x_label for panel in figure.panels] == ["hidden rank", "degree"]
    elif experiment.layout == "curves":
        values = {"bound": sorted(experiment.bounds), "rank": [4, 8, 16, 32, 64], "steps": [1, 2, 5, 10, 20, 40]}
        over = values[experiment.x]
        assert all(list(line.x) == over for panel in figure.panels for line in panel.lines)
        assert all(panel.log_x == (experiment.x != "steps") for panel in figure.panels)
        protocols = 2 if experiment.attacks else 1
        per_set = 1 if experiment.lines == "model" else len(experiment.models)
        assert len(figure.panels) == protocols * len(experiment.datasets) * per_set
    else:
        assert all(len(panel.lines) == 3 + len(experiment.methods) for panel in figure.panels)
        if "certified" in experiment.methods:  # trained for each radius that is certified
            assert {len(panel.lines[-1].x) for panel in figure.panels} == {len(experiment.eps)}


@pytest.fixture(scope="module")
def small():
    """Two seeds, each without a bound and with three."""
    parts = {"datasets": ("digits",), "methods": ("none", "projection"), "attacks": ("fgsm-0.1",)}
    sizes = {"bounds": (100.0, 1.0, 0.5), "seeds": 2, "budget": 0.05, "samples": 200, "limit": 50}
    return Experiment("small", "Small", **parts, **sizes)


@pytest.fixture(scope="module")
def swept(small, tmp_path_factory):
    """The folder of its runs."""
    folder = tmp_path_factory.mktemp("swept")
    planned = preview([small], folder)
    assert (planned["jobs"], planned["runs"], planned["done"], planned["missing"]) == (2, 8, 0, [])
    sweep([small], folder, workers=1)
    return folder


def test_a_sweep_on_workers_is_a_sweep_alone(small, swept, tmp_path):
    seen = []
    sweep([small], tmp_path, workers=2, on_progress=lambda *state: seen.append(state))
    assert seen[-1][:2] == (2, 2)
    rows = experiment_scores(small, swept).rows
    assert experiment_scores(small, tmp_path).rows == rows
    assert len(rows) == 8 * 3
    assert preview([small], tmp_path)["done"] == 2


def test_what_has_no_bound_trains_with_the_bounds_where_it_can(small, tmp_path):
    def methods(experiment):
        jobs = jobs_of(experiment, tmp_path, digests(None))
        return [[spec.recipe.method.name for spec in job.specs] for job in jobs]

    bounds = ["projection"] * 3
    assert methods(small) == [["none", *bounds]] * 2
    alone = [["none"] * 2, bounds, bounds]  # the seeds as one stack
    assert methods(replace(small, defences=("median",))) == alone
    assert methods(replace(small, recipes={"none": {"learning_rate": 0.5}})) == alone
    spectral = methods(replace(small, projections=("spectral", "single")))
    assert spectral == [bounds, bounds, ["none", *bounds], ["none", *bounds]]


def test_jobs_that_share_a_run_share_a_lock(small, tmp_path):
    def locks(**changes):
        return [set(job.locks) for job in jobs_of(replace(small, **changes), tmp_path, digests(None))]

    first, second = locks()
    assert not first & second
    (both,) = locks(methods=("none",))
    assert both == first | second
    for other in ({"methods": ("projection",)}, {"bounds": (2.0,)}, {"attacks": ("pgd-0.1-1-0.1",)}):
        assert locks(**other) == [first, second]
    for other in ({"methods": ("l2",)}, {"budget": 0.1}, {"models": ("pn-10",)}):
        assert not set().union(*locks(**other)) & both


def test_a_preview_counts_a_run_once(small, tmp_path):
    other = replace(small, name="other", attacks=("pgd-0.1-1-0.1",))
    planned = preview([small, other], tmp_path)
    assert (planned["jobs"], planned["runs"]) == (4, 8)
    wider = replace(other, bounds=(100.0, 1.0, 0.5, 0.25))
    assert preview([small, wider], tmp_path)["runs"] == 10


def test_experiments_that_share_runs_do_not_see_each_others_scores(small, tmp_path):
    attacks = ("pgd-0.1-1-0.1", "pgd-0.1-2-0.05")
    curves = {"layout": "curves", "x": "steps", "lines": "model"}
    steps = replace(small, name="steps", methods=("projection",), attacks=attacks, **curves)
    sweep([small, steps], tmp_path, workers=1)
    assert set(experiment_scores(small, tmp_path).values("attack")) == {"clean", "fgsm-0.1"}
    assert set(experiment_scores(steps, tmp_path).values("attack")) == {"clean", *attacks}
    (made,) = build_report([steps], tmp_path, tmp_path.with_suffix(".html")).sections
    (figure,) = made.parts
    # A line for each bound: over the steps of an attack it is a configuration of its own.
    assert [list(line.x) for panel in figure.panels for line in panel.lines] == [[1.0, 2.0]] * 6
    assert [len({line.label for line in panel.lines}) for panel in figure.panels] == [3, 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_data_set_does_not_keep_the_others_back(small, tmp_path, workers):
    both = replace(small, datasets=(f"folder:{tmp_path / 'nowhere'}", "digits"), seeds=1, methods=("none",))
    refuses("nowhere", sweep, [both], tmp_path / "runs", workers=workers)
    assert experiment_scores(both, tmp_path / "runs").values("dataset") == ["digits"]


TABLE_1 = "tab:regularization_compare_fashionmnist_emnist"


def of_table_1(table, protocol="published"):
    return [one for one in compare(table, protocol) if one.paper.table == TABLE_1]


def compared(rows, protocol="published"):
    """Our values by the paper's names of method and attack."""
    return {(c.paper.method, c.paper.attack): c for c in of_table_1(Table(rows), protocol)}


def test_comparison_with_the_paper():
    found = compared(rows_like_the_paper())
    assert set(found) == {("none", "clean"), ("none", "fgsm-0.1"), ("projection", "fgsm-0.1")}
    best = found["projection", "fgsm-0.1"]
    assert best.verdict == "within" and best.difference == pytest.approx(0)
    assert best.bounds == 2 and best.ours.chosen == ("method.bound", 1.0, 2)
    assert best.ours.std == pytest.approx(1.0) and best.ours.seeds == (-1, 0, 1)
    shifted = compared(rows_like_the_paper(4.0))
    assert shifted["none", "clean"].verdict == "off"
    assert shifted["none", "clean"].deviations == pytest.approx(4.0 / (0.18**2 + 1.0) ** 0.5)  # ours have 1 point
    assert shifted["none", "fgsm-0.1"].verdict == "within"  # 2 published standard deviations are 5.48 points
    assert {c.verdict for c in compared(rows_like_the_paper(epochs=10)).values()} == {"reduced"}
    (sound,) = [c for c in compared(rows_like_the_paper(), "sound").values() if c.paper.attack != "clean"]
    assert sound.protocol == "sound" and sound.ours.mean == pytest.approx(60.0)


def test_another_recipe_is_not_judged():
    other = [{**row, "optimiser.learning_rate": 0.02} for row in rows_like_the_paper()]
    found = compare(Table(other))
    assert {(c.verdict, c.variant) for c in found} == {("other recipe", "learning rate 0.02")}


def test_other_data_are_not_judged():
    part = row_like(spec_like(data="nsynth"), "clean", "-", 80.25)
    whole = {**part, "available": 4096, "total": 4096, "correct": 3287}
    for row, verdict in ((part, "other data"), (whole, "within")):
        assert {c.verdict for c in compare(Table([row]))} == {verdict}
    named_alike = {**whole, "dataset": "NSYNTH", "data": "NSYNTH"}
    assert compare(Table([named_alike])) == []


def test_variants_of_a_method_are_compared_one_by_one_and_other_ranks_left_out():
    seeds = (-1, 0, 1)
    plain = [row for row in rows_like_the_paper() if row["attack"] == "clean"]
    penalised, wide, deep = [], [], []
    for seed in seeds:
        for weight, accuracy in ((1, 80), (2, 87)):
            penalised.append(row_like(spec_like(seed, method="l2", weight=weight), "clean", "-", accuracy))
        wide.append(row_like(spec_like(seed, rank=64), "clean", "-", 50.0))
        deep += [row_like(spec_like(seed, "pn-10", rank), "clean", "-", 50.0 + rank / 4) for rank in (16, 64, 128)]
    found = {(c.paper.method, c.variant): c for c in of_table_1(Table([*plain, *penalised, *wide]))}
    (tenth,) = of_table_1(Table(deep))
    assert tenth.ours.mean == pytest.approx(66.0)  # the rank that the experiments have
    wanted = {("none", ""): "within", ("l2", "weight 1"): "off", ("l2", "weight 2"): "within"}
    assert {key: c.verdict for key, c in found.items()} == wanted
    assert found["none", ""].ours.mean == pytest.approx(87.28)


def test_each_table_has_its_own_rank():
    table = find_experiment("table-3")
    rows = [
        row_like(spec_like(seed, "pn-10", rank, adversary=table.adversary), "fgsm-0.1", "published", 60.0 + rank / 16)
        for seed in (-1, 0, 1)
        for rank in (16, 64)
    ]
    (found,) = compare(Table(rows))
    assert found.paper.table == table.published and found.paper.method == "at"
    assert table.ranks == (16,) and found.ours.mean == pytest.approx(61.0)


def test_a_search_has_as_many_different_points_as_it_says_and_its_best_have_several_seeds(tmp_path):
    """Two values a matrix: the estimator proposes points again long before all 32 were seen."""
    named = find_experiment("table-10")
    wanted = {"dataset": "digits", "values": [1.0, 2.0], "points": 30, "finalists": 2, "seeds": 2}
    small = replace(named, budget=0.02, samples=200, limit=20, search=dict(named.search) | wanted)
    experiments.search_job(small).run(tmp_path, None)
    result = experiments.search_job(small).result(tmp_path)
    trials = result["trials"]
    assert len({tuple(trial["bounds"].values()) for trial in trials}) == len(trials) == 30
    whole = [trial["full"] for trial in trials if trial["full"] is not None]
    finalists = [trial for trial in trials if trial["mean"] is not None]
    assert sorted(trial["full"] for trial in finalists) == sorted(whole)[-2:]
    assert result["accuracy"] == max(trial["mean"] for trial in finalists)


def test_a_search_on_other_data_is_another(monkeypatch, tmp_path):
    monkeypatch.setattr("polybound.experiments.results.digests", lambda where=None: lambda _name: str(where))
    jobs = [experiments.search_job(find_experiment("table-10"), tmp_path / name) for name in "ab"]
    assert jobs[0].key != jobs[1].key


def test_without_a_projection_there_is_nothing_to_search(tmp_path, tiny_data):
    experiment = find_experiment("table-11")

    def kinds(**changes):
        jobs = jobs_of(experiment.changed(**changes), tmp_path, digests(tiny_data), tiny_data)
        return {type(job).__name__ for job in jobs}

    assert kinds() == {"StudyJob", "StackJob"}
    assert kinds(methods=("none",)) == {"StackJob"}


def test_growth_is_of_one_data_set_and_model_a_panel(tmp_path):
    """Also if a data set is not there, and methods without bounds are; only seeds are averaged."""
    recipe = {"epochs": 2, "learning_rate": 0.02, "batch_size": 256}
    growth = Experiment(
        **{"name": "g", "title": "g", "kind": "growth", "layout": "curves", "samples": 100, "seeds": 2},
        **{"datasets": (f"folder:{tmp_path / 'nowhere'}", "digits"), "models": ("pn-4", "ncp-4"), "recipe": recipe},
        **{"methods": ("none", "projection"), "bounds": (1.0, 0.5), "options": {"projection": {"start": 1}}},
    )
    refuses("nowhere", sweep, [growth], tmp_path / "runs", workers=1)
    report = build_report([growth], tmp_path / "runs", tmp_path / "page.html")
    panels = {panel.title: panel for panel in report.sections[0].parts[0].panels}
    names = ("digits, PN-4", "digits, NCP-4")
    assert set(panels) == {*names, *(f"{name} without regularisation" for name in names)}
    found = experiments.ratios(growth, tmp_path / "runs")
    for name, model in zip(names, growth.models, strict=True):
        (line,) = panels[name].lines
        wanted = {
            bound: [row["ratio"] for row in found if row["model"] == model and row.get("method.bound") == bound]
            for bound in (0.5, 1.0)
        }
        assert all(len(values) == 2 for values in wanted.values())
        assert list(line.x) == [0.5, 1.0] and list(line.y) == pytest.approx([fmean(wanted[x]) for x in line.x])
        trained = Spec(DataSpec.of("digits", samples=100), ModelSpec(model), growth.recipe_for(Plain()))
        data = trained.data.load("train")
        first = next(one for one in panels[f"{name} without regularisation"].lines if one.label == "theta").y[0]
        assert first == theta(trained.model.build(data, seed=0)).item()


def test_the_best_of_several_epochs_counts_under_the_published_protocol_alone(tmp_path):
    named = find_experiment("table-1").changed(
        datasets=("digits",), models=("pn-4",), methods=("none", "projection"), bounds=(100.0, 1.0), seeds=1
    )
    shorter = {"epochs": 8, "milestones": [2, 6], "learning_rate": 0.02}
    early = {"projection": {"start": 4}}
    several = replace(named, recipe=shorter, options=early, limit=40, measure_every=2, attacks=("fgsm-0.1",))
    sweep([several], tmp_path, workers=1)
    table = experiment_scores(several, tmp_path)
    for part in table.groups("method", "method.bound").values():
        epochs = {name: set(part.where(protocol=name).values("epoch")) for name in ("-", "published", "sound")}
        assert epochs == {"-": {6, 8}, "published": {6, 8}, "sound": {8}}
    assert set(table.groups("method", "method.bound")) == {("none", None), ("projection", 100.0), ("projection", 1.0)}
    assert table.values("schedule.epochs") == [8]
    mine = table.where({"method.bound": 1.0, "attack": "fgsm-0.1", "protocol": "published"})
    refuses("epoch", mine.cell, error=MixedError)
    top = mine.best_epoch().cell()
    assert top.mean == max(100 * row["correct"] / row["total"] for row in mine) and len(mine) == 2
    assert top.seeds == (0,) and top.epoch == "best of 6, 8"
    assert several.earlier_epochs() == (6,)
    assert not replace(several, layout="chosen").earlier_epochs()  # its epoch would be chosen on the test split
    last = experiment_scores(replace(several, measure_every=0), tmp_path).rows
    assert {row["epoch"] for row in last} == {8} and len(last) < len(table)
    (made,) = build_report([several], tmp_path, tmp_path.with_suffix(".html")).sections
    assert any("after the best epoch measured (of 6, 8)" in note for note in made.notes)
    assert experiment_scores(several, tmp_path / "elsewhere", scores=table).rows == table.rows
    assert experiment_scores(replace(several, measure_every=0), tmp_path / "elsewhere", scores=table).rows == last


def test_scores_stand_in_for_run_folders_that_are_not_there(small, tmp_path):
    whole = replace(small, attacks=("fgsm-0.1", "fgsm-0.01"), limit=0)
    sweep([small, whole], tmp_path / "runs", workers=1)
    kept, _ = experiments.read_runs(tmp_path / "runs")
    assert set(kept.values("total")) == {50, 360}
    for experiment in (small, whole):
        rows = experiment_scores(experiment, tmp_path / "runs").rows
        assert {row["total"] for row in rows} == {experiment.limit or 360}
        assert experiment_scores(experiment, tmp_path / "elsewhere", scores=kept).rows == rows
        (made,) = build_report([experiment], tmp_path / "runs", tmp_path / "folders.html").sections
        (other,) = build_report([experiment], tmp_path / "elsewhere", tmp_path / "scores.html", scores=kept).sections
        folders, scores = made.parts, other.parts
        assert [part.title for part in folders if part not in scores] == ["Bounds of the runs with seed 0"]
        assert [part for part in folders if part in scores] == scores and made.notes == other.notes
    wrong = Table({**row, "correct": 0} for row in kept)
    rows = experiment_scores(small, tmp_path / "runs").rows
    assert any(row["correct"] for row in rows)
    assert experiment_scores(small, tmp_path / "runs", scores=wrong).rows == rows  # folders come first


CANONICAL = {"attacks": ("fgsm-0.03137254901960784", "fgsm-0.1"), "defences": ("gaussian", "median:size=5")}


def test_names_become_canonical_however_an_experiment_is_made():
    asked = {"attacks": ["fgsm-8/255", "FGSM-0.10"], "defences": ["gaussian:size=3", "median:size=5"]}
    made = Experiment("mine", "mine", **asked)
    assert {name: getattr(made, name) for name in CANONICAL} == CANONICAL
    assert made.changed(attacks=("fgsm-1/4",)).attacks == ("fgsm-0.25",)
    search = dict(find_experiment("table-10").search) | {"attack": "fgsm-1/100"}
    assert find_experiment("table-10").changed(search=search) == find_experiment("table-10")
    for twice in ({"attacks": ("fgsm-0.1", "fgsm-1/10")}, {"defences": ("gaussian", "gaussian:size=3")}):
        refuses("given twice", made.changed, **twice)
