"""The explorer in a real browser, without a network, against Python: logits, attacks, certificates, every control."""

import json
import re
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from polybound.data import Dataset
from polybound.report import Feature, build_explorer

READY = "window.explorer && Number(document.documentElement.dataset.shown) > 0"


@pytest.fixture(scope="module")
def digits():
    return pb.data.load_digits("test")


@pytest.fixture(scope="module")
def networks():
    return {"plain": pb.example("digits"), "projected": pb.example("digits-bound-1")}


@pytest.fixture(scope="module")
def page(tmp_path_factory, networks, digits):
    return build_explorer(networks, digits, tmp_path_factory.mktemp("page") / "e.html", images=12, budget=0.01)


def visit(browser, page, **window):
    browser.open(page, **window)
    browser.wait(READY)


def settled(browser):
    """Wait for the next frame, in which the page shows what was changed."""
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def text(browser, selector):
    settled(browser)
    return browser.run(f"document.querySelector({json.dumps(selector)}).innerText")


def computed(browser, index, x, y, eps, attack):
    """Labels, logits, attacked inputs and radii of inputs as the page computes them."""
    found = browser.run(
        f"(() => {{ const e = explorer, n = e.networks[{index}], ys = {json.dumps(y.tolist())};"
        f" return {json.dumps(x.flatten(1).tolist())}.map((v, i) => {{ const x = Float32Array.from(v);"
        f" const c = e.compute(n, x, ys[i], {eps}, '{attack}'); const r = e.radii(n, x, ys[i], null);"
        " return [Array.from(c.clean.logits), Array.from(c.attacked), r.first, r.lipschitz, Array.from(c.after.logits)];"
        " }); })()"
    )
    columns = [torch.tensor([row[i] for row in found], dtype=torch.float64) for i in range(5)]
    return dict(zip(["logits", "attacked", "first", "lipschitz", "after"], columns, strict=True))


def proven(model, x, y, radius, domain):
    """Whether Python's first stage proves all inputs of a positive radius up to it."""
    keep = radius > 0
    found = pb.certify(model, x[keep], y[keep], radius[keep], domain=domain, method="first")
    return found.status == ["verified"] * int(keep.sum())


def margin(logits, y):
    """The label's logit less the largest other one."""
    return (logits.gather(1, y.unsqueeze(1)) - logits.scatter(1, y.unsqueeze(1), -torch.inf).amax(1, True)).squeeze(1)


def by_lipschitz(model, x, y):
    """The margins at the inputs, divided by twice the Lipschitz constant."""
    margins = margin(deepcopy(model).double()(x.double()).detach(), y)
    return margins.clamp_min(0) / (2 * float(pb.lipschitz(model, method="rowwise", radius=1.0)))


@pytest.mark.parametrize("index", [0, 1])
def test_fifty_images_as_in_python(browser, page, networks, digits, index):
    visit(browser, page)
    model, x, y = list(networks.values())[index], digits.x[:50], digits.y[:50]
    exact, wide = deepcopy(model).double(), x.double()
    found = computed(browser, index, x, y, 0.1, "none")
    assert (found["logits"] - model(x)).abs().max() < 1e-4
    assert torch.equal(found["attacked"], wide.flatten(1))
    assert proven(model, x, y, found["first"], digits.domain)
    limit = by_lipschitz(model, x, y)
    assert (found["lipschitz"] <= limit).all() and (found["lipschitz"] >= 0.9999 * limit).all()
    ours = pb.certified_radius(model, x, y, domain=digits.domain, method="first", tolerance=1e-4).certified
    # Never larger, but for how close both bisections get; and of use.
    assert (found["first"] <= ours + 1e-4).all() and (found["first"] >= ours * 0.99 - 1e-4).all()
    for name, attack in (("fgsm", pb.FGSM(0.1)), ("pgd", pb.PGD(0.1, 20, random_start=False))):
        found = computed(browser, index, x, y, 0.1, name)
        peer = attack(exact, wide, y, domain=digits.domain)
        away = (found["attacked"] - peer.flatten(1)).abs()
        assert (away > 1e-5).float().mean() < 1e-3 and (found["attacked"] - wide.flatten(1)).abs().max() <= 0.1
        assert found["attacked"].min() >= -1.0 and found["attacked"].max() <= 1.0
        right = (found["after"].argmax(1) == y).sum() - (exact(peer).argmax(1) == y).sum()
        assert right == 0 and (found["after"] - exact(found["attacked"])).abs().max() < 1e-9


