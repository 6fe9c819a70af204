"""The polynomial that is evaluated encrypted: C of one product of affine maps, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork, polynomial

__all__ = ["MAX_DEGREE", "Array", "Polynomial", "read_polynomial"]

Array = npt.NDArray[np.float64]

MAX_DEGREE = 8


@dataclass(frozen=True, eq=False)
class Polynomial:
    """`f(x) = C (prod_i (W_i x + b_i)) + beta` over the box `low <= x <= high`.

    Attributes:
        W: (degree, rank, features).
        b: (degree, rank).
        C: (classes, rank).
        beta: (classes,).
        shape: of one input.
        low: the smallest value of an input's entry.
        high: the largest.
    """

    W: Array
    b: Array
    C: Array
    beta: Array
    shape: tuple[int, ...]
    low: float
    high: float

    @property
    def degree(self) -> int:
        """The number k of factors."""
        return len(self.W)

    @property
    def rank(self) -> int:
        """The number m of units."""
        return int(self.W.shape[1])

    @property
    def features(self) -> int:
        """The number d of inputs."""
        return int(self.W.shape[2])

    @property
    def classes(self) -> int:
        """The number of outputs."""
        return len(self.C)

    def factors(self, x: Array) -> Array:
        """The values of all factors at images (images, features): (degree, rank, images)."""
        values: Array = self.W @ x.T + self.b[:, :, None]
        return values

    def bounded(self, bound: float) -> Polynomial:
        """The same with every row scaled down to an l1 norm of at most `bound`, constants aside."""

        def shrunk(rows: Array) -> Array:
            norms = np.abs(rows).sum(-1, keepdims=True)
            smaller: Array = rows * np.minimum(1.0, bound / np.maximum(norms, 1e-300))
            return smaller

        return replace(self, W=shrunk(self.W), C=shrunk(self.C))

    def __call__(self, x: Array) -> Array:
        """The logits (images, classes) at images (images, features), in float64."""
        logits: Array = (self.C @ self.factors(x).prod(0)).T + self.beta
        return logits


def read_polynomial(model: PolynomialNetwork, domain: tuple[float, float] = (-1.0, 1.0)) -> Polynomial:
    """The polynomial of a model, over the box `domain`.

    An NCP of degree two is one plain product: `S_2 diag(s_1) A_1` is one matrix.

    Raises:
        PolyboundError: the model is a stack, is no plain product, or its degree is above `MAX_DEGREE`.
    """
    low, high = map(float, domain)
    if not low < high or not np.isfinite([low, high]).all():
        raise PolyboundError(f"the domain must be an interval, got {domain}")
    if polynomial(model).runs is not None:
        raise PolyboundError(f"one network at a time: this is a stack of {model.runs}; take model.run(0)")
    if model.degree > MAX_DEGREE:
        raise PolyboundError(f"encrypted inference takes degrees up to {MAX_DEGREE}: this model has {model.degree}")
    if model.features > 2**16:
        raise PolyboundError(f"encrypted inference takes up to {2**16} inputs: this model has {model.features}")
    factors = model.factors().double()
    if not factors.coupled and not (factors.kind == "NCP" and factors.degree == 2):
        raise PolyboundError(_why_not(factors))
    weights, constants = _maps(factors.dense)
    C, beta = factors.dense.C.matrix().numpy(), factors.C.constant.numpy()
    if not all(np.isfinite(values).all() for values in (weights, constants, C, beta)):
        raise PolyboundError("the model has weights that are not finite")
    return Polynomial(weights, constants, C, beta, model.shape, low, high)


def _maps(factors: Factors) -> tuple[Array, Array]:
    scale = factors.s1.unsqueeze(-1)
    W = [a.matrix() for a in factors.A]
    b = [a.constant for a in factors.A]
    W[0], b[0] = scale * W[0], factors.s1 * b[0]
    if not factors.coupled:
        between = factors.S[0]
        W[0], b[0] = between.matrix() @ W[0], between(b[0].unsqueeze(0)).squeeze(0)
    return torch.stack(W).numpy(), torch.stack(b).numpy()


def _why_not(factors: Factors) -> str:
    if factors.kind == "NCP":
        return (
            f"an NCP of degree {factors.degree} needs {2 * factors.degree - 1} multiplications in a row, one encrypted "
            "image allows for its product tree only: an NCP of degree 2 or a CCP fits"
        )
    return "the model pools between its products: a CCP without pooling fits"
