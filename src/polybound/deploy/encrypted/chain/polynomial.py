"""The polynomial that is evaluated encrypted, C of one product of affine maps, and the ranges of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product as combinations

import numpy as np
import numpy.typing as npt
import torch

from polybound.errors import PolyboundError, check_domain
from polybound.models import PolynomialNetwork, polynomial

Array = npt.NDArray[np.float64]

MAX_DEGREE = 8
MAX_FEATURES = 2**16


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
        return np.asarray(self.W @ x.T + self.b[:, :, None])

    def bounded(self, bound: float) -> Polynomial:
        """The same with every row scaled down to an l1 norm of at most `bound`, constants aside."""

        def shrunk(rows: Array) -> Array:
            norms = np.abs(rows).sum(-1, keepdims=True)
            return np.asarray(rows * np.minimum(1.0, bound / np.maximum(norms, 1e-300)))

        return replace(self, W=shrunk(self.W), C=shrunk(self.C))

    def __call__(self, x: Array) -> Array:
        """The logits (images, classes) at images (images, features), in float64."""
        return np.asarray((self.C @ self.factors(x).prod(0)).T + self.beta)


def check_finite(domain: tuple[float, float]) -> tuple[float, float]:
    """The domain, once it is known to be a finite interval."""
    low, high = check_domain(domain)
    if not np.isfinite([low, high]).all():
        raise PolyboundError(f"the domain must be finite, got {domain}")
    return low, high


def is_one_product(model: PolynomialNetwork) -> bool:
    """Whether `read_polynomial` takes the model, as it takes a stack to refuse it."""
    if polynomial(model).runs is not None:
        return True
    if model.degree > MAX_DEGREE or model.features > MAX_FEATURES or model.graph().chain() is None:
        return False
    factors = model.factors()
    return factors.coupled or (factors.kind == "NCP" and factors.degree == 2)


def read_polynomial(model: PolynomialNetwork, domain: tuple[float, float] = (-1.0, 1.0)) -> Polynomial:
    """The polynomial of a model, over the box `domain`.

    An NCP of degree two is one plain product: `S_2 diag(s_1) A_1` is one matrix.

    Raises:
        PolyboundError: the model is a stack, is not a plain product, or its degree is above `MAX_DEGREE`.
    """
    low, high = check_finite(domain)
    if polynomial(model).runs is not None:
        raise PolyboundError(f"one network at a time: this is a stack of {model.runs}; take model.run(0)")
    if model.degree > MAX_DEGREE:
        raise PolyboundError(f"encrypted inference takes degrees up to {MAX_DEGREE}: this model has {model.degree}")
    if model.features > MAX_FEATURES:
        raise PolyboundError(f"encrypted inference takes up to {MAX_FEATURES} inputs: this model has {model.features}")
    factors = model.factors().double()
    if not factors.coupled and not (factors.kind == "NCP" and factors.degree == 2):
        if factors.kind != "NCP":
            raise PolyboundError("the model pools between its products: a CCP without pooling fits")
        raise PolyboundError(
            f"an NCP of degree {factors.degree} needs {2 * factors.degree - 1} multiplications in a row, one encrypted "
            "image allows for its product tree only: an NCP of degree 2 or a CCP fits"
        )
    dense = factors.dense
    W, b = [a.matrix() for a in dense.A], [a.constant for a in dense.A]
    W[0], b[0] = dense.s1.unsqueeze(-1) * W[0], dense.s1 * b[0]
    if not dense.coupled:
        between = dense.S[0]
        W[0], b[0] = between.matrix() @ W[0], between(b[0].unsqueeze(0)).squeeze(0)
    weights, constants = torch.stack(W).numpy(), torch.stack(b).numpy()
    C, beta = dense.C.matrix().numpy(), factors.C.constant.numpy()
    if not all(np.isfinite(values).all() for values in (weights, constants, C, beta)):
        raise PolyboundError("the model has weights that are not finite")
    return Polynomial(weights, constants, C, beta, model.shape, low, high)


# How large every value of the circuit can become.


_ULP = 2.0**-52


def outward(value: Array, terms: int) -> Array:
    """A float64 value, raised by more than the rounding of a sum of `terms` non-negative products."""
    return np.asarray(value * (1.0 + (terms + 16) * _ULP))


@dataclass(frozen=True, eq=False)
class Ranges:
    """Upper bounds of absolute values.

    The product of the k factors, filled up with ones to `2^depth`, is a tree: at level n the values are products of
    the factors of one group, `2^(depth - n)` groups.

    Attributes:
        length: of the l2 norm of an input.
        partial: of any partial sum of a factor's map.
        rows: the l2 norms of the factors' rows, (2^depth, rank); zero for the fillers.
        nodes: of the products at every level of the tree, each (groups, rank); level 0 are the factors.
        others: of the product of all other nodes of the same level, same shapes.
        logits: (classes,).
    """

    length: float
    partial: float
    rows: Array
    nodes: tuple[Array, ...]
    others: tuple[Array, ...]
    logits: Array

    @property
    def factors(self) -> Array:
        """The factors' bounds, (2^depth, rank)."""
        return self.nodes[0]

    @property
    def products(self) -> Array:
        """The bounds of the product of all factors, (rank,)."""
        return np.asarray(self.nodes[-1][0])