def random_data(shape, classes, seed=0):
    x = 2 * torch.rand(12, *shape, generator=torch.Generator().manual_seed(seed)) - 1
    return Dataset("random", "test", x, torch.zeros(12, dtype=torch.int64), tuple(f"c{i}" for i in range(classes)))


@pytest.mark.parametrize(
    "model",
    [
        pb.NCP(36, 7, 3, degree=4, shape=(1, 6, 6), seed=0),
        pb.NCP(36, 5, 4, degree=3, shape=(1, 6, 6), seed=1, dtype=torch.float64),
        pb.CCP(36, 6, 3, degree=6, form="product", shape=(1, 6, 6), seed=2),
        pb.ConvCCP((1, 6, 6), classes=3, degree=3, channels=2, kernel=3, pool=(2,), seed=3),
        pb.ConvCCP((1, 6, 6), classes=3, degree=3, channels=2, seed=3),
    ],
    ids=lambda model: f"{type(model).__name__}-{model.degree}-{model.classes}",
)
def test_other_networks_as_in_python(browser, tmp_path, model):
    data = random_data((1, 6, 6), model.classes)
    data = replace(data, y=model(data.x.to(next(model.parameters()).dtype)).argmax(1))
    visit(browser, build_explorer({"net": model}, data, tmp_path / "e.html", images=1, budget=0.0))
    exact = deepcopy(model).double()
    found = computed(browser, 0, data.x, data.y, 0.05, "pgd")
    assert (found["logits"] - exact(data.x.double())).abs().max() < 1e-9
    assert proven(model, data.x, data.y, found["first"], data.domain)
    assert (found["lipschitz"] <= by_lipschitz(model, data.x, data.y)).all()
    peer = pb.PGD(0.05, 20, random_start=False)(exact, data.x.double(), data.y, domain=data.domain)
    assert ((found["attacked"] - peer.flatten(1)).abs() > 1e-5).float().mean() < 1e-3
    assert (found["first"] > 0).any() and (found["first"] >= found["lipschitz"] - 1e-9).all()
    assert not browser.errors


def test_what_certify_proved_is_shown_for_test_images_only(browser, page, networks, digits):
    visit(browser, page)
    found = pb.certified_radius(
        networks["plain"], digits.x[:1], digits.y[:1], domain=digits.domain, budget=0.01, largest=2.0
    )
    shown = text(browser, ".proven .ruler-text")
    low, high = (float(number) for number in re.fullmatch(r"safe to ([\d.]+), broken at ([\d.]+)", shown).groups())
    assert float(found.certified[0]) - 1e-3 <= low <= float(found.certified[0])
    assert float(found.attacked[0]) <= high <= float(found.attacked[0]) + 1e-3
    assert text(browser, ".proven .soft") == "when this page was made"
    assert text(browser, ".first .soft") == "in this page, live"
    browser.click("#clear")
    assert text(browser, ".proven .ruler-text") == "only for the test inputs"


def test_the_verdict_says_who_proved_what(browser, page):
    visit(browser, page)

    def at(eps, attack):
        browser.click(f"input[value={attack}]")
        browser.run(
            f"{{ const e = document.getElementById('eps'); e.value = {eps}; e.dispatchEvent(new Event('input')) }}"
        )
        return text(browser, ".verdict")

    first, found = browser.run(
        "(() => { const e = explorer, r = e.radii(e.networks[0], e.images[0], e.data.y[0], 0); return [r.first, r.proven]; })()"
    )
    assert first < 0.09 < found["certified"] < found["attacked"] < 0.12
    assert "proven in this page: no attack" in at(0.05, "pgd")
    assert "proven by polybound certify: no attack" in at(0.09, "pgd")
    assert "polybound certify found one that works" in at(0.12, "none")
    assert "The attack works: “7” becomes" in at(0.2, "pgd")
    browser.click("#clear")
    assert "nothing is proven at this eps" in at(0.45, "none")


