"""VNN-LIB files: read in exact numbers as the field's own reader reads them, and written so."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.profiles import examples
from polybound.deploy import export_benchmark, read_vnnlib, robustness_vnnlib


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
        (")", "outside of parentheses"),
        ("hello", "outside of parentheses"),
        ("(assert (<= X_0 1))", "X_0 has no lower bound"),
        (f"\n; a comment\n{BOX}\n(assert (< Y_0 1))", "line 6: strict"),
        (BOX + "(assert (<= Y_0 X_0))", "not a box"),
        (BOX + "(assert (<= (* Y_0 Y_1) 1))", "not linear"),
        (BOX + "(assert (<= Y_2 1))", "Y_2 is not declared"),
        (BOX + "(assert (<= Y_0 1e5000))", "neither a variable nor a number"),
        (BOX + "(assert (<= Y_0 nan))", "neither a variable nor a number"),
        (BOX + "(assert (not (<= Y_0 1)))", "not read as a condition"),
        (BOX + "(assert (<= (/ Y_0 2) 1))", "not read as a term"),
        (BOX + "(assert)", "not read"),
        ("(check-sat)", "not read"),
        ("(vnnlib-version <2.0>)", "2.0"),
        ("(declare-const X_0 Real)", "twice"),
        ("(declare-const Z_0 Real)", "Z_0"),
        ("(declare-const X_7 Real)", "X_0, X_1"),
        ("(declare-fun X_1 () Real)", "not read"),
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
        ({"eps": float("nan")}, "eps"),
        ({"y": [1]}, "one label"),
        ({"y": [0, 10]}, "label"),
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
