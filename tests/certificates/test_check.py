"""Files of proofs: honest ones are confirmed in ball arithmetic, and refused when anything in them is wrong."""

import copy
import json
import sys
from functools import cache

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.tampering import counted, refused
from polybound.certificates import check_file, save_certificates
from polybound.models import weights_digest

pytest.importorskip("flint")

SIZES = torch.tensor([0.0, 1e-9, 0.02, 0.1, 0.4], dtype=F64)


def drawn(model, seed, images):
    """Inputs, some at a side of the domain, with a radius below and above for each feature, and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    x[::2, 0] = 1.0
    down, up = (SIZES[torch.randint(0, len(SIZES), x.shape, generator=generator)] for _ in range(2))
    return x, down, up, model(x).argmax(1)


@settings(max_examples=examples(130))
@given(
    st.one_of(ccps(), ncps(), convs()),
    seeds,
    st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0, "features", "sides"]),
    st.sampled_from(["inf", "2"]),
    st.sampled_from(["usual", "narrow", "none"]),
)
def test_every_certificate_is_confirmed(tmp_path_factory, model, seed, eps, norm, limits):
    assume(model.classes > 1 and not (eps == "sides" and norm == "2"))
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    x, down, up, y = drawn(model, seed, 5)
    domain = {"usual": (-1.0, 1.0), "narrow": (x.amin(0) - 0.05, x.amax(0) + 0.05), "none": None}[limits]
    if eps == "sides":
        domain, options = None, {"box": (x - down, x + up)}
    else:
        options = {"eps": down if eps == "features" else eps, "norm": norm}
    found = pb.certify(model, x, y, **options, domain=domain, keep=True, budget=0.2)
    save_certificates(path, model, found, x, domain)
    assert check_file(path, model) == counted(found, x)


def bounded(model, eps, norm, seed=0, images=3, domain=(-1.0, 1.0), **options):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    x[::2, 0] = 1.0
    weights = torch.randn(2, model.classes, generator=generator, dtype=F64)
    options = {"weights": weights, "constant": [0.5, -1.0], "keep": True, "domain": domain, **options}
    return x, pb.output_bounds(model, x, eps, norm=norm, **options)


@settings(max_examples=examples(30))
@given(
    st.one_of(ccps(), ncps(), convs()),
    seeds,
    st.sampled_from([0.0, 1e-9, 0.05, 0.3, 1.0, None]),
    st.sampled_from(["inf", "2"]),
    st.booleans(),
    st.sampled_from(["auto", "auto", "second", "first"]),
)
def test_every_interval_is_confirmed(tmp_path_factory, model, seed, eps, norm, cut, method):
    path = tmp_path_factory.mktemp("proofs") / "intervals.json"
    radii = SIZES[torch.randint(0, 5, (1, model.features), generator=torch.Generator().manual_seed(seed))]
    domain = (-1.0, 1.0) if cut else None
    options = {"domain": domain, "method": method, "budget": 0.03}
    x, found = bounded(model, radii if eps is None else eps, norm, seed, 2, **options)
    save_certificates(path, model, found, x, domain)
    repeated = int(torch.equal(x[0], x[1]))
    assert check_file(path, model) == {"bounded": 2 - repeated, "unbounded": 0, "repeated": repeated}
    # What is in the file is what was found, but for a billionth of the interval and a trillionth of its ends.
    for entry, low, high in zip(json.loads(path.read_text())["images"], found.lower, found.upper, strict=True):
        wider = 2.0**-29 * (high - low) + 2.0**-39 * (low.abs() + high.abs())
        ends = {name: torch.tensor(entry[name], dtype=F64) for name in ("lower", "upper")}
        assert bool(((low - wider <= ends["lower"]) & (ends["lower"] <= low)).all())
        assert bool(((high <= ends["upper"]) & (ends["upper"] <= high + wider)).all())


# Honest files with every kind of step, and what makes them wrong.


def decisions(sizes, seed, scale, images, kind, **options):
    model = randomise(pb.CCP(*sizes, dtype=F64), seed, scale)
    x, down, up, y = drawn(model, seed, images)
    domain = None if kind in ("features", "sides") else (-1.0, 1.0)
    sets = {"features": {"eps": down}, "sides": {"box": (x - down, x + up)}}.get(kind, {})
    # Decided long before the budget is used up, on any machine.
    return model, x, pb.certify(model, x, y, **sets, **options, domain=domain, keep=True, budget=600.0), domain


def intervals(norm, tolerance):
    model = randomise(pb.CCP(3, 4, 3, 4, dtype=F64), 2, 0.5)
    return model, *bounded(model, 0.35, norm, images=8, budget=600.0, tolerance=tolerance), (-1.0, 1.0)


FILES = {
    "boxes": (
        lambda: decisions((6, 4, 3, 4), 1, 0.5, 60, "", eps=0.2),
        "second split absorbed monotone counterexample",
    ),
    "features": (lambda: decisions((4, 4, 3, 4), 3, 0.7, 40, "features"), "eps counterexample"),
    "sides": (lambda: decisions((4, 4, 3, 4), 3, 0.7, 40, "sides"), "box counterexample"),
    "balls": (
        lambda: decisions((3, 4, 3, 4), 0, 0.5, 24, "", eps=0.35, norm="2"),
        "ball trust absorbed split outside counterexample tops cap",
    ),
    "caps": (lambda: decisions((5, 4, 3, 4), 12, 0.4, 10, "", eps=0.7, norm="2", method="second"), "cap nu"),
    "box intervals": (lambda: intervals("inf", 0.02), "split box lowest_at monotone"),
    "ball intervals": (lambda: intervals("2", 0.1), "split box lowest_at trust cap outside"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A function from the name of a file to its model and its content, as text."""

    @cache
    def saved(name):
        make, words = FILES[name]
        path = tmp_path_factory.mktemp("proofs") / "proofs.json"
        model, x, found, domain = make()
        save_certificates(path, model, found, x, domain)
        text = path.read_text()
        assert all(word in text for word in words.split())
        return model, text, path, found, x

    return saved


