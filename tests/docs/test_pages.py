"""The pages of the site: what is made for them, their sources, and the tutorials that run."""

import ast
import io
import json
import re
import shutil
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from pprint import pformat

import markdown
import pytest

import polybound as pb
from generator import doctests, notebooks, pages, reference, results, theorems
from polybound.experiments import compare, read_scores

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = ("honest-table.md", "table-")
SOURCES = [path for path in sorted(DOCS.rglob("*.md")) if not path.name.startswith(MADE)]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def test_every_function_of_a_theorem_is_there_and_public():
    for statement in theorems.statements():
        for function in statement.functions:
            _, room, name = function.split(".")
            assert name in reference.homes(room) and hasattr(getattr(pb, room), name), function
            assert reference.homes(room)[name].startswith(f"polybound.{room}.")


def test_every_theorem_of_the_paper_has_its_functions():
    said = " ".join(each.name for each in theorems.statements())
    numbers = {
        kind: {int(n) for found in re.findall(rf"{kind}s? ([\d and]+)", said) for n in re.findall(r"\d+", found)}
        for kind in ("Theorem", "Lemma", "Algorithm")
    }
    assert numbers == {"Theorem": set(range(1, 12)), "Lemma": {1, 2, 4, 6, 7, 8, 11, 12}, "Algorithm": {1, 2}}


def test_theorems_lead_to_functions_and_functions_to_theorems(tmp_path):
    page = tmp_path / "theorems.md"
    shutil.copy(DOCS / "ideas" / "theorems.md", page)
    theorems.write_theorems(page)
    forward, _, backward = page.read_text().partition("## From the package")
    sections = forward.split("\n### ")[1:]
    for each, text in zip(theorems.statements(), sections, strict=True):
        assert text.startswith(each.name) and "**Computed.**" in text
        for function in each.functions:
            assert theorems.link(function) in text
            (back,) = [line for line in backward.splitlines() if line.startswith(f"| {theorems.link(function)} |")]
            assert each.name in back


def test_formulas_become_mathml_and_code_stays():
    site = markdown.Markdown(extensions=["generator.formulas", "tables", "pymdownx.inlinehilite"])
    text = site.convert(
        "A `$x$`, $a * b * c$ and \\$5.\n\n$$\\max_{j} \\lVert U_j \\rVert \\pm 1$$\n\n| $y$ |\n| - |\n| $z_1$ |\n"
    )
    assert text.count("<math") == 4 and text.count('display="block"') == 1 and "<code>$x$</code>" in text
    assert "<munder><mi>max</mi>" in text and "<mo>±</mo>" in text and "<em>" not in text
    with pytest.raises(ValueError, match="frob"):
        site.convert(r"$\frob{x}$")


def test_every_command_and_option_is_on_the_page():
    text = reference.commands()
    for words in ("train", "certify", "encrypt serve", "data verify", "runs clean", "compare"):
        assert f"## polybound {words}\n" in text
    for option in ("`--eps <float>`", "`-n, --images", "`--protocol"):
        assert option in text
    assert "[bold]" not in text and "$ polybound certify runs/NAME --eps 0.01" in text


def test_every_public_name_is_on_the_page_of_its_room():
    for room in reference.ROOMS:
        text = reference.room_page(room)
        for name, home in reference.homes(room).items():
            assert f"| [`{name}`](#{home}) |" in text


def test_links_lead_to_the_copies_on_the_site():
    text = "[a](../../CONTRIBUTING.md#an-attack) [b](../../src/polybound/x.py) [c](docs/attacks.md) [d](../tutorials/onnx.ipynb)"
    found = "[a](../contributing.md#an-attack) b [c](../attacks.md) [d](../tutorials/onnx.md)"
    assert pages.relinked(text, "howto") == found


def test_examples_of_docstrings_are_fenced():
    text = "One.\n\n>>> 1 + 1\n2\n\nExample:\n    >>> f(\n    ...     1\n    ... )\n"
    fenced = "One.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nExample:\n"
    fenced += "    ```pycon\n    >>> f(\n    ...     1\n    ... )\n    ```\n"
    assert doctests.fenced(text) == fenced


