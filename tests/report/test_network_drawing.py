"""Schematics: what is in them, that it fits, and the command that draws them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import polybound as pb
from helpers.browser import contrast
from polybound.models import register_model
from polybound.report import draw_figure_1, draw_network, network_svg

IMAGES = Path(__file__).parents[2] / "docs" / "images"
HOSTILE = "</title><script>window.owned = 1</script>&amp;<img src=x onerror=alert(1)> \x00\ud800 ]]> _x_ " + 300 * "W"

NETWORKS = {
    "pn-4": pb.paper_model("pn-4", seed=0),
    "pn-10": pb.paper_model("pn-10", seed=0),
    "pn-conv": pb.paper_model("pn-conv", shape=(3, 32, 32), classes=100, seed=0),
    "ncp-4": pb.paper_model("ncp-4", seed=0),
    "ncp-10": pb.NCP(784, 16, 10, degree=10, seed=0),
    "product": pb.CCP(30, 5, 3, degree=3, form="product", seed=0),
    "degree 1": pb.CCP(30, 5, 1, degree=1, seed=0),
    "nested, degree 1": pb.NCP(30, 5, 3, degree=1, seed=0),
    "long": pb.NCP(30, 5, 3, degree=200, seed=0),
    "stack": pb.CCP(30, 5, 3, degree=2, runs=7, seed=0),
    "sound": pb.ConvCCP((2, 64), channels=3, classes=4, degree=5, kernel=3, pool=(1, 2, 5), seed=0),
    "large": pb.CCP(2_000_000, 1, 12_345, degree=2, seed=0),
    HOSTILE: pb.CCP(30, 5, 3, degree=2, seed=0),
}


def elements(svg, tag, kind=""):
    found = ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}")
    return [element for element in found if kind in element.get("class", "")]


def texts(svg):
    return ["".join(element.itertext()) for element in elements(svg, "text")]


def circles(svg):
    """How many products and sums there are."""
    return len(elements(svg, "circle", "pb-dot")), len(elements(svg, "path", "pb-sign"))


@pytest.mark.parametrize("degree", [1, 2, 7])
def test_a_residual_network_has_a_sum_around_each_product(degree):
    svg = network_svg(pb.CCP(20, 6, 3, degree, seed=0))
    assert circles(svg) == (degree - 1, degree - 1)
    assert [f"V{n}" for n in range(1, degree + 1)] == [text for text in texts(svg) if re.fullmatch(r"V\d+", text)]
    assert texts(svg).count("6 × 20") == degree and "3 × 6" in texts(svg) and "3 outputs" in texts(svg)


@pytest.mark.parametrize("degree", [1, 2, 7])
def test_a_nested_network_has_a_map_between_two_products(degree):
    svg = network_svg(pb.NCP(20, 6, 3, degree, seed=0))
    assert circles(svg) == (degree, 0) and "s1" in texts(svg)
    assert texts(svg).count("6 × 20") == degree and texts(svg).count("6 × 6") == degree - 1


def test_the_product_form_is_drawn_on_the_lifted_input():
    svg = network_svg(pb.CCP(20, 6, 3, 4, form="product", seed=0))
    assert circles(svg) == (3, 0) and texts(svg).count("6 × 21") == 4 and "= [x, 1]" in texts(svg)
    assert "with bias" not in texts(svg)


def test_pn_conv_shares_its_pre_convolution_and_pools():
    svg = network_svg(pb.paper_model("pn-conv", seed=0))
    assert circles(svg) == (3, 3) and texts(svg).count("pre") == 1 and texts(svg).count("convolution 7 × 7") == 4
    # After degrees 2 and 3 on the products' way, and once on that of each later factor.
    assert texts(svg).count("average pool") == 4 and texts(svg).count("28 × 28 → 14 × 14") == 2
    assert "28 × 28 → 7 × 7" in texts(svg) and "10 × 784" in texts(svg) and "y4: 16 × 7 × 7" in texts(svg)


def test_the_middle_of_a_high_degree_is_left_out_and_said_to_be():
    assert "factors 5 to 198: the same" in texts(network_svg(NETWORKS["long"]))
    assert not [text for text in texts(network_svg(pb.NCP(30, 5, 3, degree=16))) if "the same" in text]


def test_a_model_of_ones_own(tmp_path, cli):
    register_model(
        "drawn", "for a test", lambda shape, classes, rank, **more: pb.NCP(9, rank, classes, 3, shape=shape, **more)
    )
    done = cli("draw", "drawn", "--shape", "1,3,3", "--classes", "4", "--rank", "6", cwd=tmp_path)
    assert done.out == "wrote drawn.svg\n" and {"6 × 9", "4 × 6"} <= set(texts((tmp_path / "drawn.svg").read_text()))


# All texts inside of their boxes, or clear of all boxes; boxes clear of each other; all of it on the paper.
MISFITS = """(() => [...document.querySelectorAll('svg')].map((svg) => {
  const misfits = [], all = (q) => [...svg.querySelectorAll(q)];
  const paper = svg.querySelector('.pb-paper').getBoundingClientRect();
  const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const at = (e) => e.getBoundingClientRect();
  const shapes = all('rect:not(.pb-paper), circle:not(.pb-dot)').map(at), words = all('text').map((e) => [e, at(e)]);
  const lines = all('path.pb-line').flatMap((e) => {
    const n = Math.ceil(e.getTotalLength() / 2), box = at(svg);
    return Array.from({length: n + 1}, (_, i) => e.getPointAtLength(2 * i)).map((p) => [p.x + box.left, p.y + box.top]);
  });
  words.forEach(([e, box], i) => {
    const near = shapes.filter((shape) => !apart(shape, box));
    if (near.length > 1 || (near.length && !inside(box, near[0])) || !inside(box, paper)) misfits.push(e.textContent);
    if (lines.some(([x, y]) => x > box.left && x < box.right && y > box.top && y < box.bottom)) misfits.push(e.textContent);
    if (words.some(([, other], j) => j > i && !apart(box, other) && !inside(other, shapes.find((s) => inside(box, s)) ?? other))) misfits.push(e.textContent);
  });
  shapes.forEach((shape, i) => {
    if (!inside(shape, paper) || shapes.some((other, j) => j > i && !apart(shape, other))) misfits.push('a shape');
  });
  return misfits;
}))()"""


def test_everything_fits_in_a_browser(browser, tmp_path):
    drawings = [network_svg(model, title=name) for name, model in NETWORKS.items()]
    drawings.append(draw_figure_1(tmp_path / "figure.svg").read_text())
    (tmp_path / "all.html").write_text("<meta charset=utf-8>" + "\n".join(drawings), encoding="utf-8")
    browser.open(tmp_path / "all.html", width=1300)
    found = dict(zip([*NETWORKS, "figure 1"], browser.run(MISFITS), strict=True))
    assert found == {name: [] for name in found}
    assert browser.run("window.owned") is None and browser.run("document.querySelectorAll('img').length") == 0
    assert not browser.errors and browser.requests == [f"file://{tmp_path / 'all.html'}"]


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_what_is_behind_them(browser, tmp_path, dark):
    browser.open(draw_network(NETWORKS["pn-conv"], tmp_path / "n.svg"), dark=dark)
    pairs = browser.run(
        "(() => { const fill = (q) => getComputedStyle(document.querySelector(q)).fill; return ['.pb-paper', '.pb-learned',"
        " '.pb-operation', '.pb-input', '.pb-output'].flatMap((q) => [[fill(q), fill('.pb-name')], [fill(q), fill('.pb-soft')]]); })()"
    )
    for pair in pairs:
        # 4.5 is what the accessibility guidelines ask for of small text.
        assert contrast(*pair) >= 4.5, pair


@pytest.mark.parametrize(
    ("name", "file"), [("pn-4", "ccp.svg"), ("ncp-4", "ncp.svg"), ("pn-conv", "pn-conv.svg"), ("", "figure-1.svg")]
)
def test_the_pictures_of_the_docs_are_what_the_package_draws(name, file, tmp_path, cli):
    words = ("draw", name) if name else ("reproduce", "figure-1")
    done = cli(*words, "-o", tmp_path / file)
    assert done.code == 0 and (tmp_path / file).read_bytes() == (IMAGES / file).read_bytes()


def test_files_and_names(tmp_path, cli):
    pb.example("digits").save(tmp_path / "a.b.safetensors")
    assert cli("draw", "a.b.safetensors", cwd=tmp_path).out == "wrote a.b.svg\n"
    facts = cli("draw", "digits-bound-1", "--json", "--title", HOSTILE[:20], cwd=tmp_path).json
    assert facts == {"file": "digits-bound-1.svg", "kind": "CCP", "degree": 4, "features": 64, "classes": 10}
    run = cli("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path / "runs", "--json")
    folder = next(path for path in (tmp_path / "runs").iterdir() if (path / "spec.json").exists())
    done = cli("draw", folder, cwd=tmp_path)
    assert run.code == done.code == 0 and "16 × 64" in texts((tmp_path / f"{folder.name}.svg").read_text())


def test_only_polynomial_networks_have_a_schematic():
    import torch

    with pytest.raises(pb.PolyboundError, match="got Linear"):
        network_svg(torch.nn.Linear(2, 2))


def test_figure_1_is_listed(cli):
    assert [one["name"] for one in cli("experiments", "--json").json if "figure" in one["name"]][:2] == [
        "figure-1",
        "figure-2",
    ]
