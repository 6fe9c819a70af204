"""The attacks and defences of an experiment are the same ones whatever they are called in its file."""

import pytest

from polybound.errors import PolyboundError
from polybound.experiments import Experiment, experiment_scores, find_experiment, sweep

FILE = """
title = "named otherwise"
datasets = ["digits"]
attacks = ["fgsm-8/255", "FGSM-0.10"]
defences = ["gaussian:size=3", "median:size=5"]
seeds = 1
budget = 0.01
limit = 8
recipe = {learning_rate = 0.02}
"""
NAMES = {"attacks": ("fgsm-0.03137254901960784", "fgsm-0.1"), "defences": ("gaussian", "median:size=5")}


def test_what_is_measured_under_any_name_is_shown(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    experiment = find_experiment(str(tmp_path / "mine.toml"))
    sweep([experiment], tmp_path / "runs", workers=1)
    shown = experiment_scores(experiment, tmp_path / "runs")
    assert set(shown.values("attack")) == {"clean", *NAMES["attacks"]}
    assert set(shown.values("defence")) == {"", *NAMES["defences"]}


def test_names_become_canonical_however_an_experiment_is_made():
    asked = {"attacks": ["fgsm-8/255", "FGSM-0.10"], "defences": ["gaussian:size=3", "median:size=5"]}
    made = Experiment("mine", "mine", **asked)
    assert {name: getattr(made, name) for name in NAMES} == NAMES
    assert made.changed(attacks=("fgsm-1/4",)).attacks == ("fgsm-0.25",)
    search = dict(find_experiment("table-10").search) | {"attack": "fgsm-1/100"}
    assert find_experiment("table-10").changed(search=search) == find_experiment("table-10")
    for twice in ({"attacks": ("fgsm-0.1", "fgsm-1/10")}, {"defences": ("gaussian", "gaussian:size=3")}):
        with pytest.raises(PolyboundError, match="given twice"):
            made.changed(**twice)
