"""A network's value in rational arithmetic is that of its definition, number by number."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.networks import apply_map, ccps, convs, exact_map, ncps
from helpers.profiles import examples
from polybound.certificates.proofs.exact import exact_logits


@settings(max_examples=examples(30), deadline=None)
@given(model=st.one_of(ccps(), ncps(), convs()), seed=st.integers(0, 1000), size=st.sampled_from([1e-300, 1.0, 1e150]))
def test_exact_outputs_are_those_of_the_definition(model, seed, size):
    factors = model.factors().double()
    x = size * torch.randn(model.features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[0] = [0.0, 5e-324, -1.0][seed % 3]
    point = [Fraction(value) for value in x.tolist()]
    A, S = ([exact_map(step) for step in steps] for steps in (factors.A, factors.S))
    y = [value * Fraction(s) for value, s in zip(apply_map(A[0], point), factors.s1.tolist(), strict=True)]
    for a, s in zip(A[1:], S, strict=True):
        y = [left * right for left, right in zip(apply_map(a, point), apply_map(s, y), strict=True)]
    assert exact_logits(factors, x) == apply_map(exact_map(factors.C), y)
