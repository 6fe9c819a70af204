"""Differences of accuracies: paired by seed, or of the images where there is one seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.reports import row_like, rows_like_the_paper, spec_like
from polybound.evaluation import Cell, MixedError, Table, best_place, difference, wilson


def of_one_seed(correct, total, **changes):
    row = row_like(spec_like(), "clean", "-", 0.0)
    return Table([{**row, "correct": correct, "total": total, "available": 1000, **changes}])


def test_several_seeds_are_paired():
    from scipy.stats import ttest_rel

    rows = Table(rows_like_the_paper())
    ours = rows.where({"method.bound": 1.0, "protocol": "published"})
    theirs = rows.where(method="none", attack="fgsm-0.1")
    assert difference(ours, theirs).points == pytest.approx(33.51)
    spread = Table({**row, "correct": row["correct"] + 10 * row["seed"]} for row in theirs)
    found = difference(ours, spread)
    counts = [[row["correct"] / 100 for row in table] for table in (ours, spread)]
    test = ttest_rel(*counts)
    assert found.p == pytest.approx(test.pvalue) and found.seeds == (-1, 0, 1)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval()))
    with pytest.raises(MixedError, match="method"):
        difference(rows.where(attack="fgsm-0.1", protocol="published"), theirs)


@given(st.integers(1, 500), st.data())
def test_one_seed_has_an_interval_of_the_images(total, data):
    ours, theirs = (data.draw(st.integers(0, total)) for _ in range(2))
    found = difference(of_one_seed(ours, total), of_one_seed(theirs, total))
    (l1, u1), (l2, u2) = wilson(ours, total), wilson(theirs, total)
    assert found.points == pytest.approx(100 * (ours - theirs) / total) and found.p != found.p
    assert 100 * (l1 - u2) - 1e-9 <= found.low <= found.points <= found.high <= 100 * (u1 - l2) + 1e-9
    other = difference(of_one_seed(theirs, total), of_one_seed(ours, total))
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))


def test_what_cannot_be_compared():
    assert difference(of_one_seed(1, 5), of_one_seed(1, 20)) is None  # other images
    assert difference(of_one_seed(1, 5), of_one_seed(1, 5, digest="other")) is None
    assert difference(of_one_seed(1, 5), of_one_seed(1, 5, seed=1)) is None
    assert difference(of_one_seed(1, 5), Table()) is None


def test_the_best_lacks_nothing():
    def cell(mean, seeds=2):
        return Cell(mean, 0.0, tuple(range(seeds)), 10, 10)

    assert best_place([[cell(1.0), cell(2.0)], [cell(9.0), None], [cell(9.0), cell(9.0, 1)]]) == (0, 1)
    assert best_place([[cell(1.0), None], [cell(2.0), None]]) == (1, 2)  # nobody has the other
    assert best_place([[cell(1.0), None], [None, cell(2.0)]]) is None
    assert best_place([]) is None
