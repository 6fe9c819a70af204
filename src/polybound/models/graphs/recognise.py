"""A chain of products as a model of the package, if it is one: which class, and with which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from polybound.models.affine import Affine, Chain, Conv, Dense, Identity, Pool
from polybound.models.base import PolynomialNetwork
from polybound.models.ccp import CCP
from polybound.models.conv import ConvCCP
from polybound.models.factors import Factors
from polybound.models.graphs.maps import Scale, key
from polybound.models.ncp import NCP

_MOST_ENTRIES = 2**27
"""Entries of maps that are written out."""

Maps = Sequence[Affine]


def as_model(
    factors: Factors, shape: Sequence[int], kind: str = "", config: Mapping[str, Any] | None = None
) -> PolynomialNetwork | None:
    """The CCP, NCP or ConvCCP that a chain of products is, with its weights written out in float64; None if it is none.

    Args:
        factors: a chain in float64.
        shape: of one input.
        kind: the class to try first, where several fit.
        config: its config, whose `form` is preferred.
    """
    if factors.entries() > _MOST_ENTRIES or factors.lead:
        return None
    chain, form = _Chain(factors), str((config or {}).get("form", ""))
    ways: dict[str, Callable[[], PolynomialNetwork | None]] = {
        "ConvCCP": lambda: _as_conv(chain, tuple(shape)),
        "CCP": lambda: _as_ccp(chain, shape, form),
        "NCP": lambda: _as_ncp(chain, shape),
    }
    for name in sorted(ways, key=lambda name: name != kind):
        try:
            model = ways[name]()
        except _TooLargeError:
            continue
        if model is not None:
            return model
    return None


class _TooLargeError(Exception):
    """A map is too large to be written out."""


class _Chain:
    """Every map of a chain as single maps in a row.

    Attributes:
        features: length of the input.
        A: the maps of the input.
        S: the maps between the products, from the second on; `S_2` is part of `A_1`.
        C: the maps of the output; of degree one part of `A_1`.
    """

    def __init__(self, factors: Factors) -> None:
        self.features = factors.features
        self.A = [_opened(step) for step in factors.A]
        self.S = [_opened(step) for step in factors.S[1:]]
        self.C = _opened(factors.C)
        if not factors.S:
            self.A[0], self.C = [*self.A[0], *self.C], []
        elif not isinstance(factors.S[0], Identity):
            self.A[0] += _opened(factors.S[0])

    def split(self, place: Callable[[Maps], int]) -> tuple[Maps, Maps]:
        """The first maps of the input, and those of the output; of degree one they are one row, cut at a place."""
        if len(self.A) > 1:
            return self.A[0], self.C
        cut = place(self.A[0])
        return self.A[0][:cut], self.A[0][cut:]


def _opened(step: Affine) -> list[Affine]:
    """The single maps of a chain; a shift is a scale by ones with a constant."""
    if isinstance(step, Identity):
        return []
    if not isinstance(step, Chain):
        return [step]
    maps = [part for inner in step.maps for part in _opened(inner)]
    if step.shift:
        ones = torch.ones_like(step.constant)
        maps.append(Scale(ones, torch.full_like(ones, step.shift)))
    return maps


def _written(maps: Maps, inputs: int) -> tuple[Tensor, Tensor]:
    """One matrix and one constant for maps in a row."""
    if inputs * max(inputs, maps[-1].outputs if maps else 0) > _MOST_ENTRIES:
        raise _TooLargeError
    if not maps:
        return torch.eye(inputs, dtype=torch.float64), torch.zeros(inputs, dtype=torch.float64)
    whole = maps[0] if len(maps) == 1 else Chain(maps)
    return whole.matrix(), whole.constant


def _is_linear(maps: Maps) -> bool:
    return not any(bool(step.constant.any()) for step in maps)


# Convolutions.


def _as_conv(chain: _Chain, shape: tuple[int, ...]) -> ConvCCP | None:
    first, last = chain.split(
        lambda maps: max((n for n, step in enumerate(maps, 1) if isinstance(step, Conv | Pool)), default=0)
    )
    factors = [_factor(maps, shape) for maps in (first, *chain.A[1:])]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors):
        return None
    if len(known) > 1 and known[0][2] and not known[1][2]:
        known[:2] = known[1::-1]  # the order of the first two does not matter
    # One kind of factors: kernels square and of one shape, one pre-convolution, constants 0, 1, 1, ...
    convs, poolings, shifts = zip(*known, strict=True)
    kernels, before = [maps[-1].weight for maps in convs], convs[0][:-1]
    if (
        len({tuple(kernel.shape) for kernel in kernels}) > 1
        or any(len(set(conv.weight.shape[2:])) > 1 for maps in convs for conv in maps)
        or list(shifts) != [0.0] + [1.0] * (len(shifts) - 1)
        or any([key(step) for step in maps[:-1]] != [key(step) for step in before] for maps in convs[1:])
        or any(conv.channels != convs[0][-1].channels for conv in before)
    ):
        return None
    # The maps after each product: those after the first factor are part of it, or of degree one were split off.
    after: list[Maps] = [*([()] if len(known) > 1 else []), *chain.S]
    if last and isinstance(last[0], Pool):
        after, last = [*after, last[:1]], last[1:]
    else:
        after = [*after, ()]
    # The degrees after which the product is pooled, once each; later factors are pooled as often as the product is.
    pool = [1] * poolings[0]
    for n, maps in enumerate(after, 1):
        image = (convs[0][-1].channels, *(size >> len(pool) for size in shape[1:]))
        if (n > 1 and poolings[n - 1] != len(pool)) or not all(isinstance(step, Pool) for step in maps):
            return None
        if not _follow(maps, image):
            return None
        pool += [n] * len(maps)
    if len(set(pool)) < len(pool) or any(isinstance(step, Conv | Pool) for step in last):
        return None
    units = convs[0][-1].channels * prod(n >> len(pool) for n in shape[1:])
    Q, beta = _written(last, units)
    pre, bias = (before[0].weight, before[0].bias) if before else (None, None)
    return ConvCCP.from_factors(kernels, Q, beta, shape=shape, pre=pre, pre_bias=bias, pool=pool)


def _factor(maps: Maps, shape: tuple[int, ...]) -> tuple[tuple[Conv, ...], int, float] | None:
    """A pre-convolution or none and the kernel's convolution, the number of poolings, and a constant."""
    convs = []
    for step in maps:
        if not isinstance(step, Conv):
            break
        convs.append(step)
    if not 1 <= len(convs) <= 2 or not _follow(maps, shape):
        return None
    constants, poolings = [convs[-1].bias], 0
    for step in maps[len(convs) :]:
        if isinstance(step, Pool):
            poolings += 1
        elif isinstance(step, Scale) and bool((step.weight == 1).all()):
            constants.append(step.constant)  # the mean of equal constants is that constant
        else:
            return None
    if not all(bool((constant == constant[0]).all()) for constant in constants):
        return None
    return tuple(convs), poolings, sum(float(constant[0]) for constant in constants)


