"""What a newcomer meets first: help, completion, and commands that keep quiet."""

import os
import re
import subprocess
import sys

import pytest

ORDER = [
    *("demo", "train", "evaluate", "certify", "bounds", "info", "draw", "data"),
    *("runs", "experiments", "reproduce", "sweep", "report", "compare", "doctor"),
]
PAGES = [*((name,) for name in ORDER), ("data", "list"), ("data", "get"), ("data", "verify")]
PAGES += [("runs", "list"), ("runs", "show"), ("runs", "clean")]


LIGHT = """
import sys
sys.argv = ["polybound", "--help"]
from polybound.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
assert not {"torch", "numpy", "sklearn", "pooch", "importlib.metadata"} & set(sys.modules)
"""


def test_help_names_every_command_and_does_not_load_torch():
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    command = [sys.executable, "-W", "error", "-c", LIGHT]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    assert all(f" {command} " in result.stdout for command in (*ORDER, "export", "verify", "explore", "encrypt"))


def page(cli, *words):
    result = cli(*words, "--help", columns=80)
    assert result.code == 0
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in result.out.splitlines()]


def test_commands_come_in_the_order_in_which_they_are_needed(cli):
    found = [match.group(1) for line in page(cli) if (match := re.match(r"│ ([a-z]+)  ", line))]
    assert [name for name in found if name in ORDER] == ORDER


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page(cli, words):
    lines = page(cli, *words)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    # Flags are flags: no type, and no way to ask for what is the default anyway.
    assert "<bool>" not in text and not re.search(r"--.*<list", text) and not re.search(r"--no-(?!plot)", text)
    if words in (("data",), ("runs",)):
        return
    examples = [line for line in lines if line.startswith((" Example", " polybound "))]
    assert re.match(r" Examples?: *$", examples[0]) and len(examples) >= 2
    assert all(line.startswith(f" polybound {' '.join(words)}") for line in examples[1:])
    assert "--quiet" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    def complete(**environment):
        command = [sys.executable, "-c", "import sys; sys.argv = ['polybound']; from polybound.cli import main; main()"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=100)
        assert done.stderr == ""
        return done.stdout

    assert "_POLYBOUND_COMPLETE" in complete(_POLYBOUND_COMPLETE=f"source_{shell}")
    words = {"COMP_WORDS": "polybound ce", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "polybound ce"}
    words |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "certify" in complete(_POLYBOUND_COMPLETE=f"complete_{shell}", **words)


def test_quiet_leaves_the_result_alone(cli, tmp_path):
    words = ("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path)
    loud, quiet = cli(*words, columns=100), cli(*words, "--quiet", columns=100)
    again = cli(*words, "-q", columns=100)
    assert "1 run" in loud.err  # the progress bar
    assert quiet.err == again.err == "" and quiet.out == again.out == loud.out != ""
