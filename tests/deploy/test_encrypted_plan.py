"""The plan of encrypted inference: ranges that hold, packings that are right, parameters that are safe."""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.encrypted_networks import PlainSlots, graph_network, images, network
from polybound.deploy import PublicPlan, plan_batches, plan_encryption
from polybound.deploy.encrypted.chain.packing import ChainEvaluation, ChainLayout
from polybound.deploy.encrypted.chain.polynomial import proven_ranges, ranges_at, read_polynomial, tree_groups
from polybound.deploy.encrypted.noise import RINGS
from polybound.errors import PolyboundError


@given(
    st.integers(1, 40), st.integers(1, 20), st.integers(1, 9), st.integers(1, 8),
    st.sampled_from([64, 128, 256]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 99),
)  # fmt: skip
def test_the_packed_circuit_is_the_polynomial(features, rank, classes, degree, slots, uploads, baby, seed):
    polynomial = read_polynomial(network(degree, rank, features, classes, seed))
    layout = ChainLayout.of(polynomial, slots, uploads, baby)
    if layout is None:
        return
    image, engine = images(features, 1, seed)[0], PlainSlots(slots)
    evaluation = ChainEvaluation(layout, polynomial, 0.0, 0.0, layout.depth + 1, engine)
    [slots_found] = evaluation(engine, list(layout.packing.place(image, slots)), lambda _: None)
    expected = np.zeros(layout.class_period)
    expected[:classes] = polynomial(image[None])[0] - polynomial.beta
    # Every slot holds a whole logit, or zero: no partial sums anywhere.
    np.testing.assert_allclose(slots_found, np.resize(expected, slots), atol=1e-9)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 999), st.booleans())
def test_ranges_are_never_exceeded(degree, rank, features, seed, shifted):
    domain = (-0.25, 1.5) if shifted else (-1.0, 1.0)
    polynomial = read_polynomial(network(degree, rank, features, 3, seed, scale=2.0), domain)
    ranges = proven_ranges(polynomial)
    corners = np.array(list(product(domain, repeat=features)))
    x = np.concatenate([corners, np.random.default_rng(seed).uniform(*domain, (200, features))])
    u = np.abs(polynomial.factors(x))
    for level, nodes, others in zip(tree_groups(degree), ranges.nodes, ranges.others, strict=True):
        for group, node, other in zip(level, nodes, others, strict=True):
            rest = [i for i in range(degree) if i not in group]
            # The values themselves are rounded.
            assert (u[list(group)].prod(0).max(-1) <= node * (1 + 1e-13)).all()
            assert (u[rest].prod(0).max(-1) <= other * (1 + 1e-13)).all()
    assert (np.abs(polynomial(x)).max(0) <= ranges.logits * (1 + 1e-13)).all()
    assert (np.linalg.norm(x, axis=1) <= ranges.length).all()


def test_the_largest_value_of_a_factor_is_exact():
    polynomial = read_polynomial(network(3, 4, 6), (-0.5, 2.0))
    corners = np.array(list(product((-0.5, 2.0), repeat=6)))
    exact = np.abs(polynomial.factors(corners)).max(-1)
    np.testing.assert_allclose(proven_ranges(polynomial).factors[:3], exact, rtol=1e-12)


def test_the_means_make_products_smaller():
    ranges = proven_ranges(read_polynomial(pb.example("pn-4")))
    assert ranges.products.max() < ranges.factors.prod(0).max() / 8


def test_ranges_at_images_are_those_of_the_images():
    polynomial = read_polynomial(network(3, 4, 6))
    x = images(6, 20)
    found = ranges_at(polynomial, x)
    np.testing.assert_allclose(found.products, np.abs(polynomial.factors(x).prod(0)).max(-1))
    assert (found.products <= proven_ranges(polynomial).products).all()


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 6])
def test_plans_are_safe_and_within_the_tolerance(degree):
    plan = plan_encryption(network(degree, 4, 12), tolerance=0.1)
    parameters = plan.parameters
    assert sum(parameters.bits) <= RINGS[parameters.ring] and plan.error <= 0.1
    # The logits fit the modulus that is left at the end, at the scale that they then have.
    spare = len(parameters.bits) - 2 - plan.layout.depth
    scale = parameters.level(plan.layout.depth) + parameters.output
    assert scale + np.log2(plan.ranges.logits.max()) < sum(parameters.bits[: spare + 1]) - 1
    assert plan.error_at(images(12, 20)) <= plan.error
    assert "array" not in repr(plan), "a plan shows what was chosen, not the weights"


def test_the_example_networks_need_the_small_ring_only_and_bounds_make_errors_smaller():
    plain, bounded = (plan_encryption(pb.example(name)) for name in ("pn-4", "pn-4-bound-1"))
    assert plain.ring == bounded.ring == 8192 and bounded.error < plain.error / 100


@pytest.mark.parametrize("plan", [plan_encryption, plan_batches])
@pytest.mark.parametrize("scale", [300.0, 1e8])
def test_networks_that_overflow_are_refused_by_the_value(plan, scale):
    with pytest.raises(PolyboundError, match=r"does not fit .* its factors reach .* a logit") as refused:
        plan(network(4, 4, 12, scale=scale))
    assert "inf" not in str(refused.value) and "nan" not in str(refused.value)


