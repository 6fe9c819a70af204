"""The code of the docs: Python runs as it stands, commands run or are at least ones that there are."""

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import typer

import polybound as pb

USAGE = typer.BadParameter.__mro__[1]
"""Click's `UsageError`, which newer versions of typer have in a copy of their own."""

DOCS = Path(__file__).parents[2] / "docs"
CHECKED = [path for path in sorted(DOCS.rglob("*.md")) if not path.name.startswith(("table-", "honest-table"))]
LONG = [DOCS / "results" / "notebook.md", *(DOCS / "cards").glob("[!R]*.md")]
"""Pages whose commands, which say how numbers were made, take hours; that they are commands is checked."""
PAGES = [page for page in CHECKED if page not in LONG]


BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block of code, with the line that it begins in, and why it is not run; the reason is mostly empty."""

    language: str
    text: str
    line: int
    reason: str

    def commands(self):
        """The words of each `$ polybound ...` of a console block, without comments and what is printed."""
        lines = re.sub(r"\\\n", " ", self.text).splitlines()
        return [shlex.split(line[2:], comments=True)[1:] for line in lines if line.startswith("$ polybound ")]


def blocks(text):
    """All fenced blocks of a page."""
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start("text")), found["reason"] or "")
        for found in BLOCK.finditer(text)
    ]


def certified():
    """What the page on certificates is about: a small network, some inputs and their classes."""
    model = pb.CCP(features=3, rank=4, classes=3, degree=2, seed=0)
    x = torch.rand(1, 3)
    y = model(x).argmax(1)
    test = pb.data.Dataset("some", "test", x, y, ("a", "b", "c"), domain=(0.0, 1.0))
    V = [torch.rand(4, 3), torch.rand(4, 3)]
    names = {"model": model, "x": x, "y": y, "test": test, "V": V, "C": torch.rand(3, 4), "bias": torch.zeros(3)}
    box = {"lower": x - 0.1, "upper": x + 0.1, "scale": torch.ones(3), "radii": torch.full((1,), 0.1)}
    forms = {
        "weights": torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64),
        "constant": torch.ones(1, dtype=torch.float64),
    }
    return {"torch": torch, **names, **box, **forms}


GIVEN = {"certificates.md": certified}
"""What a page takes as given: `model`, `x` and the like, which its text introduces."""


def name(page):
    return page.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
@pytest.mark.usefixtures("registries")
def test_the_code_of_a_page_runs(page, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("polybound.training.recipe._STEPS", 200)  # of the default recipe
    monkeypatch.setattr("polybound.training.recipe._LEAST_EPOCHS", 4)
    names = {"__name__": f"docs/{name(page)}", **GIVEN.get(name(page), dict)()}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason:
            continue
        if block.language == "python":
            # As many lines before it as there are on the page, so that a traceback has the page's lines.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        elif block.language == "console":
            for words in filter(is_whole, block.commands()):
                result = cli(*expanded(words, tmp_path), cwd=tmp_path)
                assert result.code == 0, (words, result)


def is_whole(words):
    """Whether a command can be run as it stands: `RUN` and `runs/NAME` stand for something of the reader's."""
    return not any(re.search(r"(^|/)[A-Z]{3,}(\.\.\.)?$", word) for word in words)


def expanded(words, folder):
    """Words in which `runs/*` is replaced by what there is and is not hidden, as a shell does."""
    found = {word: [str(path) for path in sorted(folder.glob(word)) if path.name[0] != "."] for word in words}
    return [each for word in words for each in (found[word] if "*" in word else [word])]


@pytest.mark.parametrize("page", CHECKED, ids=name)
def test_the_commands_of_a_page_are_ones_that_there_are(page):
    for block in blocks(page.read_text(encoding="utf-8")):
        for words in block.commands() if block.language == "console" else []:
            parsed(whole_command(), "polybound", words)


@pytest.mark.parametrize("page", CHECKED, ids=name)
def test_code_fits_the_width_of_a_page(page):
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in ("python", "console")]
    assert [line for block in found for line in block.text.splitlines() if len(line) > 100] == []


@cache
def whole_command():
    from polybound.cli.commands import app

    return typer.main.get_command(app)


def parsed(command, name, words):
    """Parse words as a command does, without running it."""
    inner = getattr(command, "commands", {})
    if words and words[0] in inner:
        parsed(inner[words[0]], words[0], words[1:])
    else:
        assert not inner or words[0].startswith("-"), f"no command {' '.join(words)}"
        command.make_context(name, list(words))


def test_a_command_that_there_is_not_is_found():
    for words in (["trian"], ["train", "--epoch", "3"], ["data", "lost"], ["certify"]):
        with pytest.raises((AssertionError, USAGE)):
            parsed(whole_command(), "polybound", words)


def test_what_is_not_run_has_a_reason_and_little_is_not_run():
    found = [block for page in CHECKED for block in blocks(page.read_text(encoding="utf-8"))]
    python = [block for block in found if block.language == "python"]
    assert len(python) > 25 and sum(bool(block.reason) for block in python) <= 1
