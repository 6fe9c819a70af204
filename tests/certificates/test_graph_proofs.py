"""Proofs of deep networks: what is saved is confirmed, what is false or damaged is refused, and so is a weaker check."""

import importlib.util
import json
import sys
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.graph_proofs import small_graphs
from helpers.graphs import F64, graphs, two_products
from helpers.tampering import forge, refused
from polybound.certificates import check_file, read_claims, save_certificates
from polybound.certificates.proofs import graphs as checker
from polybound.certificates.proofs.midrad import MidRad, MidRads, psd_deficit
from polybound.certificates.proofs.schema import Generators, Interval, Layers, Planes, RefusedError, Whole
from polybound.errors import FileFormatError
from polybound.models import Builder, Dense, Fractions, GraphNetwork, PolyNet, Product, Select


@pytest.fixture(scope="module")
def network():
    net = PolyNet((1, 8, 8), width=4, blocks=(1, 1), seed=0)
    pb.fit(net, pb.data.load_digits("train").subset(400), epochs=6, verbose=False)
    return net.eval()


def save(path, model, x, y, **options):
    found = pb.certify(model, x, y, keep=True, **options)
    save_certificates(path, model, found, x, options.get("domain", (-1.0, 1.0)))
    return found


@pytest.mark.parametrize(("norm", "eps"), [("inf", 0.01), ("2", 0.03)])
def test_what_is_saved_is_confirmed(network, tmp_path, norm, eps):
    test, path = pb.data.load_digits("test"), tmp_path / "proofs.json"
    x = test.x[:8]
    found = save(path, network, x, network(x).argmax(1), eps=eps, norm=norm)
    counts = check_file(path, network)
    assert counts == {status: found.count(status) for status in ("verified", "falsified", "undecided")} | {
        "repeated": 0
    }
    assert counts["verified"] > 0
    network.save(tmp_path / "net.safetensors")
    assert check_file(path, pb.load(tmp_path / "net.safetensors")) == counts
    # Of float64 weights the graph is another one.
    refusing = PolyNet((1, 8, 8), width=4, blocks=(1, 1), seed=1).eval()
    refuses("about other weights", check_file, path, refusing)
    refuses("about a deep network, and this is a chain", check_file, path, pb.CCP(64, 3, 10, 2, seed=0))


def test_intervals_of_outputs_are_saved(network, tmp_path):
    x, path = pb.data.load_digits("test").x[:2], tmp_path / "proofs.json"
    found = pb.output_bounds(network, x, 0.01, keep=True)
    save_certificates(path, network, found, x, (-1.0, 1.0))
    assert check_file(path, network) == {"bounded": 2, "unbounded": 0, "repeated": 0}
    content = json.loads(path.read_text())
    written = torch.tensor([entry["lower"] for entry in content["images"]], dtype=F64)
    # Rounded numbers prove a little less.
    assert bool(((found.lower - written).abs() < 1e-2 * (found.upper - found.lower)).all())


def test_what_the_numbers_do_not_prove_is_written_as_undecided(network, tmp_path):
    test, path = pb.data.load_digits("test"), tmp_path / "proofs.json"
    found = pb.certify(network, test.x[:2], network(test.x[:2]).argmax(1), 0.005, keep=True)
    assert found.status == ["verified"] * 2
    found.proofs.update({key: {"by": "interval"} for key in found.proofs if key[0] == 1})
    save_certificates(path, network, found, test.x[:2], (-1.0, 1.0))
    first, second = json.loads(path.read_text())["images"]
    assert first["status"] == "verified"
    assert (second["status"], second["reason"]) == ("undecided", "a bound is not positive")
    assert check_file(path, network) == {"verified": 1, "falsified": 0, "undecided": 1, "repeated": 0}


def test_cut_boxes_and_the_moving_diagonal_are_saved(tmp_path):
    stages, kinds, path = set(), set(), tmp_path / "proofs.json"
    for seed in (0, 2):
        model = GraphNetwork.of(two_products(seed))
        x = 2 * torch.rand(20, 3, generator=torch.Generator().manual_seed(seed), dtype=F64) - 1
        found = save(path, model, x, model(x).argmax(1), eps=0.15, domain=None, nodes=300)
        stages |= set(found.stage)
        proofs = [
            proof for entry in json.loads(path.read_text())["images"] for proof in entry.get("proofs", {}).values()
        ]
        kinds |= {proof.get("by", "split") for proof in proofs}
        assert check_file(path, model)["verified"] == found.count("verified")
    assert {"branch", "semidefinite"} <= stages and {"split", "whole"} <= kinds


