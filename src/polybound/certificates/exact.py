"""A network's value at a float64 point in rational arithmetic: slow, and beyond doubt."""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor

from polybound.models import Affine, Chain, Factors, Identity

__all__ = ["exact_forms", "exact_logits", "exact_margin"]


def exact_logits(factors: Factors, x: Tensor) -> list[Fraction]:
    """The logits at x, (features,), of one model's factors.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(3, 2, 2, degree=2, seed=0)
    >>> exact_logits(model.factors().double(), torch.zeros(3)) == [Fraction(b) for b in model.C[:, -1].tolist()]
    True
    """
    point = _fractions(x)
    y = [a * s for a, s in zip(_apply(factors.A[0], point), _fractions(factors.s1), strict=True)]
    for a, s in zip(factors.A[1:], factors.S, strict=True):
        y = [left * right for left, right in zip(_apply(a, point), _apply(s, y), strict=True)]
    return _apply(factors.C, y)


def exact_margin(factors: Factors, x: Tensor, label: int, rival: int) -> Fraction:
    """`f_label(x) - f_rival(x)`."""
    logits = exact_logits(factors, x)
    return logits[label] - logits[rival]


def exact_forms(factors: Factors, x: Tensor, a: Tensor, b: Tensor) -> list[Fraction]:
    """`a f(x) + b`, row by row, for a (forms, classes) and b (forms,)."""
    logits = exact_logits(factors, x)
    rows = [_fractions(row) for row in a]
    return [
        sum((weight * value for weight, value in zip(row, logits, strict=True) if weight), start)
        for row, start in zip(rows, _fractions(b), strict=True)
    ]


def _fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.detach().double().tolist()]


def _apply(step: Affine, x: list[Fraction]) -> list[Fraction]:
    if isinstance(step, Identity):
        return x
    if isinstance(step, Chain):
        # A chain's own matrix and constant would be rounded; its parts' are not.
        for part in step.maps:
            x = _apply(part, x)
        return [value + Fraction(step.shift) for value in x]
    result = _fractions(step.constant)
    matrix = step.matrix()
    for row, column in matrix.nonzero().tolist():
        result[row] += Fraction(float(matrix[row, column])) * x[column]
    return result