@pytest.mark.parametrize("name", FILES)
def test_an_untouched_file_is_confirmed(honest, name):
    model, text, path, found, x = honest(name)
    seen = []
    counts = check_file(path, model, on_progress=lambda *row: seen.append(row))
    assert counts == ({"bounded": 8, "unbounded": 0, "repeated": 0} if "intervals" in name else counted(found, x))
    assert "intervals" in name or counts["verified"] > 0
    assert seen[-1] == (len(x), len(x), "") and json.loads(text)["model"] == weights_digest(model)


def entries(content, status):
    found = [entry for entry in content["images"] if entry["status"] == status]
    assert found
    return found


def steps(content, *rules, key=None):
    """All steps of a content by some rules, or with a key."""
    stack, found = [], []
    for entry in content["images"]:
        proofs = entry.get("proofs", [])
        stack += proofs.values() if isinstance(proofs, dict) else proofs
    while stack:
        node = stack.pop()
        if node.get("by") in rules or key in node:
            found.append(node)
        stack += [node[name] for name in ("then", "low", "high") if name in node]
    assert found
    return found


def change(nodes, **values):
    """Set fields of all nodes; a function gets the old value."""
    for node in nodes:
        for name, value in values.items():
            node[name] = value(node.get(name, 0.0)) if callable(value) else value


def replace(nodes, by):
    for node in nodes:
        node.clear()
        node["by"] = by


def cut_too_far(content):
    for node in steps(content, key="box"):
        if "on" in node:
            for side in node["box"]:
                if side[0] not in node.get("monotone", []):
                    below = node["v"][node["on"].index(side[0])] < 0
                    side[2 if below else 1] = side[1] + (side[2] - side[1]) * (0.3 if below else 0.7)


def falsely_monotone(content):
    node = steps(content, key="monotone")[0]
    side = next(side for side in node["box"] if side[0] == node["monotone"][0])
    side[1] = side[2] = side[1] + (1e-3 if side[1] < 0 else -1e-3)


def verify_what_is_false(content):
    entry = entries(content, "falsified")[0]
    del entry["counterexample"], entry["rival"]
    others = {str(rival): {"by": "first"} for rival in range(3) if rival != entry["label"]}
    change([entry], status="verified", proofs=others)


def relabel(content):
    entry = entries(content, "verified")[0]
    rival = next(iter(entry["proofs"]))
    entry["proofs"][str(entry["label"])] = entry["proofs"].pop(rival)
    entry["label"] = int(rival)


def boxes_of_balls(content):
    for entry in content["images"]:
        del entry["norm"]


def leave_out(content):
    for step in steps(content, "trust", "trust absorbed"):
        step["on"], step["v"] = step["on"][1:], step["v"][1:]


