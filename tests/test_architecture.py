"""The rooms of the package import only what lies above them, and enter each other by the door."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

import polybound as pb
from polybound.runs import DataSpec, Run, Spec

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "polybound"


def test_arrows_point_one_way(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def rooms():
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def imported(tree, package):
    """The full names of the modules that a module of a package may import, with the lines of the statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module, node.lineno
            # What is imported from the package itself may be a room.
            if module == "polybound":
                yield from ((f"polybound.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            yield from ((arg.value, node.lineno) for arg in node.args if isinstance(arg, ast.Constant))


def windows(source, room):
    """The imports of a module of a room that do not enter another room by its `__init__`."""
    for name, line in imported(ast.parse(source), f"polybound.{room}"):
        first, *path = name.split(".")
        if first == "polybound" and len(path) > 1 and path[0] in rooms() and path[0] != room:
            yield f"{name}, line {line}"


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_is_entered_by_its_door(room):
    found = {
        str(path.relative_to(PACKAGE)): climbed
        for path in (PACKAGE / room).rglob("*.py")
        if (climbed := list(windows(path.read_text(encoding="utf-8"), room)))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("from polybound.models.base import PolynomialNetwork", True),
        ("import polybound.models.base", True),
        ("def f():\n    from polybound.theory.norms import theta", True),
        ("from ..models.base import PolynomialNetwork", True),
        ("import_module('polybound.models.base')", True),
        ("from polybound.models import PolynomialNetwork", False),
        ("import polybound.models", False),
        ("from polybound import models", False),
        ("from ..models import PolynomialNetwork", False),
        ("from polybound.attacks.ball import Ball", False),
        ("from .ball import Ball", False),
        ("from polybound.errors import PolyboundError", False),
        ("from polybound.seeds import seeded", False),
        ("import torch.nn.functional", False),
    ],
)
def test_windows_are_seen(source, caught):
    assert bool(list(windows(source, "attacks"))) == caught


def test_the_check_of_proofs_imports_nothing_of_what_makes_them():
    room = PACKAGE / "certificates" / "proofs"
    checker = [path for path in room.glob("*.py") if path.name != "files.py"]  # which writes proofs
    assert {"arb.py", "check.py", "enclosures.py", "exact.py", "schema.py"} <= {path.name for path in checker}
    allowed = ("polybound.certificates.proofs", "polybound.errors", "polybound.models")
    for path in checker:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {name for name, _ in imported(tree, "polybound.certificates.proofs") if name.startswith("polybound")}
        assert all(name.startswith(allowed) and not name.endswith(".files") for name in own), (path, own)


def test_there_are_rooms_to_look_at():
    assert len(rooms()) == 15 and all(len(list((PACKAGE / room).glob("*.py"))) > 1 for room in rooms())


def test_the_package_is_light_until_it_is_used():
    code = "import sys, polybound; dir(polybound); print({'torch', 'numpy'} & set(sys.modules));"
    code += "print(bool(polybound.CCP), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "set()\nTrue True\n", found.stderr


def test_every_repr_is_short_says_what_it_is_and_has_no_tensors():
    data, model = pb.data.load_digits("test"), pb.example("digits-bound-1")
    models = pb.stack([model] * 40)
    result = pb.evaluate(model, data, "fgsm-0.1", limit=20, keep=3)
    shown = {
        "Dataset(digits test: 360 inputs of shape (1, 8, 8) in [-1, 1], 10 classes)": data,
        "Factors(CCP, degree=4, features=64, classes=10)": model.factors(),
        "Evaluation(3 scores of 1 run; print it to see them)": result,
        "<= 20, by Row-wise bound)": pb.lipschitz(model),
        "of 40, by Row-wise bound)": pb.lipschitz(models),
        ": 20 bounds)": pb.bounds(model),
        "Spec(digits pn-4 none, seed 0, ": Spec(DataSpec("digits", "00ff")),
        "Run('runs/digits')": Run("runs/digits"),
        "Radius(0 images)": pb.certified_radius(model, data.x[:0], data.y[:0]),
        "Radius(2 images": pb.certified_radius(model, data.x[:2], data.y[:2], tolerance=0.1),
        "Certificates(": pb.certify(model, data.x[:30], data.y[:30], 0.05),
        "History(": pb.fit(pb.paper_model("pn-4", shape=data.shape, seed=0), data, epochs=3),
    }
    others = [model, models, pb.Projection(model, 1.0), result.examples, result.scores, pb.Recipe()]
    for words, one in [*shown.items(), *(("", one) for one in others)]:
        text = repr(one)
        assert words in text and len(text) <= 250 and text.count("\n") <= 3, text
        assert "tensor(" not in text and "array(" not in text
