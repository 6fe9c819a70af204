"""The report in a real browser, without a network: at two widths, light and dark, on paper, and with hostile words."""

import json
import re
from dataclasses import replace

import pytest

from helpers.browser import contrast
from helpers.reports import BOUNDS, CURVE, FIGURE, HEADLINE, HOSTILE, PICTURES, TABLE
from polybound.experiments import find_experiment
from polybound.report import build_report
from polybound.report.elements import Figure, Images, Line, Panel, Section, Table
from polybound.report.page import page
from polybound.report.summary import Summary
from polybound.report.text import read_figure

ANSWERS = Table("Compared", ["question", "compared", "by how much"], [["Does it work?", "a with b", "+1.0 points"]])
SUMMARY = Summary(7, 1, 0, 378, ANSWERS, HEADLINE, replace(TABLE, title="Missed"))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    first = Section("s1", "First", [TABLE, FIGURE], ["Reduced schedule."])
    sections = [
        first,
        *(Section(f"s{n}", f"Section {n}", [part]) for n, part in ((2, CURVE), (3, PICTURES), (4, TABLE))),
    ]
    file.write_text(page("A title", sections, {"machine": "a & b"}, [{"note": "</script>"}], SUMMARY))
    return file


def visit(browser, file, **window):
    browser.open(file, **window)
    browser.wait("document.documentElement.dataset.drawn")
    assert asked(browser) == [f"file://{file}"] and not browser.errors


def asked(browser):
    """The addresses that were asked for; pictures that are inside the page are none."""
    return [address for address in browser.requests if not address.startswith("data:")]


def place(browser, selector):
    """left, top, right and bottom of an element, in the window."""
    return browser.run(
        f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        " return [b.left, b.top, b.right, b.bottom]; })()"
    )


@pytest.mark.parametrize(("width", "dark"), [(1300, False), (400, True)])
def test_what_was_found_comes_first_then_figures_then_folded_tables(browser, report, width, dark):
    visit(browser, report, width=width, dark=dark)
    assert browser.run("document.documentElement.dataset.drawn") == "4"
    assert browser.run("document.querySelectorAll('.js-plotly-plot .main-svg').length") >= 4
    text = browser.run("document.body.innerText")
    order = ["7 of the 8 published values that were run are met", "Does it work?", "All values", "A figure", "First"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert "87.16" not in text  # folded
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    # Letters can be read: their contrast with the paper is above 4.5 to 1, as the accessibility guidelines ask.
    for selector in ("body", ".note", ".legend button"):
        ink = f"getComputedStyle(document.querySelector('{selector}')).color"
        assert contrast(*browser.run(f"[{ink}, getComputedStyle(document.body).backgroundColor]")) > 4.5


def test_every_cell_says_what_it_is_and_bold_is_what_the_legend_says(browser, report):
    visit(browser, report)
    browser.click("nav a[href='#s1']")
    browser.wait("document.getElementById('s1').open")
    rows = browser.run(
        "[...document.querySelectorAll('#s1 tbody tr:not(.group)')].map(row => [...row.children].map(c => c.innerText))"
    )
    words = [" ".join(cell.split()) for cell in rows[1]]
    assert words == ["here", "87.16 ± 0.11 ✓ met", "87.16 ± 0.11 ✗ missed", "87.16 ± 0.11 ○ not published", "not run"]
    assert browser.run("[...document.querySelectorAll('#s1 td b')].map(b => b.innerText)") == ["87.16 ± 0.11"]
    assert browser.run("document.querySelector('#s1 summary').innerText").split("First")[1].split() == (
        ["1", "met,", "1", "missed,", "1", "not", "published,", "1", "not", "run"]
    )


def test_tools_and_legend_do_not_lie_over_the_data_and_are_of_all_panels(browser, report):
    visit(browser, report)
    fields = browser.run(
        "[...document.querySelectorAll('.plot')].map(plot => [plot.querySelector('.modebar'),"
        " plot.querySelector('.nsewdrag')].map(part => part.getBoundingClientRect().toJSON()))"
    )
    assert len(fields) == 4
    for tools, field in fields:
        assert tools["bottom"] <= field["top"] + 1
    assert place(browser, "#s1-figure .legend")[3] <= place(browser, "#s1-figure .panels")[1]
    assert not browser.run("document.querySelectorAll('.plot .legend').length")
    # The panels of a figure have the same axes, and one legend.
    ranges = browser.run(
        "[1, 2].map(n => ['xaxis', 'yaxis'].map(a => document.getElementById('plot' + n).layout[a].range))"
    )
    assert ranges[0] == ranges[1]
    shown = "[1, 2].map(n => document.getElementById('plot' + n).data.map(line => [line.name, line.visible]))"
    assert browser.run(shown) == [[["one", True], ["two", True], ["one", True]], [["two", True]]]
    browser.click("#s1-figure .legend button")
    assert browser.run(shown) == [[["one", False], ["two", True], ["one", False]], [["two", True]]]
    assert browser.run("document.querySelector('#s1-figure .legend button').getAttribute('aria-pressed')") == "false"
    # The paper's value is a star in the colour of its line; the bounds stand at the points.
    star = browser.run("(({marker, y}) => [marker.symbol, y[0]])(document.getElementById('plot1').data[2])")
    assert star == ["star-open", 55]
    assert set(browser.run("document.getElementById('plot1').data[0].text")) <= {"", *(f"{b:g}" for b in BOUNDS)}
    link = browser.run("(a => [a.download, atob(a.href.split(',')[1])])(document.querySelector('#s1-figure .data'))")
    assert link[0] == "s1-figure.csv" and len(link[1].splitlines()) == 1 + 6 + 6 + 1 + 2


def hostile_sections():
    table = Table(HOSTILE, [HOSTILE] * 3, [[HOSTILE] * 3], [(0, HOSTILE)], frozenset({(0, 2)}), [HOSTILE], True, lead=2)
    lines = [
        Line(HOSTILE, [0, 1], [1, 2], texts=[HOSTILE, "b"]),
        Line(HOSTILE + "2", [0, 1], [1, 3], hints=[HOSTILE] * 2),
    ]
    panel = Panel(HOSTILE, HOSTILE, HOSTILE, lines, published=[Line(HOSTILE, [1], [1], kind="marks")])
    pictures = Images(HOSTILE, [(HOSTILE, [[[0, 255]]])])
    figure = Figure(HOSTILE, [panel], [pictures], [HOSTILE])
    parts = [table, replace(table, aside=False), figure]
    return [Section(HOSTILE, HOSTILE, parts, [HOSTILE], [(HOSTILE, HOSTILE)]), Section("f", HOSTILE, [figure])]


def innocent(browser, file):
    """Open a page, touch what can be touched, and see that nothing of what was put in it has run."""
    visit(browser, file)
    browser.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    browser.run("Plotly.Fx.hover('plot0', [{curveNumber: 0, pointNumber: 0}])")
    browser.run("document.querySelectorAll('.legend button').forEach(button => button.click())")
    browser.run("new Promise(done => setTimeout(() => done(1), 100))")
    assert browser.run("window.hacked") is None and not browser.errors
    assert asked(browser) == [f"file://{file}"]
    assert not browser.run('document.querySelectorAll(\'a[href^="javascript"], a[*|href^="javascript"]\').length')
    # Even a script that got in would not run: the page's policy knows its own alone.
    browser.run("document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.hacked = 1'>`)")
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 2';"
        " document.body.append(s); })()"
    )
    browser.run("fetch('http://127.0.0.1:9/').catch(() => 0)")
    browser.run("new Promise(done => setTimeout(() => done(1), 100))")
    assert browser.run("window.hacked") is None
    assert any("Content Security Policy" in error for error in browser.errors)
    assert not [address for address in browser.requests if address.startswith("http")]