def to_a_corner(content):
    """Counterexamples in the box around the ball, at one of its corners."""
    for entry in entries(content, "falsified"):
        entry["counterexample"] = [max(-1.0, min(1.0, v - 0.349 if v > 0 else v + 0.349)) for v in entry["x"]]


def move(content, name, sign):
    content["images"][0][f"{name}_at"][0] = [v + sign * 0.36 for v in content["images"][0]["x"]]


def narrower(content, name, sign):
    """By far less than the attained values would contradict by themselves."""
    for entry in content["images"]:
        widths = [high - low for low, high in zip(entry["lower"], entry["upper"], strict=True)]
        entry[name] = [end + sign * 1e-6 * width for end, width in zip(entry[name], widths, strict=True)]


def cap_about_a_box(content):
    cap = copy.deepcopy(steps(content, "cap")[0])
    boxes_of_balls(content)
    change(entries(content, "verified"), proofs=lambda proofs: dict.fromkeys(proofs, cap))


WEAK = "not positive|does not lie|before it|cut|too far|monotone|leaves out|meets the ball|outside|attained"
BOTH = ("box intervals", "ball intervals")
WRONG = [
    ("boxes", lambda c: change(entries(c, "verified"), eps=0.6), WEAK),
    ("balls", lambda c: change(entries(c, "verified"), eps=0.42), WEAK),
    ("balls", lambda c: change(entries(c, "verified"), eps=1.05), WEAK),
    ("features", lambda c: change(entries(c, "verified"), eps=lambda e: [e[0] + 2.0, *e[1:]]), WEAK),
    # A feature that was fixed gets a width which the proof does not know of.
    ("features", lambda c: change(entries(c, "verified"), eps=lambda e: [v or 3.0 for v in e]), WEAK),
    ("sides", lambda c: change(entries(c, "verified"), box=lambda b: [[v - 2.0 for v in b[0]], b[1]]), WEAK),
    ("sides", lambda c: change(entries(c, "verified"), box=lambda b: [b[0], [v + 3.0 for v in b[1]]]), WEAK),
    ("features", lambda c: change(entries(c, "falsified"), eps=lambda e: [v / 1024 for v in e]), "outside"),
    ("sides", lambda c: [e.update(box=[e["x"], e["x"]]) for e in entries(c, "falsified")], "outside"),
    ("boxes", lambda c: change(entries(c, "falsified")[:1], eps=0.1), "outside"),
    ("boxes", lambda c: [e.update(counterexample=e["x"]) for e in entries(c, "falsified")], "classified as its label"),
    ("balls", to_a_corner, "outside of its ball"),
    ("balls", lambda c: c.update(domain=None), WEAK),
    ("balls", boxes_of_balls, "about a ball"),
    ("balls", lambda c: change(c["images"][:1], norm="1"), "norm is '1'"),
    ("boxes", verify_what_is_false, "not positive"),
    ("boxes", relabel, "not positive|has no|cut|monotone"),
    ("boxes", lambda c: entries(c, "verified")[0]["proofs"].popitem(), "damaged"),
    ("boxes", lambda c: change(steps(c, key="split")[:1], low={}), "before it is complete"),
    ("boxes", cut_too_far, WEAK),
    ("boxes", falsely_monotone, "monotone|before it"),
    ("boxes", lambda c: change([c], stretch=lambda s: [[0.9 * v for v in s[0]], *s[1:]]), "too small"),
    ("boxes", lambda c: change([c], norms=lambda n: [n[0], 0.9 * n[1], *n[2:]]), "too small"),
    ("balls", lambda c: change([c], tops=lambda t: [0.9 * t[0], *t[1:]]), "norm is too small"),
    ("balls", lambda c: c.pop("tops"), "tops"),
    ("boxes", lambda c: change(steps(c, "second", "absorbed"), mu=lambda mu: [v - 10 for v in mu]), WEAK),
    ("balls", lambda c: change(steps(c, "trust", "trust absorbed"), lam=0.0), "not positive"),
    ("balls", lambda c: change(steps(c, "trust", "trust absorbed"), lam=-1.0), "negative"),
    ("balls", lambda c: change(steps(c, "trust", "trust absorbed"), v=lambda v: [10.0 for _ in v]), "not positive"),
    ("balls", leave_out, "leaves out"),
    ("balls", lambda c: replace(steps(c, "second", "absorbed"), "outside"), "meets the ball"),
    ("balls", lambda c: replace(steps(c, "trust", "trust absorbed"), "ball"), "not positive"),
    ("caps", lambda c: change(steps(c, "cap"), s=lambda s: s + 0.02), "not positive|leaves the ball"),
    ("caps", lambda c: change(steps(c, "cap"), s=lambda s: -s), "negative"),
    ("caps", lambda c: change(steps(c, "cap"), kappa=lambda kappa: -kappa), "negative"),
    ("caps", lambda c: change(steps(c, "cap"), kappa=0.0), "not positive"),
    ("caps", lambda c: change(steps(c, "cap"), d=lambda d: [-v for v in d]), "not positive"),
    ("caps", lambda c: change(steps(c, "cap"), d=lambda d: d[1:]), "d has a length"),
    ("caps", lambda c: change(steps(c, "cap"), radii=lambda r: [0.98 * v for v in r]), "leaves the ball"),
    ("caps", lambda c: change(steps(c, "cap"), radii=lambda r: [0.0 for _ in r]), "no radius"),
    ("caps", lambda c: change(steps(c, "cap"), radii=lambda r: [float("nan") for _ in r]), "not a finite"),
    ("caps", lambda c: change(steps(c, "cap"), centre=lambda x: [v + 0.02 for v in x]), "leaves the ball"),
    ("caps", lambda c: change(steps(c, "cap"), centre=lambda x: x[1:]), "centre has a length"),
    ("caps", lambda c: change(steps(c, "cap"), on=lambda on: on[1:]), "has a length"),
    ("caps", lambda c: change(steps(c, "cap"), then={}), "before it is complete"),
    ("caps", lambda c: change(steps(c, "cap"), then={"by": "ball"}), "not positive"),
    *[
        ("caps", lambda c, f=f: change(steps(c, key="nu"), nu=lambda nu: f * nu), "negative|not positive")
        for f in (-1.0, 0.0, 30.0)
    ],
    ("caps", lambda c: change(steps(c, "cap"), nu=-1.0), "negative"),
    ("caps", cap_about_a_box, "about a ball"),
    ("ball intervals", lambda c: move(c, "lowest", -0.95), "outside of its ball"),
    ("ball intervals", lambda c: [e.pop("norm") for e in c["images"]], "about a ball"),
    ("box intervals", lambda c: change(c["images"], norm="2"), "outside of the ball|tops"),
]
for one in BOTH:
    WRONG += [
        (one, lambda c: narrower(c, "lower", 1), WEAK),
        (one, lambda c: narrower(c, "upper", -1), WEAK),
        (one, lambda c: change(c["images"][:1], lowest=lambda v: [v[0] - 1e-6, *v[1:]]), "not attained"),
        (one, lambda c: change(c["images"][:1], highest=lambda v: [v[0] + 1e-6, *v[1:]]), "not attained"),
        (one, lambda c: move(c, "lowest", -1), "outside of its"),
        (one, lambda c: move(c, "highest", 1), "outside of its"),
        (one, lambda c: change([c["forms"]], weights=lambda w: [[w[0][0] + 0.2, *w[0][1:]], *w[1:]]), WEAK),
        (one, lambda c: change([c["forms"]], constant=lambda b: [b[0], b[1] - 0.2]), WEAK),
        (one, lambda c: c["forms"]["weights"][0].append(0.0), "does not fit"),
        (one, lambda c: c.update(forms={"weights": [], "constant": []}), "no forms"),
        (one, lambda c: change(c["images"], eps=lambda e: 1.05 * e), WEAK),
        (one, lambda c: c.update(domain=[-1.5, 1.5]), WEAK),
        (one, lambda c: c["images"][0]["proofs"].pop(), "does not fit"),
        (one, lambda c: change(c["images"][:1], proofs=lambda p: [None, *p[1:]]), "damaged"),
        (one, lambda c: change(steps(c, key="split")[:1], low={}), "before it is complete"),
        (one, lambda c: c["images"][0]["lower"].pop(), "does not fit"),
        (one, lambda c: change(c["images"][:1], proofs=lambda p: p[2:] + p[:2]), WEAK),
        (one, lambda c: change(c["images"], proofs=[{"by": "first"}] * 4), "not positive"),
        (one, lambda c: change(steps(c, "second", "absorbed"), mu=lambda mu: [v - 1 for v in mu]), WEAK),
        (one, cut_too_far, WEAK),
        *[
            (one, lambda c, status=status: change(c["images"][:1], status=status), "the status is")
            for status in ("verified", "undecided", "proven")
        ],
        (one, lambda c: c.pop("forms"), "the status is"),
    ]


