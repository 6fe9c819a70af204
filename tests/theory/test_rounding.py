"""Products of many numbers, rounded outwards: never below the truth, at any length."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from polybound.theory.rounding import mantissa_product, product

factors = st.lists(st.floats(0, exclude_min=True, allow_infinity=False), min_size=1, max_size=6)


@given(factors, st.integers(1, 400))
@example([0.75], 1100)
@example([0.5000001, 2.0**600, 2.0**-600], 700)
def test_a_product_of_many_factors_is_not_below_the_truth(values: list[float], times: int):
    truth = math.prod(map(Fraction, values)) ** times
    found = float(product(torch.tensor(values * times, dtype=torch.float64)))
    assert found == math.inf or Fraction(found) >= truth
    if Fraction(2) ** -1000 < truth < Fraction(2) ** 1000:
        assert Fraction(found) <= truth * (1 + Fraction(1, 10**12))


@given(factors)
def test_mantissas_round_as_the_plain_product_does(values: list[float]):
    plain = math.prod(values)
    mantissa, exponent = mantissa_product(torch.tensor(values, dtype=torch.float64))
    partial = [math.prod(values[:n]) for n in range(1, len(values) + 1)]
    if all(2.0**-1000 < value < 2.0**1000 for value in partial):
        assert math.ldexp(float(mantissa), int(exponent)) == plain