def test_every_control_by_mouse(browser, page):
    visit(browser, page)
    browser.click(".thumb:nth-child(5)")
    assert browser.run("explorer.state.chosen") == 4 and "Image 5 of 12" in text(browser, "#chosen")
    for attack in ("none", "fgsm", "pgd"):
        browser.click(f"input[value={attack}]")
        assert browser.run("explorer.state.attack") == attack
        changed = text(browser, ".bars tr:nth-child(2) .value:last-child")
        assert (changed == "") == (attack == "none")
    left, top = browser.centre("#pad")
    browser.drag([(left - 60, top - 60), (left, top), (left + 60, top - 60)])
    assert browser.run("explorer.state.chosen") is None and "Your own image" in text(browser, "#chosen")
    assert browser.run("explorer.state.x[27] === 1 || explorer.state.x[28] === 1")
    browser.click("input[value=erase]")
    browser.drag([browser.centre("#pad")])
    assert browser.run("explorer.state.x[27]") < 0
    browser.click("#clear")
    assert browser.run("explorer.state.x.every(v => v === -1)")
    browser.click("#reset")
    assert browser.run("explorer.state.chosen") == 4
    browser.click("summary")
    assert "margin / (2 L)" in text(browser, "details")
    assert not browser.errors and browser.requests == [f"file://{page}"]


def test_every_control_by_keyboard(browser, page):
    visit(browser, page)
    browser.run("document.querySelector('.thumb').focus()")
    browser.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert browser.run("explorer.state.chosen") == 1
    browser.press("End")
    assert browser.run("explorer.state.chosen") == 11
    browser.run("document.getElementById('eps').focus()")
    before = browser.run("explorer.state.eps")
    browser.press("ArrowRight", "ArrowRight")
    assert browser.run("explorer.state.eps") == pytest.approx(before + 0.01)
    assert text(browser, "#eps-value") == f"{before + 0.01:.3f}"
    browser.run("document.querySelector('input[value=pgd]').focus()")
    browser.press("ArrowLeft")
    assert browser.run("explorer.state.attack") == "fgsm"
    browser.click("#clear")
    browser.run("document.getElementById('pad').focus()")
    browser.press("ArrowRight", "ArrowDown", "ArrowDown", " ")
    assert browser.run("explorer.state.x[2 * 8 + 1]") == 1 and "column 2, row 3" in text(browser, "#pad-status")
    browser.press("Backspace")
    assert browser.run("explorer.state.x[2 * 8 + 1]") == -1
    # Everything that can be used can be reached by the tab key, and all of the list box is one stop.
    browser.run("document.activeElement.blur()")
    reached = set()
    for _ in range(12):
        browser.press("Tab")
        reached.add(browser.run("document.activeElement.id || document.activeElement.className || ''"))
    assert {"pad", "brush", "clear", "reset", "thumb", "eps"} <= reached and not browser.errors


def test_radii_while_drawing_are_proven_too(browser, page, networks, digits):
    """Each search begins at the radius of the image before: what it finds does not depend on that."""
    visit(browser, page)
    model, x = networks["projected"], digits.x[:12].clone()
    # A stroke that grows from image to image, over the first digit.
    for i in range(12):
        x[i] = digits.x[0]
        x[i, 0, 3, : i % 8 + 1] = 1.0
    found = browser.run(
        f"(() => {{ const e = explorer, n = e.networks[1]; let r = null; return {json.dumps(x.flatten(1).tolist())}.map((v) => {{"
        " const x = Float32Array.from(v), cold = e.radii(n, x, null, null).first; r = e.radii(n, x, null, null, r);"
        " const odd = e.radii(n, x, null, null, {first: 1.9, rival: 3}).first; return [cold, r.first, odd]; }); })()"
    )
    radii, labels = torch.tensor(found, dtype=torch.float64), model(x).argmax(1)
    assert (radii > 0).all() and (radii.amax(1) / radii.amin(1) < 1.002).all()
    for column in radii.T:
        assert proven(model, x, labels, column, digits.domain)


def test_a_radius_ends_where_the_domain_does(browser, tmp_path):
    """A class that always wins, and by far: every point of the domain is within the radius."""
    model = pb.CCP.from_factors([torch.zeros(2, 3)], torch.zeros(2, 2), torch.tensor([5.0, 0.0]))
    visit(browser, build_explorer({"flat": model}, random_data((3,), 2), tmp_path / "e.html", budget=0.0))
    assert browser.run("explorer.radii(explorer.networks[0], explorer.images[0], 0, null).first") == 2.0
    assert browser.run("explorer.radii(explorer.networks[0], explorer.images[0], 1, null).first") == 0.0


def test_a_finger_draws_on_a_phone(browser, page):
    visit(browser, page, width=400, height=800)
    left, top = browser.centre("#pad")
    browser.click("#clear")
    left, top = browser.centre("#pad")
    browser.touch([(left - 60, top - 60), (left + 60, top + 60)])
    settled(browser)
    assert browser.run("explorer.state.x.filter(v => v > 0).length") > 5


HOSTILE = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>{{7*7}}@@script@@"