@pytest.mark.parametrize(("name", "spoil", "message"), WRONG)
def test_a_file_with_anything_wrong_in_it_is_refused(honest, tmp_path, name, spoil, message):
    model, text, *_ = honest(name)
    content = json.loads(text)
    spoil(content)
    refused(tmp_path, model, content, message)


@pytest.mark.parametrize(
    ("change_of_box", "message"),
    [
        ({"eps": [0.1, 0.1]}, "does not fit"),
        ({"eps": [0.1, 0.1, 0.1, -0.1]}, "negative"),
        ({"eps": [0.1, 0.1, 0.1, float("inf")]}, "damaged"),
        ({"eps": [0.1, 0.1, 0.1, float("nan")]}, "damaged"),
        ({"box": [[0.0] * 4, [0.0] * 3]}, "does not fit"),
        ({"box": [[5.0] * 4, [6.0] * 4]}, "outside|about boxes"),
        ({"box": [[1.0] * 4, [-1.0] * 4]}, "above the upper"),
        ({"box": [[-1.0] * 4]}, "damaged"),
        ({}, "either sides or radii"),
        ({"eps": 0.1, "box": [[-1.0] * 4, [1.0] * 4]}, "either sides or radii"),
    ],
)
@pytest.mark.parametrize("name", ["features", "sides"])
def test_boxes_that_are_none_are_refused(honest, tmp_path, name, change_of_box, message):
    model, text, *_ = honest(name)
    content = json.loads(text)
    entry = entries(content, "verified")[0]
    entry.pop("eps", None)
    entry.pop("box", None)
    entry |= change_of_box
    refused(tmp_path, model, content, message)


