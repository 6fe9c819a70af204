"""A network's value in rational arithmetic is that of its definition, number by number."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.networks import ccps, convs, ncps
from helpers.profiles import examples
from polybound.certificates.proofs.exact import exact_logits
from polybound.models import Chain


def applied(step, x):
    """`W x + b`, one part of a chain after another, by the written-out matrix."""
    if isinstance(step, Chain):
        for part in step.maps:
            x = applied(part, x)
        return [value + Fraction(step.shift) for value in x]
    rows, constants = step.matrix().tolist(), step.constant.tolist()
    return [
        sum((Fraction(w) * value for w, value in zip(row, x, strict=True)), Fraction(b))
        for row, b in zip(rows, constants, strict=True)
    ]


@settings(max_examples=examples(30), deadline=None)
@given(model=st.one_of(ccps(), ncps(), convs()), seed=st.integers(0, 1000), size=st.sampled_from([1e-300, 1.0, 1e150]))
def test_exact_outputs_are_those_of_the_definition(model, seed, size):
    factors = model.factors().double()
    x = size * torch.randn(model.features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[0] = [0.0, 5e-324, -1.0][seed % 3]
    point = [Fraction(value) for value in x.tolist()]
    y = [a * Fraction(s) for a, s in zip(applied(factors.A[0], point), factors.s1.tolist(), strict=True)]
    for a, s in zip(factors.A[1:], factors.S, strict=True):
        y = [left * right for left, right in zip(applied(a, point), applied(s, y), strict=True)]
    assert exact_logits(factors, x) == applied(factors.C, y)