# The schema.


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    (_, graph), *_ = small_graphs()
    model, path = GraphNetwork.of(graph), tmp_path_factory.mktemp("deep") / "proofs.json"
    x = torch.tensor([[0.3, 0.1, -0.2], [-0.5, 0.4, 0.2]], dtype=F64)
    save(path, model, x, graph(x).argmax(1), eps=0.01)
    content = json.loads(path.read_text())
    assert [entry["status"] for entry in content["images"]] == ["verified"] * 2
    return model, content


def with_proof(content, proof):
    entry = content["images"][0]
    return content | {"images": [entry | {"proofs": dict.fromkeys(entry["proofs"], proof)}]}


LAYERS = {"by": "layers", "scale": [1.0, 1.0], "v": [None, None, None]}


@pytest.mark.parametrize(
    ("proof", "message"),
    [
        ({"by": "first"}, "known are interval, planes, generators, layers, whole"),
        ({}, "known are interval"),
        (None, "not an object"),
        ({"by": "interval", "planes": []}, "unknown field 'planes'"),
        ({"by": "planes"}, "no 'planes'"),
        ({"by": "planes", "planes": [0.5]}, "length of 1, which does not fit: 2"),
        ({"by": "planes", "planes": [0.5, [0.5] * 4]}, "length of 4, which does not fit: 5"),
        ({"by": "planes", "planes": [0.5, 1.5]}, "above 1.0"),
        ({"by": "planes", "planes": [True, 0.5]}, "not a number"),
        (LAYERS | {"scale": [1.0, -1.0]}, "negative"),
        (LAYERS | {"scale": [1.0]}, "does not fit"),
        (LAYERS | {"v": [[0.0] * 4, None, None]}, "does not fit: 3"),
        (LAYERS | {"v": [0.0, None, None]}, "not a list"),
        ({"by": "whole", "d": [[-1.0] * 3, None, None], "v": [None] * 3}, "negative"),
        ({"by": "whole", "d": [None] * 3, "v": [["0"] * 3, None, None]}, "not a number"),
        ({"split": [3, 0.0], "low": {"by": "interval"}, "high": {"by": "interval"}}, "not from 0 to 2"),
        ({"split": [0, 0.3], "low": {"by": "interval"}}, "no 'high'"),
    ],
)
def test_what_is_wrong_with_a_proof(honest, tmp_path, proof, message):
    model, content = honest
    refused(tmp_path, model, with_proof(content, proof), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "chain"}, "about other weights"),
        ({"stretch": []}, "unknown field 'stretch'"),
        ({"model": "0" * 64}, "about other weights"),
        ({"images": [{"status": "undecided", "x": [0.0] * 3, "eps": 0.1, "label": 0, "reason": 1}]}, "not a text"),
    ],
)
def test_what_is_wrong_with_a_file(honest, tmp_path, change, message):
    model, content = honest
    refused(tmp_path, model, content | change, message)


def test_numbers_that_are_not_finite_and_too_many_steps_are_refused(honest, tmp_path):
    model, content = honest
    path = tmp_path / "proofs.json"
    path.write_text(json.dumps(with_proof(content, LAYERS | {"scale": [float("nan"), 1.0]})))
    refuses("NaN is not a finite number", read_claims, path, model, error=FileFormatError)
    step = {"by": "interval"}
    for _ in range(17):
        step = {"split": [0, 0.3], "low": step, "high": step}
    forge(path, with_proof(content, step))
    refuses("more than 100,000 steps", read_claims, path, model, error=FileFormatError)


