"""The code of the docs: Python runs as it stands, commands run or are at least ones that there are."""

from pathlib import Path

import pytest

from code_blocks import blocks
from polybound.attacks import registry as attacks

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for folder in (".", "howto", "ideas", "reference") for path in (DOCS / folder).glob("*.md"))
CHECKED = [*PAGES, DOCS / "results" / "README.md", DOCS / "results" / "notebook.md"]


def name(page):
    return page.relative_to(DOCS).as_posix()


@pytest.fixture
def _registries(monkeypatch):
    """What pages register is forgotten afterwards."""
    monkeypatch.setattr(attacks, "KINDS", dict(attacks.KINDS))


@pytest.mark.parametrize("page", PAGES, ids=name)
@pytest.mark.usefixtures("_registries")
def test_the_code_of_a_page_runs(page, cli, tmp_path, monkeypatch):
    """All blocks of a page run one after the other, in one folder, the Python ones with common names."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": f"docs/{name(page)}"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason:
            continue
        if block.language == "python":
            # As many lines before it as there are on the page, so that a traceback has the page's lines.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        elif block.language == "console":
            for words in block.commands():
                result = cli(*expanded(words, tmp_path), cwd=tmp_path)
                assert result.code == 0, (words, result)


def expanded(words, folder):
    """Words in which `runs/*` is replaced by what there is, as a shell does."""
    return [each for word in words for each in (sorted(map(str, folder.glob(word))) if "*" in word else [word])]
