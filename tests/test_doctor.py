"""`polybound doctor`: the facts are right, and whatever is broken is said in a line."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import polybound as pb
from polybound import doctor

ROOT = Path(__file__).parents[1]
REQUIREMENTS = doctor.requirements()


@pytest.fixture(autouse=True)
def _few_extras(monkeypatch):
    """Importing all extras takes seconds."""
    few = {"": REQUIREMENTS[""], "check": ["python-flint"], "none": ["no-such-package"]}
    monkeypatch.setattr(doctor, "requirements", lambda: few)


def test_packages_are_those_of_the_metadata():
    assert {"torch", "scikit-learn", "numpy"} <= set(REQUIREMENTS[""]) and "matplotlib" in REQUIREMENTS["plot"]
    assert not {"dev", "docs", "test"} & REQUIREMENTS.keys()
    found = [doctor.module_of(name) for name in ("scikit-learn", "torch", "python-flint", "pillow")]
    assert found == ["sklearn", "torch", "flint", "PIL"]


def test_a_healthy_installation(cli, tmp_path):
    done = cli("doctor", "--json", env={"POLYBOUND_DATA": tmp_path, "XDG_CACHE_HOME": tmp_path / "cache"})
    facts = done.json
    assert done.code == 0 and facts["problems"] == [] and done.err == ""
    assert facts["polybound"]["version"] == pb.__version__ and facts["packages"]["torch"] == metadata.version("torch")
    assert facts["extras"]["none"] == {"no-such-package": "absent"} and facts["threads"]["torch"] == 1
    assert facts["data"][str(tmp_path)] == "present"


def test_as_text(cli):
    done = cli("doctor", "--fast")
    assert done.code == 0 and done.out.startswith(f"polybound:\n  version: {pb.__version__}\n")
    assert done.out.endswith("problems: 0\n") and "\n    no-such-package: absent\n" in done.out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ImportError('libfoo.so.3:\\n cannot open')", "broken: ImportError: libfoo.so.3: cannot open"),
        ("import sys; sys.exit(3)", "broken: SystemExit: 3"),
        ("import os, warnings; warnings.warn('old'); print('hello'); 1 / 0", "broken: ZeroDivisionError"),
        ("def f(:", "broken: SyntaxError"),
    ],
)
def test_a_broken_package_is_named(cli, tmp_path, monkeypatch, text, reason):
    (tmp_path / "broken_package.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(doctor, "module_of", lambda name: "broken_package" if name == "python-flint" else "sys")
    done = cli("doctor", "--json", env={"POLYBOUND_DATA": tmp_path})
    assert done.code == 1 and done.err == "" and done.json["extras"]["check"]["python-flint"].startswith(reason)
    assert len(done.json["problems"]) == 1 and "extras, check, python-flint" in done.json["problems"][0]


def test_without_torch_it_still_speaks(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: not for this machine')")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, "-m", "polybound", "doctor", "--json", "--fast"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    facts = json.loads(done.stdout)
    assert facts["devices"] == "broken: OSError: libtorch.so: not for this machine" == facts["data"]
    assert facts["python"]["version"] == sys.version.split()[0] and facts["plugins"] == {}


@pytest.mark.parametrize("path", ["/dev/null", "/proc/1/mem", "~nobody-of-this-name/data", "a\nb", "x" * 5000])
def test_data_directories_that_cannot_be(cli, path):
    done = cli("doctor", "--json", "--fast", env={"POLYBOUND_DATA": path})
    assert done.code in (0, 1) and done.json["packages"]["torch"] == metadata.version("torch") and done.err == ""


def test_plugins(cli, tmp_path, monkeypatch):
    (tmp_path / "plugin_for_doctor.py").write_text("")
    (tmp_path / "plugin_with_a_wound.py").write_text("raise RuntimeError('ouch')")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = "plugin_for_doctor, plugin_with_a_wound,plugin_nowhere"
    done = cli("doctor", "--json", "--fast", env={"POLYBOUND_PLUGINS": names})
    found = done.json["plugins"]
    assert done.code == 1 and found["plugin_for_doctor"] == "imported"
    assert "RuntimeError: ouch" in found["plugin_with_a_wound"] and "No module named" in found["plugin_nowhere"]
    assert len(done.json["problems"]) == 2