def test_any_change_is_noticed_and_other_weights_are_refused(honest, tmp_path):
    model, text, path, *_ = honest("boxes")
    position = text.index('"label": ') + len('"label": ')
    changed = text[:position] + str((int(text[position]) + 1) % 3) + text[position + 1 :]
    (tmp_path / "changed.json").write_text(changed)
    refuses("changed after", check_file, tmp_path / "changed.json", model, error=pb.FileFormatError)
    other = copy.deepcopy(model)
    other.V.data[0, 0, 0] += 1e-12
    refuses("other weights", check_file, path, other)


def test_what_cannot_be_saved(tmp_path):
    model, file, x = randomise(pb.CCP(3, 3, 2, 3, dtype=F64), 0, 0.5), tmp_path / "x.json", torch.zeros(1, 3, dtype=F64)
    for options in ({}, {"keep": True, "method": "crown"}):
        for found in (pb.certify(model, x, [0], 0.1, **options), pb.output_bounds(model, x, 0.1, **options)):
            refuses("no proofs", save_certificates, file, model, found, x, (-1.0, 1.0))
    box = (torch.full((2, 3), -0.2, dtype=F64), torch.tensor([[0.1, 0.5, -0.2], [0.3, 0.3, 0.3]], dtype=F64))
    found = pb.output_bounds(model, None, box=box, keep=True, budget=0.1)
    save_certificates(file, model, found, None, (-1.0, 1.0))
    assert check_file(file, model) == {"bounded": 2, "unbounded": 0, "repeated": 0}
    refuses("inputs", save_certificates, file, model, found, box[0][:1], None)
    ball = pb.output_bounds(model, box[0], 0.1, norm="2", keep=True, budget=0.1)
    refuses("inputs", save_certificates, file, model, ball, None, None)


def test_what_has_no_bound_has_no_proof():
    model = randomise(pb.CCP(4, 3, 2, 10, dtype=F64), 0, 1e60)
    found = pb.output_bounds(model, torch.rand(1, 4, dtype=F64), 0.1, keep=True)
    assert found.proofs == {} and bool((found.lower == -torch.inf).all())


def test_without_its_extra_the_check_says_which(tmp_path, monkeypatch):
    model = pb.CCP(4, 3, 2, 2, seed=0)
    x = torch.zeros(1, 4)
    found = pb.certify(model, x, model(x).argmax(1), 0.01, keep=True)
    pb.certificates.save_certificates(tmp_path / "proofs.json", model, found, x, (-1.0, 1.0))
    monkeypatch.setitem(sys.modules, "flint", None)
    refuses(r"pip install 'polybound\[check\]'", pb.certificates.check_file, tmp_path / "proofs.json", model)