@pytest.mark.parametrize("change", ["eps", "label", "x", "copy", "scale", "split"])
def test_claims_that_are_not_proven_are_refused(honest, tmp_path, change):
    model, content = honest
    entry = json.loads(json.dumps(content["images"][0]))
    if change == "eps":
        entry["eps"] = 2.0
    elif change == "label":
        entry["label"] = 1 - entry["label"]
        entry["proofs"] = {str(1 - entry["label"]): next(iter(entry["proofs"].values()))}
    elif change == "x":
        entry["x"] = [0.9, 0.9, -0.9]
        entry["label"] = 1 - int(model(torch.tensor([entry["x"]], dtype=F64)).argmax())
        entry["proofs"] = {str(1 - entry["label"]): {"by": "interval"}}
    elif change == "copy":
        entry |= {"status": "falsified", "rival": 1 - entry["label"], "counterexample": entry["x"]}
        del entry["proofs"]
    else:
        entry["eps"] = 0.6
        node = {"by": "whole", "d": [None] * 3, "v": [None] * 3} if change == "scale" else {"by": "interval"}
        node = {"split": [0, 5.0], "low": node, "high": node} if change == "split" else node
        entry["proofs"] = dict.fromkeys(entry["proofs"], node)
    refused(tmp_path, model, content | {"images": [entry]}, "not positive|classified as its label|cut where it is not")


# The mathematics.


