"""The attacks and defences of an experiment are the same ones whatever they are called in its file."""

import pytest

from polybound.errors import PolyboundError
from polybound.experiments import Experiment, find_experiment

NAMES = {"attacks": ("fgsm-0.03137254901960784", "fgsm-0.1"), "defences": ("gaussian", "median:size=5")}


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
