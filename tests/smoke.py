"""Use an installed polybound as a newcomer would, outside of the checkout: `python tests/smoke.py`, or `make smoke`.

Every command runs in a folder of its own, with the interpreter that runs this script. What needs an extra must work if
it is installed, and otherwise end in one line that names it. The script needs nothing but the standard library.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Smoke:
    """Runs commands in a folder, and stops at the first that does not do what it should."""

    def __init__(self, folder):
        self.folder = folder
        self.program = str(Path(sys.executable).parent / "polybound")
        # Neither the checkout nor anybody's settings.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("POLYBOUND")}
        self.environment.pop("PYTHONPATH", None)
        self.environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "120"}

    def run(self, *words, code=0, says=""):
        """Run a command; it must end with this exit code, without a traceback, and say this."""
        start = time.monotonic()
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        shown = " ".join(words).replace(self.program, "polybound").replace(sys.executable, "python")
        print(
            f"{'ok' if done.returncode == code else 'FAILED':6} {time.monotonic() - start:5.1f} s  {shown[:100]}",
            flush=True,
        )
        if done.returncode != code or "Traceback" in said or says not in said:
            sys.exit(f"exit code {done.returncode}, expected {code} and {says!r}:\n{said}")
        return done.stdout

    def polybound(self, *words, **expected):
        return self.run(self.program, *words, **expected)

    def extra(self, module, name, *words, says=""):
        """A command that needs an extra."""
        if find_spec(module):
            self.polybound(*words, says=says)
        else:
            self.polybound(*words, code=2, says=f"polybound[{name}]")


def check_installation(smoke):
    """Where the package is, what is in it, and what it says of itself."""
    where = smoke.run(sys.executable, "-c", "import polybound; print(polybound.__file__)").strip()
    if ROOT in Path(where).resolve().parents and ".venv" not in where and "build" not in where:
        sys.exit(f"{where}: that is the checkout, not an installation")
    for name in ("py.typed", "models/trained/pn-4.safetensors", "experiments/named/table-1.toml", "report/report_page/page.html"):
        if not (Path(where).parent / name).is_file():
            sys.exit(f"{name} was not installed")
    version = smoke.polybound("--version").split()[1]
    facts = json.loads(smoke.polybound("doctor", "--json", says='"problems": []'))
    if facts["polybound"]["version"] != version:
        sys.exit(f"version {version}, but doctor says {facts['polybound']['version']}")
    smoke.run(sys.executable, "-m", "pip", "check", says="No broken requirements")


def walk(smoke):
    """Train, measure, prove, draw and explore a network, then what needs extras."""
    train = ("train", "--dataset", "digits", "--method", "projection", "--bound", "1", "--epochs", "4")
    smoke.polybound(*train, "--learning-rate", "0.04", "--quiet")
    run = next(path.parent.name for path in (smoke.folder / "runs").glob("*/spec.json"))
    smoke.polybound("evaluate", f"runs/{run}", "--attacks", "fgsm-0.1", "--limit", "50", says="fgsm-0.1")
    smoke.polybound("certify", f"runs/{run}", "--eps", "0.02", "-n", "10", "--save", "proofs.json", says="certified")
    smoke.polybound("bounds", f"runs/{run}", says="Lipschitz")
    smoke.polybound("info", f"runs/{run}", says="CCP")
    smoke.polybound("draw", f"runs/{run}", "-o", "network.svg", says="wrote network.svg")
    smoke.polybound("explore", f"runs/{run}", "-n", "5", "--budget", "0", says="explorer.html")
    smoke.polybound("runs", "list", says="1 finished")
    smoke.polybound("experiments", says="table-1")
    smoke.polybound("reproduce", "figure-1", says="wrote figure-1.svg")
    smoke.polybound("certify", "nowhere", "--eps", "0.1", code=2, says="nowhere")
    smoke.extra("flint", "check", "certify", f"runs/{run}", "--check", "proofs.json")
    smoke.extra("onnx", "onnx", "export", f"runs/{run}", "net.onnx", says="wrote net.onnx")
    smoke.extra("plotly", "experiments", "report", f"runs/{run}", "-o", "report.html", says="report.html")
    # Without matplotlib there is all but the plot.
    smoke.polybound(
        "demo", "--epochs", "4", says="polybound-demo.png" if find_spec("matplotlib") else "polybound[plot]"
    )
    code = "import polybound as pb; m = pb.example('digits'); d = pb.data.load_digits('test'); print(pb.accuracy(m, d))"
    smoke.run(sys.executable, "-c", code, says="0.97")


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        smoke = Smoke(Path(folder))
        check_installation(smoke)
        walk(smoke)
    print("all of it works")


if __name__ == "__main__":
    main()
