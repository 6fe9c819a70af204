"""Schematics: what is in them, that it fits, and the command that draws them."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given

import polybound as pb
from helpers.browser import contrast
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import Written, layers
from polybound.models import register_model
from polybound.report import draw_figure_1, draw_network, network_svg

IMAGES = Path(__file__).parents[2] / "docs" / "images"
HOSTILE = "</title><script>window.owned = 1</script>&amp;<img src=x onerror=alert(1)> \x00\ud800 ]]> _x_ " + 300 * "W"


def wiring(m, x):
    """Side branches that are used twice, a square, a product that nothing stands above, sums of three."""
    a, b = m.a(x), m.b(x)
    c = m.c(a * b)
    e = (a * c) * (b * c) + x + a
    g = torch.cat([e * a, m.b(b * b)], 1)[:, 3:11]
    return m.a_layer_with_a_name_of_forty_letters(g * x + e)


LAST = {"a_layer_with_a_name_of_forty_letters": torch.nn.Linear(8, 4)}


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
    "polynet": pb.PolyNet((3, 32, 32), width=8, blocks=(1, 2, 1), seed=0),
    "twenty blocks": pb.PolyNet((1, 16, 16), width=2, blocks=(9, 11), seed=0),
    "wiring": pb.polynomial(Written(wiring, **layers(8, 8, "abc"), **LAST), (8,)),
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


def test_patterns_of_large_networks_are_left_out_and_said_to_be():
    assert "197 more of the same" in texts(network_svg(NETWORKS["long"]))
    assert {"7 more of the same", "9 more of the same"} <= set(texts(network_svg(NETWORKS["twenty blocks"])))
    assert not [text for text in texts(network_svg(pb.NCP(30, 5, 3, degree=16))) if "the same" in text]


def two_ways(steps):
    """A network in which two values go from each step to the next, so that no gap can stand for both."""
    builder = pb.models.Builder()
    a = b = builder.input((3,))
    for _ in range(steps):
        c, d = (builder.affine(pb.models.Dense(torch.randn(3, 3)), value) for value in (a, b))
        a, b = builder.sum((c, b)), builder.sum((d, a))
    return pb.models.GraphNetwork.of(builder.finish(builder.sum((a, b)), fused=False))


def test_what_is_left_out_passes_on_one_value():
    svg = network_svg(two_ways(30))
    assert circles(svg) == (0, 61) and not [text for text in texts(svg) if "the same" in text]
    refuses("parts to draw; a picture has up to 1,000", network_svg, two_ways(300))


def test_a_box_of_many_maps_names_the_first_and_the_last():
    layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(7)))
    found = texts(network_svg(pb.polynomial(layers, (3,))))
    assert "0, …, 6" in found and found.count("3 × 3, bias") == 1


@given(graphs())
def test_every_node_of_any_graph_is_drawn(graph):
    svg = network_svg(pb.models.GraphNetwork.of(graph))
    kinds = [type(node).__name__ for node in graph.nodes]
    assert circles(svg) == (kinds.count("Product"), kinds.count("Sum"))


def test_a_model_of_ones_own(tmp_path, cli):
    register_model(
        "drawn", "for a test", lambda shape, classes, rank, **more: pb.NCP(9, rank, classes, 3, shape=shape, **more)
    )
    done = cli("draw", "drawn", "--shape", "1,3,3", "--classes", "4", "--rank", "6", cwd=tmp_path)
    assert done.out == "wrote drawn.svg\n" and {"6 × 9", "4 × 6, bias"} <= set(
        texts((tmp_path / "drawn.svg").read_text())
    )


# All texts inside of their boxes, or clear of all boxes; boxes clear of each other; all of it on the paper.
MISFITS = """(() => [...document.querySelectorAll('svg')].map((svg) => {
  const misfits = [], all = (q) => [...svg.querySelectorAll(q)];
  const paper = svg.querySelector('.pb-paper').getBoundingClientRect();
  const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const at = (e) => e.getBoundingClientRect();
  const shapes = all('rect:not(.pb-paper, .pb-frame), circle:not(.pb-dot)').map(at), words = all('text').map((e) => [e, at(e)]);
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


def test_the_picture_of_a_deep_network_in_the_docs_is_what_the_package_draws():
    deep = pb.PolyNet((3, 32, 32), width=16, blocks=(1, 1), seed=0)
    assert network_svg(deep, title="PolyNet") == (IMAGES / "polynet.svg").read_text(encoding="utf-8")


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
    refuses("got Linear", network_svg, torch.nn.Linear(2, 2))


def test_figure_1_is_listed(cli):
    names = [one["name"] for one in cli("experiments", "--json").json if "figure" in one["name"]]
    assert names[:2] == ["figure-1", "figure-2"]
