"""`verify` answers VNN-LIB properties: as `certify` does, as brute force does, and onnxruntime confirms it."""

import os
import re
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import ccps, ncps
from helpers.onnx_graphs import run, save_graph
from helpers.profiles import examples
from polybound.deploy import export_benchmark, read_onnx, read_vnnlib, robustness_vnnlib, to_onnx, verify
from polybound.models import GraphNetwork

ANSWERS = {"verified": "unsat", "falsified": "sat", "undecided": "timeout"}


def agree(model, x, y, eps, domain, folder):
    """Both ways to the same answers; how often each was given."""
    files = export_benchmark(model, folder, x, y, eps=eps, domain=domain, bounds=False)
    certificates = pb.certify(model, x, y, eps, domain=domain)
    network, counts = read_onnx(files[0]), {"unsat": 0, "sat": 0, "timeout": 0}
    for index, status in enumerate(certificates.status):
        verdict = verify(network, files[1 + index])
        assert verdict.answer == ANSWERS[status], index
        counts[verdict.answer] += 1
        if verdict.answer == "sat":
            check_counterexample(model, files[0], x[index], int(y[index]), eps, verdict)
    return counts


def check_counterexample(model, file, x, label, eps, verdict):
    """It lies in the ball, is made of float32 numbers, and onnxruntime classifies it as something else, too."""
    point = verdict.inputs
    assert torch.equal(point.float().double(), point)
    assert float((point - x.double().flatten()).abs().max()) <= eps * (1 + 1e-12)
    outputs = run(file, point.float().reshape(1, *model.shape))[0]
    assert verdict.replayed and torch.equal(outputs.double(), verdict.outputs)
    rivals = torch.cat([outputs[:label], outputs[label + 1 :]])
    assert float(rivals.max()) >= float(outputs[label])


def test_verify_agrees_with_certify(tmp_path):
    model, data = pb.paper_model("pn-4", (1, 8, 8), seed=1), pb.data.load_digits("test")
    x = data.x[:25]
    counts = agree(model, x, model(x).argmax(1), 0.02, data.domain, tmp_path)
    assert counts["unsat"] > 3 and counts["sat"] > 3


FASHION = Path(os.environ.get("POLYBOUND_DATA", "")) / "fashion-mnist"


@pytest.mark.slow
@pytest.mark.skipif(not FASHION.is_dir(), reason="POLYBOUND_DATA has no fashion-mnist")
def test_verify_agrees_with_certify_on_real_images(tmp_path):
    data = pb.data.load("fashion-mnist", "test")
    counts = agree(pb.example("pn-4"), data.x[:16], data.y[:16], 0.02, data.domain, tmp_path)
    assert counts["unsat"] > 6 and counts["sat"] > 1


def against_brute_force(network, function, x, seed, folder, timeout):
    """Random polytopes of outputs: no answer is contradicted by points of the box [-1, 1]."""
    [file] = to_onnx(network, folder / "net.onnx", bounds=False)
    rng, outputs = np.random.default_rng(seed), function(x).detach().numpy()
    spread = np.abs(outputs).max() + 1
    polytopes = [
        (np.round(rng.normal(size=(rows, network.classes)), 3), np.round(rng.normal(size=rows) * spread * 1.5, 3))
        for rows in rng.integers(1, 4, size=rng.integers(1, 4))
    ]
    question = folder / "p.vnnlib"
    question.write_text(as_vnnlib(network.features, network.classes, polytopes))
    verdict = verify(file, question, timeout=timeout)
    if any((outputs @ W.T <= c - 1e-9 * spread).all(1).any() for W, c in polytopes):
        assert verdict.answer != "unsat"
    if verdict.answer == "sat":
        assert float(verdict.inputs.abs().max()) <= 1
        value = function(verdict.inputs.unsqueeze(0)).detach().numpy()[0]
        assert any((W @ value <= c + 1e-9 * spread).all() for W, c in polytopes)


@settings(max_examples=examples(30), deadline=None)
@given(model=st.one_of(ccps(max_features=2), ncps(max_features=2)), seed=st.integers(0, 1000))
def test_any_linear_conditions_against_brute_force(model, seed, tmp_path_factory):
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 41, dtype=torch.float64)] * model.features)
    x = grid.reshape(-1, model.features)
    against_brute_force(model, model, x, seed, tmp_path_factory.mktemp("verify"), timeout=5)