def test_a_section_that_there_is_not_is_an_error():
    with pytest.raises(ValueError, match="unpack"):
        pages.included("<!-- include CONTRIBUTING.md # A dream -->", ROOT)


@pytest.mark.parametrize("page", SOURCES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_lines_are_below_120_characters(page):
    # What `make results` writes is a table that is as wide as it is.
    text = re.sub(r"<!-- found -->.*?<!-- /found -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("page", SOURCES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_links_of_a_page_lead_somewhere_in_the_sources_too(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        made = "reference/api/" in target or target.startswith("api/")
        assert made or (page.parent / target).exists(), target


def test_results_count_every_published_value_once_a_table():
    found = [each for each in compare(read_scores(DOCS / "results" / "scores.csv")) if each.verdict in results.VERDICTS]
    rows = [line.strip("| ").split(" | ") for line in results.summary(found).splitlines()[2:]]
    tables = [row[0] for row in rows[:-1]]
    assert tables == sorted(tables, key=lambda name: int(name.removeprefix("Table "))) and len(tables) >= 6
    met = [each for each in found if each.verdict == "within"]
    assert rows[-1][-1] == f"{len(met)} of {len(found)}"
    assert sum(int(row[-1].split()[0]) for row in rows[:-1]) == len(met)
    page = results.comparison_page(found)
    assert page.count("| **missed** |") == len(found) - len(met) and page.count("| met |") == len(met)
    for row in results.misses(found).splitlines()[4:]:
        assert row.removesuffix(" |") in page


def test_tutorials_are_five_and_have_outputs():
    assert [path.stem for path in TUTORIALS] == ["deep", "encrypted", "onnx", "own-table", "paper-table"]
    for path in TUTORIALS:
        code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert len(code) >= 5 and sum(bool(cell["outputs"]) for cell in code) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_its_outputs_are_those_stored(path, tmp_path, monkeypatch):
    """But for numbers, which may differ in the last digits from machine to machine; one of them as `make notebooks`."""
    pytest.importorskip("ipykernel")
    if path.stem == "encrypted":
        pytest.importorskip("tenseal")
    stored = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    if path.stem == "own-table":
        cells = [cell for cell in notebooks.run_notebook(path, tmp_path)["cells"] if cell["cell_type"] == "code"]
        found = [shown(notebooks.joined(cell["outputs"])) for cell in cells]
    else:
        monkeypatch.chdir(tmp_path)
        found = [shown(outputs) for outputs in run_here(stored)]
    assert found == [shown(cell["outputs"]) for cell in stored], "run `make notebooks`"


def run_here(cells):
    """The outputs of cells that run in this process: what they print, and the value that a cell ends with."""
    names = {"__name__": "__main__"}
    for cell in cells:
        *lines, last = ast.parse("".join(cell["source"])).body
        value, printed = None, io.StringIO()
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = ast.Module([*lines, *([] if isinstance(last, ast.Expr) else [last])], [])
            exec(compile(whole, "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        texts = [printed.getvalue(), "" if value is None else pformat(value)]
        yield [{"text": text} for text in texts if text]


def shown(outputs):
    """What outputs say, without warnings, numbers, spaces, and stars at what is best."""
    said = [output for output in outputs if output.get("name") != "stderr"]
    text = ["".join(output.get("data", output).get("text/plain", output.get("text", ""))) for output in said]
    return [re.sub(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?|\s|\*", "", each) for each in text]


def test_stars_of_shapes_stay_and_those_of_examples_too():
    text = doctests.starred(doctests.fenced("x: (*lead, batch), *and* more.\n\n>>> f(*lead)\n1\n\nThen (*lead,)."))
    assert text == "x: (\\*lead, batch), *and* more.\n\n```pycon\n>>> f(*lead)\n1\n```\n\nThen (\\*lead,)."