def _follow(maps: Maps, shape: tuple[int, ...]) -> bool:
    """Whether each map is of images of the shape that the one before it makes; a reshape may have come between."""
    for step in maps:
        if isinstance(step, Conv | Pool):
            if step.shape != shape:
                return False
            shape = step.out_shape
    return True


# Matrices.


def _as_ccp(chain: _Chain, shape: Sequence[int], form: str) -> CCP | None:
    """In residual form if the constants are 0, 1, ..., 1.

    Those of a product form may be 0, 1, ..., 1 as well: `form` then decides, if there is no constant of the output.
    """
    if any(chain.S):
        return None

    def place(maps: Maps) -> int:
        """Hidden units and output are what is before and after the last matrix, if there are two."""
        matrices = [n for n, step in enumerate(maps) if not isinstance(step, Scale)]
        return matrices[-1] if len(matrices) > 1 else len(maps)

    first, last = chain.split(place)
    maps = [_written(steps, chain.features) for steps in (first, *chain.A[1:])]
    Q, beta = _written(last, len(maps[0][1]))
    plain = [n for n, (_, constant) in enumerate(maps) if not constant.any()]
    if plain:
        maps.insert(0, maps.pop(plain[0]))  # the order of factors does not matter
    ones = all(bool((constant == 1).all()) for _, constant in maps[1:])
    if plain and ones and (form != "product" or beta.any()):
        return CCP.from_factors([weight for weight, _ in maps], Q, beta, shape=shape)
    U = [torch.cat([weight, constant.unsqueeze(1)], 1) for weight, constant in maps]
    if beta.any():
        # The product form has no constant of the output: one more unit, which is always 1, carries it.
        unit = torch.zeros(1, U[0].shape[1], dtype=torch.float64)
        unit[0, -1] = 1.0
        U, Q = [torch.cat([rows, unit]) for rows in U], torch.cat([Q, beta.unsqueeze(1)], 1)
    return CCP.from_factors(U, Q, form="product", shape=shape)


def _as_ncp(chain: _Chain, shape: Sequence[int]) -> NCP | None:
    """Its rank is the largest number of units of a step; smaller steps are filled up with zeros."""
    if not all(_is_linear(maps) for maps in chain.A[1:]):
        return None  # an NCP's maps of the input have no constants
    first, b, rest, last = _start(chain)
    V = [first, *(_written(maps, chain.features)[0] for maps in chain.A[1:])]
    between = [rest, *chain.S] if len(V) > 1 else []
    S = [_written(maps, len(V[n])) for n, maps in enumerate(between)]
    Q, beta = _written(last, len(V[-1]))
    rank = max(len(rows) for rows in V)
    V = [pad(rows, (0, 0, 0, rank - len(rows))) for rows in V]
    U = [pad(rows, (0, rank - rows.shape[1], 0, rank - len(rows))) for rows, _ in S]
    constants = [pad(vector, (0, rank - len(vector))) for vector in (b, *(c for _, c in S))]
    Q = pad(Q, (0, rank - Q.shape[1]))
    return NCP.from_factors(V, torch.stack(U) if U else V[0].new_zeros(0, rank, rank), constants, Q, beta, shape=shape)


def _start(chain: _Chain) -> tuple[Tensor, Tensor, Maps, Maps]:
    """`V_1`, `b_1`, the maps from there to the first product, and the output map.

    The chain `V_1 x`, `b_1` times it, and a map `S_2` of that is kept. In any other chain the first product
    is with `W x + c`: `V_1 = W`, `b_1 = 1` and `S_2 y = y + c`.
    """
    maps = chain.A[0]
    head = maps[0] if maps and isinstance(maps[0], Dense) and _is_linear(maps[:1]) else None
    if head is None or len([step for step in maps if not isinstance(step, Scale)]) < 2:
        W, c = _written(maps, chain.features)
        matrix, b = W, torch.ones_like(c)
        rest: Maps = [Scale(torch.ones_like(c), c)]
    else:
        matrix, b, rest = head.weight, torch.ones(len(head.weight), dtype=torch.float64), maps[1:]
        while isinstance(rest[0], Scale) and _is_linear(rest[:1]):
            b, rest = b * rest[0].weight, rest[1:]
    return matrix, b, rest, chain.C if len(chain.A) > 1 else rest