def as_vnnlib(inputs, outputs, polytopes):
    names = [f"X_{i}" for i in range(inputs)] + [f"Y_{j}" for j in range(outputs)]
    lines = [f"(declare-const {name} Real)" for name in names]
    lines += [f"(assert (<= {name} 1.0)) (assert (>= {name} -1.0))" for name in names[:inputs]]

    def term(row):
        return f"(+ 0 {' '.join(f'(* {w} Y_{j})' for j, w in enumerate(row))})"

    clauses = [" ".join(f"(<= {term(w)} {r})" for w, r in zip(W, c, strict=True)) for W, c in polytopes]
    return "\n".join([*lines, f"(assert (or {' '.join(f'(and {clause})' for clause in clauses)}))"])


@settings(max_examples=examples(50), deadline=None)
@given(graph=graphs(most=8, degree=8), seed=st.integers(0, 1000))
def test_any_graph_against_brute_force(graph, seed, tmp_path_factory):
    x = torch.rand(500, graph.features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    against_brute_force(GraphNetwork.of(graph), graph, x, seed, tmp_path_factory.mktemp("verify"), timeout=0.2)


SUMS = "a = Mul input input; b = Mul a a; c = Mul b three; output = Sub c a"  # 3 x^4 - x^2, least at x^2 = 1/6: -1/12


@pytest.mark.parametrize(
    ("conditions", "answer"),
    [
        ("(<= Y_0 (- 0.083333))", "sat"),
        ("(<= Y_0 (- 0.08333334))", "unsat"),
        ("(>= Y_0 2)", "sat"),
        ("(>= Y_0 2.0000001)", "unsat"),
        ("(and (>= Y_0 0.5) (<= Y_0 0.5))", "unknown"),  # where x is no float
        ("(and (>= Y_0 0.5) (<= Y_0 0.5000001))", "sat"),
    ],
)
def test_networks_that_are_no_chain_are_decided_by_cells(conditions, answer, tmp_path):
    file = graph(tmp_path, SUMS)
    assert read_onnx(file).graph.chain() is None
    found = verify(file, ask(tmp_path, "(>= X_0 (- 1))", "(<= X_0 1)", conditions), timeout=20.0)
    assert found.answer == answer
    assert found.inputs is None or abs(float(found.inputs)) <= 1


def test_deep_networks_are_verified(tmp_path):
    torch.manual_seed(0)
    model = pb.PolyNet((1, 6, 6), 3, width=2, blocks=(1, 1), seed=0).eval()
    x = torch.rand(2, 1, 6, 6)
    files = export_benchmark(model, tmp_path, x, model(x).argmax(1), eps=[1e-4, 0.5], domain=(-1.0, 2.0))
    answers = [verify(files[0], question, timeout=1.0) for question in files[1:-1]]
    assert [found.answer for found in answers[:2]] == ["unsat"] * 2
    assert "sat" in [found.answer for found in answers[2:]]
    assert all(found.replayed for found in answers if found.answer == "sat")


@pytest.fixture
def square(tmp_path):
    """f = (x^2, 0) on one input."""
    V = torch.ones(2, 1, 1)
    model = pb.CCP.from_factors(torch.cat([V, torch.zeros(2, 1, 1)], -1), torch.tensor([[1.0], [0.0]]), form="product")
    [file] = to_onnx(model, tmp_path / "square.onnx", bounds=False)
    return file


def ask(folder, *assertions, outputs=1):
    """A property of one input."""
    file = folder / "p.vnnlib"
    names = ["X_0", *(f"Y_{j}" for j in range(outputs))]
    lines = [*(f"(declare-const {name} Real)" for name in names), *(f"(assert {text})" for text in assertions)]
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize(
    ("low", "high", "conditions", "answer"),
    [
        (1.0, 2.0, "(<= Y_0 0.999)", "unsat"),
        (1.0, 2.0, "(<= Y_0 1.0)", "sat"),
        (1.0, 2.0, "(and (>= Y_0 3.9) (<= Y_0 3.8))", "unsat"),
        (1.0, 2.0, "(and (>= Y_0 2.0) (<= Y_0 2.1))", "sat"),
        (1.0, 2.0, "(or (<= Y_0 0.5) (>= Y_0 3.99))", "sat"),
        (-2, 2, "(and (or (<= X_0 -1) (>= X_0 1)) (<= Y_0 0.9))", "unsat"),
        (0, 3, "(and (or (>= X_0 2) (<= X_0 2)) (<= Y_0 0.9))", "sat"),
        (1.0, 0.5, "(<= Y_0 1.0)", "unsat"),
        (0.1, 0.1, "(<= Y_1 0)", "sat"),  # a point that float64 has not
        (0.1, 0.1, "(<= Y_0 0.0099999)", "unsat"),
        (0.5, 0.5, "(>= Y_0 0.25)", "sat"),
        (0.5, 0.75, "(<= X_0 1)", "sat"),
    ],
)
def test_answers_are_right_to_the_last_digit(square, tmp_path, low, high, conditions, answer):
    verdict = verify(square, ask(tmp_path, f"(>= X_0 {low})", f"(<= X_0 {high})", conditions, outputs=2))
    assert verdict.answer == answer
    if answer == "sat":
        assert verdict.replayed
        assert verdict.outputs[0] == run(square, verdict.inputs.float().reshape(1, 1))[0, 0]


def test_the_answer_is_printed_as_vnn_comp_has_it(square, tmp_path):
    box = ("(>= X_0 1.0)", "(<= X_0 2.0)")
    verdict = verify(square, ask(tmp_path, *box, "(>= Y_0 3.0)", outputs=2))
    first, *rest = verdict.text().splitlines()
    assert first == "sat"
    assert re.fullmatch(r"\(\(X_0 [-\d.e]+\)\(Y_0 [-\d.e]+\)\(Y_1 [-\d.e]+\)\)", "".join(rest))
    quiet = verify(square, ask(tmp_path, *box, "(>= Y_0 5.0)", outputs=2))
    assert quiet.text() == "unsat"


def test_no_time_is_a_timeout(tmp_path):
    model = pb.paper_model("pn-10", (1, 8, 8), seed=0)
    x = torch.zeros(1, 1, 8, 8)
    files = export_benchmark(model, tmp_path, x, model(x).argmax(1), eps=1.0, bounds=False)
    assert verify(files[0], files[1], timeout=0.0).answer in ("timeout", "sat")
    refuses("timeout", verify, files[0], files[1], timeout=float("nan"))


def test_files_that_do_not_fit_each_other_are_refused(square, tmp_path):
    refuses("1 inputs and 1 outputs", verify, square, read_vnnlib(ask(tmp_path, "(>= X_0 0)", "(<= X_0 1)")))


def test_convolutions_are_verified(tmp_path):
    model = pb.ConvCCP((1, 6, 6), 2, 3, 3, 3, pre=3, pool=(2,), seed=0)
    x = torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    counts = agree(model, x, model(x).argmax(1), 0.3, (-1.0, 1.0), tmp_path)
    assert counts["timeout"] == 0


def graph(folder, nodes, kind=TensorProto.DOUBLE, tensors=None):
    """The file of a graph of one input and one output."""
    return save_graph(folder / "net.onnx", nodes, tensors or NUMBERS, ("batch", 1), ("batch", 1), kind)


THIRD = float(np.float32(1 / 3))
FOLDED = {
    # what the graph computes of x = 3: its nodes, and the exact value
    "a quotient": ("output = Div input three", Fraction(1)),
    "a quotient of constants": ("c = Div one three; output = Mul input c", Fraction(1)),
    "a sum of constants": ("c = Add one tiny; output = Mul input c", 3 * (1 + Fraction(2) ** -60)),
    "a sum of maps": ("a = Mul input one; b = Mul input tiny; output = Add a b", 3 * (1 + Fraction(2) ** -60)),
    "a factor": (f"output = Gemm input big alpha={THIRD!r}", 3 * Fraction(THIRD) * Fraction(np.pi)),
    "a mean of three": (
        "u = Unsqueeze input axis; w = Conv u ones pads=[0,2]; p = AveragePool w kernel_shape=[3]; output = Flatten p",
        Fraction(1),
    ),
    "a factor of a factor": ("a = Mul input third; output = Mul a pi", 3 * Fraction(1 / 3) * Fraction(np.pi)),
}
NUMBERS = {
    **{
        name: np.array([n])
        for name, n in {"one": 1.0, "three": 3.0, "third": 1 / 3, "tiny": 2.0**-60, "pi": np.pi}.items()
    },
    **{"big": np.array([[np.pi]]), "axis": np.array([1]), "ones": np.ones((1, 1, 1))},
}


@pytest.mark.parametrize("name", FOLDED)
def test_no_proof_rests_on_a_rounded_constant(name, tmp_path):
    nodes, exact = FOLDED[name]
    file = graph(tmp_path, nodes)
    for sign, relation in ((1, ">="), (-1, "<=")):

        def answer(value, relation=relation):
            question = ask(tmp_path, "(>= X_0 3)", "(<= X_0 3)", f"({relation} Y_0 {decimal(value)})")
            return verify(file, question).answer

        # The true output meets the first; the second is beyond it by more than roundings.
        assert answer(exact) in ("sat", "unknown")
        assert answer(exact + sign * exact / 10**9) == "unsat"
        assert answer(exact - sign * exact / 10**9) == "sat"


def decimal(value):
    """All digits of a fraction whose denominator is a power of two, or of ten times one."""
    digits = 0
    while (value * 10**digits).denominator > 1:
        digits += 1
    whole = abs(int(value * 10**digits))
    text = str(whole).rjust(digits + 1, "0")
    sign = "(- {})" if value < 0 else "{}"
    return sign.format(f"{text[: len(text) - digits]}.{text[len(text) - digits :]}0")


def test_constants_that_cancel_are_not_proven_with(tmp_path):
    file = graph(tmp_path, "c = Div one three; d = Sub c third; output = Mul input d")
    refuses("as numbers", verify, file, ask(tmp_path, "(>= X_0 3)", "(<= X_0 3)", "(>= Y_0 0.00000000000000001)"))


@pytest.mark.parametrize(("least", "answer"), [("0.75", "sat"), ("0.7500001", "unsat")])
def test_exact_constants_decide_to_the_last_digit(least, answer, tmp_path):
    tensors = {"four": np.float32([4]), "three": np.float32([3])}
    file = graph(tmp_path, "a = Div input four; output = Mul a three", TensorProto.FLOAT, tensors)
    assert verify(file, ask(tmp_path, "(>= X_0 1)", "(<= X_0 1)", f"(>= Y_0 {least})")).answer == answer


@pytest.mark.parametrize(("lower", "upper", "replayed"), [(-1e39, 1e39, True), (1.0, 1e39, True), (1e39, 2e39, False)])
def test_sides_beyond_float32_are_cut_for_onnxruntime_only(lower, upper, replayed, tmp_path):
    file = graph(tmp_path, "output = Identity input", TensorProto.FLOAT)
    box = (f"(>= X_0 {decimal(Fraction(lower))})", f"(<= X_0 {decimal(Fraction(upper))})")
    found = verify(file, ask(tmp_path, *box, "(>= Y_0 0)"), timeout=1.0)
    # Beyond float32's range the answer is one in real arithmetic, and onnxruntime has no such input.
    assert found.answer == "sat" and found.replayed == replayed and lower <= float(found.inputs) <= upper
    assert bool(torch.isfinite(found.outputs).all())


def declared(inputs, outputs):
    names = [f"X_{i}" for i in range(inputs)] + [f"Y_{j}" for j in range(outputs)]
    return "\n".join(f"(declare-const {name} Real)" for name in names)


def read(tmp_path, text, inputs=1, outputs=2):
    file = tmp_path / "p.vnnlib"
    file.write_text(declared(inputs, outputs) + text)
    return read_vnnlib(file)


BOX = "(assert (>= X_0 0.1)) (assert (<= X_0 0.5))"


def dense(region, outputs):
    return [
        [([float(row.Y.get(j, 0)) for j in range(outputs)], -float(row.constant)) for row in rows]
        for rows in region.polytopes
    ]


def judged(file, inputs, outputs):
    """What the field's own reader makes of the same file; it warns of negative numbers, which all benchmarks have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = pytest.importorskip("vnnlib.compat").read_vnnlib_simple(file, inputs, outputs)
    rows = [[zip(A.tolist(), b.reshape(-1).tolist(), strict=True) for A, b in polytopes] for _, polytopes in cases]
    return [(np.array(box), list(map(list, each))) for (box, _), each in zip(cases, rows, strict=True)]


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_robustness_files_are_read_as_the_fields_reader_does(data, tmp_path_factory):
    inputs, outputs = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 4))
    x = torch.tensor(data.draw(st.lists(st.floats(-1, 1, width=32), min_size=inputs, max_size=inputs)))
    label, eps = data.draw(st.integers(0, outputs - 1)), data.draw(st.floats(0, 2))
    file = tmp_path_factory.mktemp("vnnlib") / "p.vnnlib"
    file.write_text(robustness_vnnlib(x, label, eps, outputs, about="two\nlines"))
    [region] = read_vnnlib(file).regions
    [(box, polytopes)] = judged(file, inputs, outputs)
    assert [float(side) for side in region.lower] == box[:, 0].tolist()
    assert [float(side) for side in region.upper] == box[:, 1].tolist()
    assert dense(region, outputs) == polytopes
    lower, upper = region.sides(outwards=True)
    exact = [max(Fraction(value) - Fraction(eps), Fraction(-1)) for value in x.double().tolist()]
    assert all(Fraction(side) <= least for side, least in zip(lower.tolist(), exact, strict=True))
    assert bool(((x.double() - lower) <= eps + 1e-9).all()) and bool((upper <= 1).all())


def test_boxes_and_conditions_of_any_kind_as_the_fields_reader(tmp_path):
    text = """
    ; two boxes, each with its own conditions
    (assert (or
      (and (>= X_0 -1.5) (<= X_0 -1) (<= X_1 2e-1) (>= X_1 0) (<= Y_0 Y_1))
      (and (>= X_0 1) (<= X_0 1.5) (<= X_1 0.2) (>= X_1 0.0) (<= Y_0 3.25) (>= Y_1 -1.0))
    ))
    """
    found = read(tmp_path, text, 2, 2)
    for region, (box, polytopes) in zip(found.regions, judged(tmp_path / "p.vnnlib", 2, 2), strict=True):
        assert [[float(a), float(b)] for a, b in zip(region.lower, region.upper, strict=True)] == box.tolist()
        assert dense(region, 2) == polytopes


def test_terms_are_linear_forms(tmp_path):
    [region] = read(tmp_path, BOX + "(assert (<= (+ (* 2 Y_0) (- Y_1) (* 0.5 -3 Y_1) 7) (- Y_0 1 (* 0.25 8))))").regions
    [[row]] = region.polytopes
    assert {0: 1, 1: Fraction(-5, 2)} == row.Y and row.constant == 10 and not row.X


def test_conjunctions_of_disjunctions_are_multiplied_out(tmp_path):
    text = BOX + "(assert (or (<= Y_0 1) (<= Y_0 2))) (assert (and (or (>= Y_1 3) (>= Y_1 4)) (= Y_0 0)))"
    [region] = read(tmp_path, text).regions
    assert len(region.polytopes) == 4 and all(len(rows) == 4 for rows in region.polytopes)


def test_empty_boxes_and_false_conditions_are_dropped(tmp_path):
    assert not read(tmp_path, BOX + "(assert (<= X_0 0)) (assert (<= Y_0 0))").regions
    assert not read(tmp_path, BOX + "(assert (<= 1 0))").regions
    [region] = read(tmp_path, BOX + "(assert (or (<= 1 0) (and (<= 0 1) (<= Y_0 0))))").regions
    assert len(region.polytopes) == 1


def test_numbers_are_rounded_so_that_nothing_is_lost_and_nothing_is_invented(tmp_path):
    [region] = read(tmp_path, BOX + "(assert (<= (* 0.1 Y_0) 0.12345678901234567890123))").regions
    (low, high), (inner_low, inner_high) = region.sides(True), region.sides(False)
    assert Fraction(low.item()) <= Fraction(1, 10) <= Fraction(inner_low.item())
    assert Fraction(inner_high.item()) <= Fraction(1, 2) <= Fraction(high.item())
    [outer], [inner] = region.unsafe(2, True), region.unsafe(2, False)
    assert outer.weights.tolist() == inner.weights.tolist() == [[1.0, 0.0]]
    exact = Fraction("-1.2345678901234567890123")
    assert Fraction(outer.constant.item()) < exact < Fraction(inner.constant.item())
    [region] = read(tmp_path, BOX + "(assert (<= (* 0.1 Y_0) 0.7))").regions
    assert region.is_exact(2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("(assert (<= X_0 1)", "not closed"),
        ("hello", "outside of parentheses"),
        ("(assert (<= X_0 1))", "X_0 has no lower bound"),
        (f"\n; a comment\n{BOX}\n(assert (< Y_0 1))", "line 6: strict"),
        (BOX + "(assert (<= Y_0 X_0))", "not a box"),
        (BOX + "(assert (<= (* Y_0 Y_1) 1))", "not linear"),
        (BOX + "(assert (<= Y_2 1))", "Y_2 is not declared"),
        (BOX + "(assert (<= Y_0 1e5000))", "neither a variable nor a number"),
        (BOX + "(assert (not (<= Y_0 1)))", "not read as a condition"),
        (BOX + "(assert (<= (/ Y_0 2) 1))", "not read as a term"),
        ("(check-sat)", "not read"),
        ("(vnnlib-version <2.0>)", "2.0"),
        ("(declare-const X_0 Real)", "twice"),
        ("(declare-const Z_0 Real)", "Z_0"),
        ("(declare-const X_7 Real)", "X_0, X_1"),
        ("(" * 200, "parentheses are open"),
        (BOX + "(assert (or (<= Y_0 1) (<= Y_0 2)))" * 40, "cases"),
    ],
)
def test_what_is_not_read_is_refused_with_its_line(tmp_path, text, complaint):
    with pytest.raises(pb.FileFormatError, match=complaint) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_weights_that_float64_cannot_hold_are_refused(tmp_path):
    for weight in ("(* 1e300 1e300)", "0.12345678901234567890123"):
        [region] = read(tmp_path, BOX + f"(assert (<= (+ (* {weight} Y_0) Y_1) 1))").regions
        refuses("digits", region.unsafe, 2, True)


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "p.vnnlib"
    file.write_bytes(b"\xff\xfe(assert")
    refuses("not a text", read_vnnlib, file, error=pb.FileFormatError)


def test_a_benchmark_has_vnn_comps_layout(tmp_path):
    model = pb.paper_model("pn-4", (1, 8, 8), seed=0)
    data = pb.data.load_digits("test")
    files = export_benchmark(model, tmp_path / "b", data.x[:3], data.y[:3], eps=[0.01, 0.1], name="digits", timeout=30)
    rows = [line.split(",") for line in (tmp_path / "b" / "instances.csv").read_text().splitlines()]
    assert len(rows) == 6 and files[-1].name == "instances.csv"
    for network, question, seconds in rows:
        assert (tmp_path / "b" / network).parent.name == "onnx" and float(seconds) == 30
        assert read_vnnlib(tmp_path / "b" / question).inputs == 64
        [(_, polytopes)] = judged(tmp_path / "b" / question, 64, 10)
        assert len(polytopes) == 9
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["instances.csv", "onnx", "vnnlib"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"eps": -1.0}, "eps"),
        ({"y": [1]}, "one label"),
        ({"y": [0, 0.5]}, "whole numbers"),
        ({"domain": (0.5, 1.0)}, "domain"),
        ({"x": torch.full((2, 1, 8, 8), torch.nan)}, "finite"),
    ],
)
def test_questions_that_make_no_sense_are_refused(tmp_path, change, complaint):
    given = {"x": torch.zeros(2, 1, 8, 8), "y": [0, 1], "eps": 0.1} | change
    refuses(complaint, export_benchmark, pb.paper_model("pn-4", (1, 8, 8), seed=0), tmp_path, bounds=False, **given)


@pytest.mark.parametrize("y", [torch.tensor([1.0, 0.0]), np.array([1.0, 0.0], np.float32), np.array([1, 0]), [1, 0]])
@pytest.mark.parametrize("eps", [np.float64(0.25), np.float32(0.25), torch.tensor(0.25), [np.float64(0.25)]])
def test_numbers_of_any_library_are_written_as_numbers(y, eps, tmp_path):
    model = pb.CCP(2, 2, 2, 2, seed=0)
    domain = (np.float64(-1), np.float64(1))
    files = export_benchmark(model, tmp_path, torch.zeros(2, 2), y, eps=eps, domain=domain, bounds=False)
    assert [file.name for file in files[1:3]] == ["network_0_eps_0.25.vnnlib", "network_1_eps_0.25.vnnlib"]
    assert "(>= Y_0 Y_1)" in files[1].read_text() and read_vnnlib(files[1]).outputs == 2
