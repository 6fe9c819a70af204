"""The site that `make docs` built, in a real browser, from disk and without a network."""

from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "build" / "docs"
FORMULAS = ("ideas/theorems", "bounds", "certificates")
LOOKED_AT = ("index", "explorer", "tutorials/own-table", "ideas/networks", "results/index", "reference/cli", *FORMULAS)
pytestmark = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="`make docs` was not run")


def outside(browser):
    return [address for address in browser.requests if not address.startswith(("file:", "data:", "blob:", "about:"))]


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_asks_for_nothing_and_fits(browser, name):
    for width, dark in ((1300, False), (400, True)):
        browser.open(SITE / f"{name}.html", width=width, dark=dark)
        assert outside(browser) == [] and browser.errors == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        scheme = "slate" if dark else "default"
        assert browser.run("document.body.getAttribute('data-md-color-scheme')") == scheme
        assert browser.run("[...document.images].every(image => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_drawn_by_the_browser(browser, name):
    browser.open(SITE / f"{name}.html")
    drawn = "[...document.querySelectorAll('math')].filter(math => math.getBoundingClientRect().width > 0).length"
    assert browser.run(drawn) > 50
    words = "[...document.querySelectorAll('article p, article li')].map(e => e.innerText).join('')"
    assert "$" not in browser.run(words)


def test_the_search_finds_something_from_disk(browser):
    browser.open(SITE / "index.html")
    browser.run("document.querySelector('label[for=__search]').click()")
    browser.run(
        "(() => { const field = document.querySelector('input.md-search__input'); field.focus();"
        " field.value = 'certified_radius'; field.dispatchEvent(new Event('input', {bubbles: true}));"
        " field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})); })()"
    )
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 0")
    assert "certified_radius" in browser.run("document.querySelector('.md-search-result__list').textContent")
    assert outside(browser) == [] and browser.errors == []


def test_the_explorer_runs_inside_its_page(browser):
    browser.open(SITE / "explorer.html")
    assert browser.run("document.querySelector('iframe.explorer').src.endsWith('/play.html')")
    browser.open(SITE / "play.html")
    assert outside(browser) == [] and browser.errors == []
    assert browser.run("document.querySelectorAll('canvas').length") > 0
