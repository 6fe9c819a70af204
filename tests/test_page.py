"""The report in a real browser, without a network; tables in every format."""

import re
import shutil
import subprocess

import pytest

from polybound.report.elements import Figure, Images, Line, Panel, Section, Table
from polybound.report.page import page
from polybound.report.static import draw
from polybound.report.text import to_csv, to_latex, to_markdown

TABLE = Table(
    "A table",
    ["attack", "value", "none & more"],
    [["clean", "paper", "87.28 ± 0.18"], ["clean", "here", "87.16 ± 0.11"], ["<b>", "here", "1"]],
    [(0, "Fashion-MNIST"), (2, "K_MNIST")],
    frozenset({(1, 2)}),
    ["A note with </script> in it."],
)
PANEL = Panel(
    "A </script> panel", "bound", "accuracy in %", [Line("one", [0.1, 1, 10], [1, 2, 3], [0.1, 0, 0])], log_x=True
)
FIGURE = Figure(
    "A figure", [PANEL, Panel("Another", "epoch", "value", [Line("two", list(range(100)), list(range(100)))])]
)
PICTURES = Figure(
    "Samples", images=[Images("Set", [("cat (0)", [[[0, 255], [255, 0]]]), ("dog (1)", [[[9]], [[9]], [[9]]])])]
)


@pytest.fixture
def report(tmp_path):
    file = tmp_path / "report.html"
    sections = [Section("s1", "First", [TABLE, FIGURE], ["Reduced schedule."]), Section("s2", "Second", [PICTURES])]
    file.write_text(page("A title", sections, {"machine": "a & b"}, [{"name": "s1", "note": "</script>"}]))
    return file


def browse(file, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    # All names resolve to nothing: whatever the page would fetch, it does not get.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    options += [f"--window-size={width},1200", "--virtual-time-budget=20000", "--enable-logging=stderr"]
    done = subprocess.run(
        [browser, *options, "--dump-dom", f"file://{file}"], capture_output=True, text=True, timeout=120
    )
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, errors


@pytest.mark.parametrize("width", [1300, 500])
def test_in_a_browser(report, width):
    dom, errors = browse(report, width)
    assert not errors
    assert 'data-drawn="2"' in dom
    assert len(re.findall(r'class="plot js-plotly-plot"', dom)) == 2 and dom.count('class="main-svg"') >= 2
    assert "accuracy in %" in dom and "<b>87.16 ± 0.11</b>" in dom and "&lt;b&gt;" in dom


def test_nothing_in_it_is_fetched_and_it_is_small(report):
    text = report.read_text()
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text) and len(text) < 3_000_000
    # Plotly is only there if something is drawn.
    assert len(page("t", [Section("s", "S", [TABLE])], {}, [])) < 20_000


def test_tables_in_every_format():
    markdown = to_markdown(TABLE).splitlines()
    assert markdown[2] == "| **Fashion-MNIST** | | |" and markdown[4] == "| clean | here | **87.16 ± 0.11** |"
    latex = to_latex(TABLE)
    assert r"none \& more" in latex and r"\textbf{87.16 $\pm$ 0.11}" in latex and r"K\_MNIST" in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1
    assert to_csv(TABLE).splitlines()[3] == "K_MNIST,<b>,here,1"


@pytest.mark.parametrize("figure", [FIGURE, PICTURES, Figure("Empty")])
def test_static_figures_are_files_that_can_be_read(figure, tmp_path):
    from PIL import Image

    draw(figure, tmp_path / "f.png", tmp_path / "f.svg")
    with Image.open(tmp_path / "f.png") as image:
        assert image.width > 100
    assert "<svg" in (tmp_path / "f.svg").read_text()