@given(
    graphs(most=10, degree=12),
    st.integers(0, 2**20),
    st.sampled_from([0.0, 1e-9, 0.05, 0.4]),
    st.sampled_from(["inf", "2"]),
    st.sampled_from([10**6, 3]),
    st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_bounds_are_below_every_value_in_fractions(graph, seed, radius, norm, most, scale):
    graph = graph.transform(lambda t: t.double() * scale if t.is_floating_point() and seed % 3 == 0 else t)
    assert not false_bounds(checker, graph, seed, radius, norm, most)


def false_bounds(module, graph, seed, radius, norm, most):
    """Steps with numbers at random whose bounds are above the form at some point of a box or ball, by fractions."""
    graph, generator = graph.double(), torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return 2 * torch.rand(shape, generator=generator, dtype=F64) - 1

    x, form = uniform(1, graph.features), uniform(1, graph.classes)
    r = radius * (0.5 + uniform(1, graph.features).abs())
    low, high = torch.maximum(x - r, -torch.ones_like(x)), torch.minimum(x + 0.3 * r, torch.ones_like(x))
    # Limits of u by sides that are rounded, and so a little wider.
    limits = [((side - x) / r.clamp_min(1e-300) * (1 + 1e-12)).clamp(-1, 1) for side in (low, high)]
    cell = module.Cell(graph, low, high, (x, r, *limits) if norm == "2" else None)
    module._MEMORY = most * max(graph.sizes)
    sizes = [graph.features, *(graph.sizes[n] for n, node in enumerate(graph.nodes) if isinstance(node, Product))]

    def blocks(scale, shift):
        return tuple(tuple((scale * uniform(n) + shift).tolist()) if uniform() > -0.5 else None for n in sizes)

    scales = [(1.0,) * (len(sizes) - 1), (0.0,) * (len(sizes) - 1)]
    scales += [tuple(None if v < -0.3 else abs(v) for v in uniform(len(sizes) - 1).tolist())]
    steps = [Interval(), Generators(), *(Layers(scale, blocks(1.0, 0.0)) for scale in scales)]
    steps += [Layers(scales[0], (None,) * len(sizes)), Whole((None,) * len(sizes), (None,) * len(sizes))]
    steps += [Planes(tuple(uniform(n).abs().tolist() for n in sizes[1:])), Planes((0.5,) * (len(sizes) - 1))]
    steps += [Whole(blocks(0.5, 0.5), blocks(1.0, 0.0))]
    u = torch.cat([uniform(30, graph.features), uniform(30, graph.features).sign(), 0 * x])
    if norm == "2":
        u = u / u.norm(dim=1, keepdim=True).clamp_min(1.0) * (1 - 1e-12)
    points = torch.minimum(torch.maximum(x + r * u, low), high)
    values = (graph(points) * form).sum(1)
    least = points[values.argsort()[:3]]
    exact = []
    for point in least.tolist():
        outputs = graph.evaluate(Fractions(), [Fraction(v) for v in point])
        exact.append(sum((Fraction(w) * v for w, v in zip(form[0].tolist(), outputs, strict=True)), Fraction(0)))
    wrong = []
    for step in steps:
        try:
            bound = cell.bound(form, step)
        except RefusedError:
            continue
        if not bound <= float("inf") or (bound > -float("inf") and Fraction(bound) > min(exact)):
            wrong.append(step)
    return wrong


@given(st.integers(0, 2**20), st.sampled_from([1e-200, 1e-3, 1.0, 1e100]))
def test_midpoints_and_radii_hold_the_real_numbers(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    a, b = (scale * torch.randn(2, 3, generator=generator, dtype=F64) for _ in range(2))
    W = torch.randn(3, 2, generator=generator, dtype=F64)
    x, y = MidRad(a, b.abs()), MidRad.exact(b)
    corners = [(MidRad.exact(a), a), (x, a + b), (x, a - b)]
    for value, at in corners:
        if bool(((at - value.mid).abs() > value.rad).any()):
            continue  # the corner itself was rounded
        pairs = [(value + y, at, b, lambda s, t: s + t), (value * y, at, b, lambda s, t: s * t)]
        for found, one, other, operation in pairs:
            for i, j in product(range(2), range(3)):
                exact = operation(Fraction(float(one[i, j])), Fraction(float(other[i, j])))
                assert abs(exact - Fraction(float(found.mid[i, j]))) <= Fraction(float(found.rad[i, j]))
        found = value.times(W)
        for i, j in product(range(2), range(2)):
            exact = sum(Fraction(float(at[i, k])) * Fraction(float(W[k, j])) for k in range(3))
            assert abs(exact - Fraction(float(found.mid[i, j]))) <= Fraction(float(found.rad[i, j]))
        assert bool((found.lower <= found.mid).all() and (found.mid <= found.upper).all())


def test_what_rounding_is_granted_is_that_of_the_analysis_and_not_ten_times_as_much():
    """Sums of n products, in any order: `n u` of the sum of their absolute values."""
    for n in (10, 1000):
        found, budget = MidRad.exact(torch.ones(1, n, dtype=F64)), n * 2.0**-53 * n
        for rad in (found.times(torch.ones(n, 1, dtype=F64)).rad, found.sum().rad):
            assert budget <= float(rad) <= 10 * budget
    assert 2.0**-53 <= float((MidRad.exact(1.0) * 1.0).rad) <= 10 * 2.0**-53
    assert 2.0**-53 <= float((MidRad.exact(0.5) + 0.5).rad) <= 10 * 2.0**-53


@given(st.integers(0, 2**20), st.integers(1, 12))
def test_what_a_matrix_lacks_is_enough(seed, n):
    M = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    for symmetric in (M + M.T, M @ M.T, torch.zeros(n, n, dtype=F64)):
        lack = psd_deficit((symmetric + symmetric.T) / 2, 0.0)
        assert lack >= -float(torch.linalg.eigvalsh(symmetric)[0]) - 1e-12
    assert psd_deficit((M @ M.T + (M @ M.T).T) / 2, 0.0) < 1e-8


# What a weaker check would let pass.


def tight():
    """Networks whose bounds are attained, or whose sums cancel: squares, differences of products, a fourth power."""
    for sign in (1.0, -1.0):
        ends = Dense(sign * torch.eye(2, dtype=F64))
        for depth in (1, 2):
            builder = Builder()
            y = builder.input((2,))
            for _ in range(depth):
                y = builder.product(y, y)
            yield builder.finish(builder.affine(ends, y))
        builder = Builder()
        x = builder.input((2,))
        one = builder.affine(Dense(torch.tensor([[1.0, -1.0], [1.0, 0.0]], dtype=F64)), x)
        other = builder.affine(Dense(torch.tensor([[1.0, -1.0], [0.0, 1.0]], dtype=F64)), x)
        y = builder.sum([builder.product(one, other), builder.product(one, one)])
        yield builder.finish(builder.affine(Dense(sign * torch.eye(2, dtype=F64)), y))
        builder = Builder()
        # However a product adds them up, the large ones meet a small one before they cancel.
        x = builder.affine(Select(torch.tensor([0, 1, 1, 0, 1]), 2, torch.zeros((), dtype=F64)), builder.input((2,)))
        rows = [[1e9, 0.3, 0.7, -1e9, 0.1], [1e9, -0.9, 0.4, -1e9, 0.2], [-1e9, 0.6, 0.8, 1e9, 0.3]]
        y = builder.affine(Dense(torch.tensor(rows, dtype=F64)), x)
        yield builder.finish(builder.affine(Dense(sign * torch.eye(3, dtype=F64)[:2]), builder.product(y, y)))


def weakened(monkeypatch, name, old, new):
    """The check with a line of one of its modules changed."""
    found = {}
    for part in ("midrad", "zonotopes", "graphs"):
        full = f"polybound.certificates.proofs.{part}"
        spec = importlib.util.find_spec(full)
        source = spec.loader.get_source(full)
        if part == name:
            assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
            source = source.replace(old, new)
        found[part] = module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, full, module)
        exec(compile(source, full, "exec"), module.__dict__)  # the module, changed
    return found["graphs"]


def noticed(module):
    """The first false bounds that a check has over some boxes and balls, with many generators and with few."""
    networks = [*tight(), *tight(), *(graph for _, graph in small_graphs())]
    # Minus the fourth powers of two inputs, of which only one keeps a generator for what its square is off.
    module._MEMORY, quartic, ones = 2, networks[5], torch.ones(1, 2, dtype=F64)
    if module.Cell(quartic, -0.5 * ones, 0.5 * ones).bound(ones, Layers((1.0, 1.0), (None,) * 3)) > -2 * 0.5**4:
        return ["a fourth power"]
    for seed, graph in enumerate(networks):
        for radius, norm, most in product((0.0, 0.5), ("inf", "2"), (10**6, 2)):
            wrong = false_bounds(module, graph, seed, radius, norm, most)
            if wrong:
                return wrong
    return []


WEAKENED = [
    ("midrad", "rad = absolute((self.rad", "rad = move((self.rad"),
    ("midrad", "lost = float(length(rest.flatten(), 0)) * MORE +", "lost ="),
    ("midrad", "inside = (left.lower < 0) & (left.upper > 0)", "inside = left.lower < -1e9"),
    ("zonotopes", "(high - low) / 2, (high + low) / 2 * MORE + LEAST", "(high - low) / 2, (high + low) / 4"),
    ("zonotopes", "centre = centre.looser(radius.index_fill(1, index, 0.0))", ""),
    ("zonotopes", "s, t = self.left.slack, self.right.slack", "s = t = 0 * self.left.slack"),
    ("zonotopes", "MidRad(value.centre, (value.slack + off", "MidRad(value.centre, (off"),
    ("graphs", "(away + cost + lost) * MORE", "(away + cost / 2 + lost) * MORE"),
    ("graphs", "(away + cost + lost) * MORE", "(away + cost) * MORE"),
    ("graphs", "(away + cost + lost) * MORE", "(away / 2 + cost + lost) * MORE"),
    ("graphs", "d = (d + self._deficit(g, d)) * MORE", "d = d * MORE"),
    ("graphs", "top = min(top, lam + lack)", "top = min(top, lam)"),
    ("graphs", "part = _shares(-form.mid, low, high)\n        rest = -form + -part",
     "part = _shares(form.mid, low, high)\n        rest = form + -part"),
    ("graphs", "torch.where(up, b.lower, b.upper), torch.where(up, b.upper, b.lower)", "b.lower, b.upper"),
    ("graphs", "-choose(up, point * point, low * high)", "-choose(up, point * low, low * high)"),
    ("graphs", "- self.away(_first(found * self.radius))", "- self.away(_first(found * self.radius)) / 2"),
    ("graphs", "used = g < 0", "used = g > 0"),
]  # fmt: skip


def test_the_check_itself_has_no_false_bound_there():
    assert not noticed(checker)


@pytest.mark.parametrize(("module", "old", "new"), WEAKENED)
def test_a_weaker_check_is_noticed(monkeypatch, module, old, new):
    assert noticed(weakened(monkeypatch, module, old, new))


def test_few_generators_are_sound_and_looser(monkeypatch):
    (_, graph), *_ = small_graphs()
    x, r = torch.zeros(1, 3, dtype=F64), torch.full((1, 3), 0.2, dtype=F64)
    form, bounds = torch.tensor([[1.0, -1.0]], dtype=F64), []
    for most in (10**6, 6, 4):
        monkeypatch.setattr(checker, "_MEMORY", most * max(graph.sizes))
        bounds.append(checker.Cell(graph, x - r, x + r).bound(form, Generators()))
    assert bounds[0] > bounds[1] > bounds[2] > -float("inf")
    values = graph.evaluate(MidRads(), MidRad.exact(x))
    assert float((values * form).sum().lower) > bounds[0]
