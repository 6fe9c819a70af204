"""Ctrl-C, in real processes: one line that says what is kept and how to go on, and exit code 130."""

import subprocess
import sys
import time

import pytest

import polybound as pb
from helpers.processes import Command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

LONG = 10**9
COMMANDS = {
    "demo": (["demo", "--no-plot", "--epochs", LONG], "starts again"),
    "train": (["train", "--dataset", "digits", "--epochs", LONG, "--runs", "runs"], "polybound train --resume"),
    "sweep by workers": (["sweep", "long.toml", "--runs", "runs", "--workers", 2], "the same command goes on"),
    "evaluate": (
        ["evaluate", "m.safetensors", "--dataset", "digits", "--attacks", f"pgd-0.1-{LONG}-0.01"],
        "the same command goes on",
    ),
    "certify by workers": (
        ["certify", "m.safetensors", "--dataset", "digits", "--workers", 2, *["--eps", 0.01] * 5000],
        "no proofs were written",
    ),
}


def wait_for(happened, command):
    while command.running() and not happened():
        time.sleep(0.05)
    assert command.running()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n.endswith("workers") else []) for n in COMMANDS]
)
def test_one_line_says_how_to_go_on(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pb.paper_model("pn-4", shape=(1, 8, 8), seed=0).save("m.safetensors")
    (tmp_path / "long.toml").write_text(
        f'datasets = ["digits"]\nmodels = ["pn-4", "ncp-4"]\nseeds = 1\nrecipe = {{epochs = {LONG}}}\n'
    )
    words, said = COMMANDS[name]
    command = Command(*words, errors=tmp_path / "errors")
    try:
        if name == "certify by workers":
            wait_for(lambda: command.workers() == 2 and command.worked() > 1.0, command)
        elif name.startswith(("train", "sweep")):
            wait_for(lambda: any(tmp_path.glob("runs/.checkpoints/*.safetensors")), command)
        else:
            wait_for(lambda: command.worked() > 1.0, command)
        assert command.interrupt() == 130
    finally:
        command.kill()
    line = (tmp_path / "errors").read_text()
    assert line.startswith("polybound: stopped: ") and said in line and line.count("\n") == 1, line


REPLACED = """
import multiprocessing, os, signal, time
from joblib.externals.loky import get_reusable_executor
from polybound.parallel import in_workers
signal.signal(signal.SIGINT, signal.default_int_handler)
list(in_workers(abs, [1, 2, 3], workers=2))
get_reusable_executor(reuse=True).shutdown(wait=True)  # as if the idle workers had reached their time limit
try:
    for _ in in_workers(time.sleep, [0] + [1000] * 5, workers=2):
        print(len(multiprocessing.active_children()))
        os.killpg(os.getpgid(0), signal.SIGINT)
        time.sleep(1000)
except KeyboardInterrupt:
    print(len(multiprocessing.active_children()))
"""


def test_ctrl_c_in_the_caller_ends_the_workers_and_is_not_seen_by_them():
    """Nor by those that replace others."""
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n0\n", "")