def tree_groups(degree: int) -> list[list[tuple[int, ...]]]:
    """The factors that each node of the tree multiplies, level by level; fillers are not named.

    Node i of a level is multiplied by node `i + groups / 2`.

    >>> tree_groups(3)
    [[(0,), (1,), (2,), ()], [(0, 2), (1,)], [(0, 1, 2)]]
    """
    depth = (degree - 1).bit_length()
    level: list[tuple[int, ...]] = [(i,) if i < degree else () for i in range(2**depth)]
    levels = [level]
    while len(level) > 1:
        half = len(level) // 2
        level = [tuple(sorted(level[i] + level[i + half])) for i in range(half)]
        levels.append(level)
    return levels


def proven_ranges(polynomial: Polynomial) -> Ranges:
    """The ranges over the polynomial's whole box of inputs.

    A factor's largest value is exact: with the box's centre c and radius r it is `|W c + b| + r ||W||_1`. A product of
    j factors is at most the product of their largest values, and by the inequality of the means, for all `t > 0` of
    product one, at most `(max_signs sup |sum_i +-t_i u_i| / j)^j`; the smaller of the two counts. The second is an
    order of magnitude smaller where no input makes all factors large.
    """
    centre, radius = (polynomial.low + polynomial.high) / 2, (polynomial.high - polynomial.low) / 2
    W, d = polynomial.W * radius, polynomial.features
    size = np.abs(polynomial.b) + np.abs(polynomial.W).sum(-1) * abs(centre)
    # The rounding of the constants is relative to the sum of the absolute values of their terms.
    constant = polynomial.b + polynomial.W.sum(-1) * centre
    slack = size * (d + 16) * _ULP

    def reach(chosen: list[int]) -> Array:
        rows, shift, off = W[chosen], constant[chosen], slack[chosen]
        j = len(rows)
        if j == 0:
            return np.ones(polynomial.rank)
        single = outward(np.abs(rows).sum(-1) + np.abs(shift), d) + off
        plain = outward(single.prod(0), j)
        if j == 1 or not (single > 0).all():
            return plain
        t = np.exp(np.log(single).mean(0)) / single
        # t is rounded, so its product is not exactly one.
        correction = outward(1 / t.prod(0), j)
        weighted, shifts = rows * t[..., None], shift * t
        largest = np.zeros(polynomial.rank)
        for signs in combinations((1.0, -1.0), repeat=j - 1):
            sign = np.array((1.0, *signs))
            total = np.abs(np.tensordot(sign, weighted, 1)).sum(-1) + np.abs(sign @ shifts)
            largest = np.maximum(largest, total)
        rounding = (j + d + 16) * _ULP * (single * t).sum(0) + (off * t).sum(0)
        means = outward((outward(largest, d) + rounding) / j, j) ** j * correction
        return np.minimum(plain, outward(means, 4 * j))

    return _ranges(polynomial, reach, max(abs(polynomial.low), abs(polynomial.high)))


def ranges_at(polynomial: Polynomial, images: Array) -> Ranges:
    """The ranges of these images (images, features) alone, not of the whole domain."""
    values, length = np.abs(polynomial.factors(images)), float(np.linalg.norm(images, axis=1).max())
    return _ranges(polynomial, lambda chosen: values[chosen].prod(0).max(-1), float(np.abs(images).max()), length)


def usual_ranges(polynomial: Polynomial) -> Ranges:
    """Typical values: each factor three standard deviations off, for independent pixels.

    This is not a bound. It weighs errors against each other where the choice of scales is free.
    """
    centre, radius = (polynomial.low + polynomial.high) / 2, (polynomial.high - polynomial.low) / 2
    constant = polynomial.b + polynomial.W.sum(-1) * centre
    values = np.abs(constant) + 3 * np.linalg.norm(polynomial.W, axis=-1) * radius
    return _ranges(polynomial, lambda chosen: values[chosen].prod(0), max(abs(polynomial.low), abs(polynomial.high)))


def _ranges(
    polynomial: Polynomial, reach: Callable[[list[int]], Array], pixel: float, length: float | None = None
) -> Ranges:
    """All ranges, from a function that bounds the product of some factors: (rank,)."""
    everything = set(range(polynomial.degree))
    nodes, others = [], []
    for level in tree_groups(polynomial.degree):
        nodes.append(np.stack([reach(list(group)) for group in level]))
        others.append(np.stack([reach(sorted(everything - set(group))) for group in level]))
    logits = outward(np.abs(polynomial.C) @ nodes[-1][0] + np.abs(polynomial.beta), polynomial.rank + 1)
    length = np.sqrt(polynomial.features) * pixel if length is None else length
    length = float(length) * (1 + 16 * _ULP)
    rows = np.zeros_like(nodes[0])
    rows[: polynomial.degree] = np.linalg.norm(polynomial.W, axis=-1)
    partial = float(outward(np.abs(polynomial.W).sum(-1).max() * pixel, polynomial.features))
    return Ranges(length, partial, rows, tuple(nodes), tuple(others), logits)