def test_hostile_names_are_text_and_nothing_is_fetched(browser, tmp_path, networks, digits):
    names = (HOSTILE, *digits.class_names[1:])
    data = replace(digits, name=HOSTILE, note=HOSTILE, class_names=names)
    page = build_explorer({HOSTILE: networks["plain"]}, data, tmp_path / "e.html", images=1, budget=0.0, title=HOSTILE)
    visit(browser, page)
    assert browser.run("window.owned") is None and browser.run("document.querySelectorAll('img').length") == 0
    assert text(browser, "h1") == HOSTILE == browser.run("document.title") == text(browser, ".card h2")
    assert text(browser, ".bars tr:nth-child(2) th").endswith(HOSTILE) and HOSTILE in text(browser, "#facts")
    assert not browser.errors and browser.requests == [f"file://{page}"]


REQUESTS = {
    "fetch": "fetch('http://127.0.0.1:9/x')",
    "beacon": "navigator.sendBeacon('http://127.0.0.1:9/x', 'x')",
    "socket": "new WebSocket('ws://127.0.0.1:9/x')",
    "events": "new EventSource('http://127.0.0.1:9/x')",
    "old request": "(() => { const r = new XMLHttpRequest(); r.open('GET', 'http://127.0.0.1:9/x'); r.send(); })()",
    "worker": "new Worker('data:text/javascript,1')",
    "frame": "document.body.append(Object.assign(document.createElement('iframe'), {src: 'http://127.0.0.1:9/x'}))",
    "font": "document.fonts.add(new FontFace('x', 'url(http://127.0.0.1:9/x)')) && document.fonts.load('1px x')",
    "style": "document.body.insertAdjacentHTML('beforeend', '<link rel=stylesheet href=\"http://127.0.0.1:9/x\">')",
    "image": "new Image().src = 'http://127.0.0.1:9/x'",
    "text as code": "setTimeout('window.owned = 4')",
    "handler": "document.body.insertAdjacentHTML('beforeend', '<p onclick=\"window.owned = 5\" id=bad>')"
    " || document.getElementById('bad').click()",
}


def test_the_policy_forbids_every_request(browser, page):
    visit(browser, page)
    for way, request in REQUESTS.items():
        blocked = browser.run(
            "new Promise((done) => { document.addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective),"
            f" {{once: true}}); setTimeout(() => done('allowed'), 5000); try {{ const r = {request};"
            " r && r.catch && r.catch(() => 0); } catch { } })"
        )
        settled(browser)  # what this one was refused is over before the next one asks
        assert blocked != "allowed" and browser.run("window.owned") is None, way


def test_a_table_has_sliders_in_its_units(browser, tmp_path):
    model = pb.CCP(3, 4, 2, degree=2, seed=0)
    data = replace(random_data((3,), 2), class_names=("no", "yes"))
    features = [Feature("age", 40.0, 30.0), Feature(HOSTILE), Feature("height", 170.0, 30.0)]
    visit(browser, build_explorer({"table": model}, data, tmp_path / "e.html", features=features, budget=0.0))
    assert browser.run("document.getElementById('pad')") is None
    value = browser.run("explorer.state.x[0]")
    assert float(text(browser, ".feature output")) == pytest.approx(40 + 30 * value, rel=1e-2)
    browser.run("document.querySelector('.feature input').focus()")
    browser.press("ArrowRight")
    assert browser.run("explorer.state.x[0]") == pytest.approx(value + 0.02) and "feature" in text(browser, "#controls")
    browser.click("#clear")
    assert float(text(browser, ".feature output")) == 40.0 and not browser.errors
    refuses("2 features are named", build_explorer, {"table": model}, data, tmp_path / "e.html", features=features[:2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"networks": {}}, "one network or two"),
        ({"networks": {"n": pb.CCP(9, 4, 10, degree=2)}}, "the model takes"),
        ({"networks": {"n": pb.CCP(64, 4, 3, degree=2)}}, "10 classes, the model 3"),
        ({"networks": {"n": pb.CCP(64, 4, 10, degree=2, runs=2)}}, "stack of 2"),
        ({"networks": {"n": pb.CCP(64, 20_000, 10, degree=4)}}, "5,120,000 weights"),
        ({"path": "nowhere/e.html"}, "no such folder"),
    ],
)
def test_what_cannot_be_shown_is_refused(tmp_path, networks, digits, change, message):
    options = {"networks": networks, "data": digits, "path": tmp_path / "e.html"} | change
    refuses(message, build_explorer, **options)
    assert not list(tmp_path.iterdir())