def test_hostile_words_do_not_run(browser, tmp_path):
    file = tmp_path / "report.html"
    summary = Summary(1, 1, 1, 3, hostile_sections()[0].parts[1], hostile_sections()[1].parts[0], TABLE, TABLE)
    file.write_text(page(HOSTILE, hostile_sections(), {HOSTILE: HOSTILE}, [{HOSTILE: HOSTILE}], summary))
    visit(browser, file)
    assert browser.run("document.querySelector('h1').textContent") == HOSTILE
    assert browser.run("document.querySelector('.legend button').dataset.line") == HOSTILE
    assert "<script>" in browser.run("document.querySelector('#plot0 .xtitle').textContent")  # as text, with its tags
    innocent(browser, file)


def test_hostile_data_of_a_figure_do_not_run(browser, tmp_path):
    quoted = HOSTILE.replace('"', '""')
    rows = [f'"{quoted}","{quoted}",line,"{quoted}",{x},"{quoted}",{x},,"{quoted}"' for x in (1, 2)]
    (tmp_path / "figure-5.csv").write_text("\n".join(["panel,line,kind,x_name,x,y_name,y,std,text", *rows]) + "\n")
    made = build_report([find_experiment("figure-5")], tmp_path / "runs", tmp_path / "out.html", figures=tmp_path)
    assert made.sections[0].parts[0].panels[0].title == HOSTILE
    innocent(browser, made.page)
    assert read_figure(made.folder / "figure-5.csv", "").panels[0].lines == made.sections[0].parts[0].panels[0].lines


def test_nothing_in_it_is_fetched_and_it_is_small(report):
    text = report.read_text()
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text) and len(text) < 3_000_000
    # Plotly is only there if something is drawn.
    assert len(page("t", [Section("s", "S", [TABLE])], {}, [])) < 30_000
