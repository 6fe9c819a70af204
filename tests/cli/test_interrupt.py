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
    "demo": (["demo", "--no-plot", "--epochs", LONG], "begins anew"),
    "train": (["train", "--dataset", "digits", "--epochs", LONG, "--runs", "runs"], "polybound train --resume"),
    "sweep": (["sweep", "long.toml", "--runs", "runs", "--workers", 1], "the same command goes on"),
    "sweep by workers": (["sweep", "long.toml", "--runs", "runs", "--workers", 2], "the same command goes on"),
    "evaluate": (
        ["evaluate", "m.safetensors", "--dataset", "digits", "--attacks", f"pgd-0.1-{LONG}-0.01"],
        "the same command goes on",
    ),
    "certify by workers": (
        ["certify", "m.safetensors", "--dataset", "digits", "--workers", 2, *["--eps", 0.01] * 5000],
        "no proofs were written",
    ),
    "certify": (["certify", "m.safetensors", "--dataset", "digits", *["--eps", 0.01] * 5000], "no proofs were written"),
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
        if name.startswith(("train", "sweep")):
            wait_for(lambda: any(tmp_path.glob("runs/.checkpoints/*.safetensors")), command)
        else:
            wait_for(lambda: command.worked() > 1.0, command)
        assert command.interrupt() == 130
    finally:
        command.kill()
    line = (tmp_path / "errors").read_text()
    assert line.startswith("polybound: stopped: ") and said in line and line.count("\n") == 1, line


BETWEEN = """
import joblib, multiprocessing, os, signal
from polybound.interrupts import own_interrupts, spared_from_interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with own_interrupts(), spared_from_interrupts():
        joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(abs)(number) for number in range(2))
        print(len(multiprocessing.active_children()))
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print(len(multiprocessing.active_children()))
"""


def test_ctrl_c_between_two_calls_of_a_pool_ends_its_processes():
    done = subprocess.run([sys.executable, "-c", BETWEEN], capture_output=True, text=True, check=True)
    waiting, left = map(int, done.stdout.split())
    assert waiting and not left
