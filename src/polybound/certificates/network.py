"""A network prepared for bounding: its factors written out, with the error budget of float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import prod, sqrt

import torch
from torch import Tensor

from polybound.certificates.bounds.quadratic import dominating_diagonal, dominating_gram
from polybound.errors import PolyboundError
from polybound.models import (
    SAVING,
    Chain,
    Dense,
    Factors,
    Identity,
    PolynomialNetwork,
    Pool,
    Windowed,
    Windows,
    factors_of,
    parts,
    windowed,
    windows_of,
)
from polybound.theory import DENSE_LIMIT, ULP


class PreparedNetwork:
    """The factors `y_1 = A_1(x) s_1, y_n = A_n(x) S_n(y_(n-1)), f = C(y_k)` in the form that bounds are computed from.

    Rounding. Every coefficient that certificates use (a value, an entry of a gradient or of a Hessian, a term of a
    remainder) is a sum of products of weights and inputs in which every map of the chain occurs at most once. In
    float64, in whatever order and with or without fused multiply-adds, each of those products is computed up to a
    factor `1 + t`, `|t| <= gamma_D = D u / (1 - D u)`, where u = 2^-53 and D counts the roundings one product can meet:
    no more than there are summands in all the sums on its way. So the expansion as a whole, anywhere in a box with
    `|x| <= X`, is off by at most `gamma_D P(X)`, where P is the network with absolute values in the place of its
    weights, the sum of the absolute values of all products. `slack` is eight times that: once for the coefficients,
    once each for the weights and the slopes that a remainder is bounded with, and the rest for the rounding of P, of
    the bounds of a remainder and of the final subtraction. What is left is a polynomial whose coefficients *are*
    float64 numbers.

    Underflow takes less than 2^-1074 from the result of an operation, whatever it is, and what follows multiplies that.
    What follows is made of maps that are not in the result yet, each at most once. So it is at most the product Z over
    all maps of `max(1, largest row sum)`: of `|A_n| X + |b_n|` for a map of the input, of `|W| 1 + |b|` for the others,
    of each part of a chain; times `max(1, sum_d X_d)` for the one input that a gradient is multiplied by last. The
    number of operations, and of the terms that such an error enters, is below 2^90 altogether. Where numbers are
    squared and rooted on the way, for norms, underflow takes less than 2^-537 from the root. So `slack` adds
    `2^-480 Z`, and is infinite from `Z = 2^400` on, or where P is 2^100 or more.

    Attributes:
        factors: the factors in float64, a copy: later changes of the model's weights have no effect.
        features, degree, classes: sizes d, k, o.
        shape: shape of one input, of a model; (features,) of bare factors.
        A: the maps of the input, written out: as matrices, or, of convolutions, window by window where that is smaller;
            `absolute_A` their absolute values.
        b: their constants.
        S: the maps in between; `absolute_S` their absolute values.
        s1: the first factor's scale.
        C: the output matrix (classes, units); `beta` its constants.
        absolute: the factors with absolute values in the place of all weights, P.
        roundings: D.

    Args:
        model: a model, or its factors.
        by_windows: whether convolutions are kept window by window; by default, where that is smaller.
    """

    def __init__(self, model: PolynomialNetwork | Factors, *, by_windows: bool | None = None) -> None:
        # Copied, as float64 weights would be those of the model itself.
        self.factors = factors = factors_of(model).double().transform(torch.clone)
        if factors.lead:
            raise PolyboundError("certificates are about one model; take model.run(e) of a stack")
        if factors.s1.device.type != "cpu":
            raise PolyboundError("certificates are computed on the CPU, whose float64 is known; use model.cpu()")
        self.features, self.degree = factors.features, factors.degree
        self.shape = model.shape if isinstance(model, PolynomialNetwork) else (self.features,)
        windows = None if by_windows is False else _windows(factors, smaller=by_windows is None)
        if windows is None:
            check_entries(factors)
            # As views of their transposed, so that rows of those are features.
            self.A: list[Dense | Windowed] = [Dense(a.matrix().T.contiguous().T, a.constant) for a in factors.A]
        else:
            self.A = [windowed(a, seen) for a, seen in zip(factors.A, windows, strict=True)]
        self.absolute_A = [a.transform(torch.abs) for a in self.A]
        self.b = [a.constant for a in factors.A]
        self.S, self.absolute_S = factors.S, [step.absolute() for step in factors.S]
        self.s1 = factors.s1
        self.C, self.beta = factors.C.matrix().contiguous(), factors.C.constant
        self.classes = len(self.C)
        weights = *(a.weight for a in self.A), *self.b, *(s.constant for s in factors.S), self.s1, self.C, self.beta
        if not all(torch.isfinite(weight).all() for weight in weights):
            raise PolyboundError("the model's weights are not all finite")
        # A chain keeps the absolute values of its parts apart: |K| |P| dominates every term of K P, |K P| does not.
        A, S = (tuple(step.absolute() for step in steps) for steps in (factors.A, factors.S))
        if windows is not None:
            A = tuple(windowed(a, seen) for a, seen in zip(A, windows, strict=True))
        self.absolute = replace(factors, A=A, S=S, s1=factors.s1.abs(), C=factors.C.absolute())
        steps = [part for step in (*factors.A, *factors.S, factors.C) for part in parts(step)]
        terms = sum(step.inputs + 2 for step in steps) + sum(b.numel() for b in self.b) + self.features
        self.roundings = terms + 16 * self.degree + 64

    @cached_property
    def At(self) -> list[Tensor]:
        """The maps of the input as matrices, transposed: (features, units) each."""
        check_entries(self.factors)
        return [a.weight.T if isinstance(a, Dense) else a.matrix().T.contiguous() for a in self.A]

    @property
    def breadth(self) -> int:
        """Numbers that the slopes of one factor have, at most, for each feature that moves."""
        last = self.A[-1]
        if not isinstance(last, Windowed):
            return max(a.outputs for a in self.A)
        # Going backwards, places come to see the windows of the last factor.
        return max(a.outputs for a in self.A) * last.windows.patch // self.features + 1

    @cached_property
    def stretch(self) -> list[Tensor]:
        """For each factor, mu >= 0 with `||A_n v||_2^2 <= sum_d mu_d v_d^2` for all v: (features,) each."""
        return [_stretch(a, steps=40) for a in self.A]

    @cached_property
    def norms_A(self) -> list[float]:
        """Upper bounds of the spectral norms of the maps of the input."""
        return [sqrt(float(_stretch(a, steps=1).max())) * (1 + 4 * ULP) for a in self.A]

    @cached_property
    def norms_S(self) -> list[float]:
        """Upper bounds of the spectral norms of the maps in between, proven; 1 for the identity."""
        norms = []
        for step in self.S:
            if isinstance(step, Identity):
                norms.append(1.0)
            elif isinstance(step, Dense):
                norms.append(sqrt(float(dominating_diagonal(step.weight.T, steps=1).max())) * (1 + 4 * ULP))
            else:
                # ||W||_2^2 <= ||W||_1 ||W||_inf, with equality for a pooling.
                absolute, roundings = step.absolute(), step.inputs + step.outputs + 8
                columns = absolute.adjoint(step.constant.new_ones(1, step.outputs))
                norms.append(sqrt(float(absolute.row_l1().max() * columns.max())) * (1 + roundings * ULP))
        return norms

    def prepare(self, norm: str) -> None:
        """Compute norms that are needed once for a model, before the clock of the first images starts."""
        with torch.no_grad():
            _ = self.stretch, self.norms_S
            if norm == "2":
                _ = self.norms_A

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a shape is that of one input, as the model takes it: its own, or flat."""
        return tuple(shape) in (tuple(self.shape), (self.features,))

    def slack(self, x: Tensor) -> Tensor:
        """How far float64 can be off where `|x'| <= x`, class by class: (batch, classes). See the class."""
        x = x * (1.0 + 2.0**-40) + 2.0**-1000
        grown = x.sum(-1).clamp_min(1.0) * self._growth
        y = self.s1.abs()
        for n, step in enumerate(self.absolute.A):
            values = step(x)
            grown = grown * values.amax(-1).clamp_min(1.0)
            y = values * (y if n == 0 else self.absolute.S[n - 1](y))
        size, grown = self.absolute.C(y), grown.unsqueeze(-1)
        slack = size * (4 * self.roundings * ULP) + grown * 2.0**-480
        return torch.where((size < 2.0**100) & (grown < 2.0**400), slack, torch.inf)

    @cached_property
    def _growth(self) -> float:
        """The part of Z that does not depend on the input."""
        inner = [part for a in self.factors.A if isinstance(a, Chain) for part in parts(a)]
        maps = [*inner, *self.factors.S, self.factors.C]
        rows = [step.absolute()(step.constant.new_ones(1, step.inputs)) for step in maps]
        return prod(max(1.0, float(row.max())) for row in (*rows, self.s1.abs()))

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of inputs (batch, features), off by less than `slack(|x|)`."""
        return self.last_product(x) @ self.C.T + self.beta

    def last_product(self, x: Tensor) -> Tensor:
        """`y_k`, (batch, units), of inputs (batch, features)."""
        y = self.A[0](x) * self.s1
        for n in range(1, self.degree):
            y = self.A[n](x) * self.between(y, n)
        return y

    def between(self, y: Tensor, n: int) -> Tensor:
        """The multiplier of factor n (from 0): `S(y)` with its constant, for the product y before it."""
        return self.S[n - 1](y)

    def radius_between(self, y: Tensor, n: int) -> Tensor:
        """`|S| y`, the radius before factor n of a product with radius y."""
        return self.absolute_S[n - 1].linear(y)

    def back(self, y: Tensor, n: int, absolute: bool = False) -> Tensor:
        """`S^T y`, or `|S|^T y`: from factor n back to the product before it; y is (..., units)."""
        step = (self.absolute_S if absolute else self.S)[n - 1]
        return step.adjoint(y.reshape(-1, y.shape[-1])).reshape(*y.shape[:-1], step.inputs)


def check_entries(factors: Factors) -> None:
    """Refuse maps of the input that are too large to be written out."""
    if factors.entries() > DENSE_LIMIT:
        raise PolyboundError(f"the maps of the input have {factors.entries():,} entries; {DENSE_LIMIT:,} fit")


def _windows(factors: Factors, smaller: bool) -> list[Windows] | None:
    """The windows of a network of convolutions with poolings in between; None for all others.

    Args:
        factors: the network's.
        smaller: None as well where windows save little.
    """
    found = [windows_of(a) for a in factors.A]
    windows = [seen for seen in found if seen is not None]
    if len(windows) < len(found):
        return None
    for before, after, step in zip(windows[:-1], windows[1:], factors.S, strict=True):
        expected = before.pooled() if isinstance(step, Pool) else before
        if after != expected or not isinstance(step, (Pool, Identity)):
            return None
    entries = sum(a.outputs * seen.patch for a, seen in zip(factors.A, windows, strict=True))
    return windows if not smaller or SAVING * entries <= factors.entries() else None


def _stretch(step: Dense | Windowed, steps: int) -> Tensor:
    """For a map that is written out, mu with `||A v||_2^2 <= sum_d mu_d v_d^2` for all v."""
    if isinstance(step, Dense):
        return dominating_diagonal(step.weight.T, steps)
    absolute = step.absolute()
    rows = absolute.adjoint(absolute.linear(step.constant.new_ones(1, step.inputs))).squeeze(0)
    return dominating_gram(step.gram(), rows, step.outputs, steps)