def test_the_bound_that_is_named_would_fit():
    model = network(4, 4, 12, scale=300.0)
    with pytest.raises(PolyboundError, match="row-l1 norms bounded by") as refused:
        plan_encryption(model)
    bound = float(str(refused.value).split("bounded by ")[1].split(" ")[0])
    polynomial = read_polynomial(model)
    assert plan_encryption(polynomial.bounded(bound * 0.99)).error <= 1
    with pytest.raises(PolyboundError):
        plan_encryption(polynomial.bounded(bound * 1.3))


@pytest.mark.parametrize(
    ("plan", "model", "message"),
    [
        (plan_batches, lambda: pb.CCP(12, 4, 3, degree=9), "degrees up to 8"),
        (plan_encryption, lambda: pb.CCP(12, 4, 3, degree=2, runs=2), "stack of 2"),
        (plan_batches, lambda: pb.NCP(12, 4, 3, degree=3), "NCP of degree 3"),
        (plan_encryption, lambda: pb.CCP(12, 8192, 3, degree=2), "do not fit"),
        (plan_batches, lambda: pb.paper_model("pn-conv", shape=(1, 28, 28)), "pools"),
        (plan_encryption, lambda: network(scale=float("nan")), "not finite"),
    ],
)
def test_models_that_do_not_fit_are_refused(plan, model, message):
    with pytest.raises(PolyboundError, match=message):
        plan(model())


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"uploads": 3}, {"domain": (1, -1)}, {"class_names": ["a"]}])
def test_bad_options_are_refused(options):
    with pytest.raises(PolyboundError):
        plan_encryption(network(), **options)


@pytest.mark.parametrize("model", [network, graph_network], ids=["chain", "graph"])
def test_a_plan_travels_as_json(model):
    plan = plan_encryption(model(), class_names=["a", "b", "c"])
    public = plan.public
    assert PublicPlan.from_json(public.to_json()) == public
    assert PublicPlan.from_json(public.to_json()).digest == public.digest
    # Nothing of the weights: their scale would tell how large they are.
    assert plan.to_json() == public.to_json() and plan.digest == public.digest
    assert set(json.loads(public.to_json())) == {
        "version", "packing", "ring", "bits", "pixels", "shape", "domain", "class_names", "error", "basis", "steps", "places",
        "blocks", "seconds",
    }  # fmt: skip


PUBLIC = [plan_encryption(network()).public.to_json(), plan_encryption(graph_network()).public.to_json()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ring": 4096}, "ring must be one of"),
        ({"bits": [60] * 16}, "128-bit security"),
        ({"bits": [60]}, "at least two primes"),
        ({"bits": [60, 61]}, "20 to 60 bits"),
        ({"bits": "60"}, "cannot be read"),
        ({"pixels": 0.0}, "scales"),
        ({"pixels": float("nan")}, "scales"),
        ({"shape": [5000]}, "packing"),
        ({"shape": [2**10, 2**10]}, "65536 entries"),
        ({"class_names": ["a"]}, "class names"),
        ({"class_names": ["a", "b", "\x1b[2J"]}, "printable"),
        ({"basis": "\x1b[2J"}, "printable"),
        ({"domain": [1, -1]}, "domain"),
        ({"domain": [float("nan"), 1]}, "domain"),
        ({"packing": {}}, "cannot be read"),
        ({"packing": {"columns": 8192, "shift": 1, "count": 1}}, "packing"),
        ({"packing": {"low": [], "high": []}}, "packing"),
        ({"steps": [0]}, "rotations do not fit"),
        ({"steps": [1, 1]}, "repeated"),
        ({"places": [0] * 9}, "class names do not fit"),
        ({"places": [2**15] * 3}, "logits do not fit"),
        ({"blocks": 0}, "1 to 10000 blocks"),
        ({"version": 1}, "another version"),
    ],
)
@pytest.mark.parametrize("public", PUBLIC, ids=["chain", "graph"])
def test_a_client_refuses_unsafe_and_senseless_plans(public, change, message):
    with pytest.raises(PolyboundError, match=message):
        PublicPlan.from_json(json.dumps(json.loads(public) | change))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "{}",
        b"\xff\xfe",
        '{"version": 2}',
        b"[" * 100_000,
        b'{"version": 2, "error": 1' + b"0" * 400,
    ],
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(PolyboundError, match="the server's plan"):
        PublicPlan.from_json(text)


@given(st.sampled_from(["columns", "shift", "count"]), st.integers(-5, 2**21))
def test_a_hostile_packing_does_not_get_far(name, value):
    content = json.loads(PUBLIC[0])
    content["packing"][name] = value
    try:
        found = PublicPlan.from_json(json.dumps(content))
    except PolyboundError:
        return
    slots = np.array(found.pack(images()[0]))
    assert slots.shape[0] <= 8 and slots.shape[1] == found.ring // 2
