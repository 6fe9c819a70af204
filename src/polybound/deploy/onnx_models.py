"""A chain of products as a model of the package: which class it is, and with which weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from polybound.deploy.onnx_convs import as_conv
from polybound.deploy.onnx_files import OnnxMetadata
from polybound.deploy.onnx_maps import Diagonal, Steps, folded, is_linear
from polybound.deploy.onnx_polynomial import Polynomial
from polybound.errors import PolyboundError
from polybound.models import CCP, NCP, Dense, PolynomialNetwork

__all__ = ["build_model"]


def build_model(polynomial: Polynomial, shape: tuple[int, ...], metadata: OnnxMetadata) -> PolynomialNetwork:
    """The model that a polynomial is.

    Args:
        polynomial: a chain of products.
        shape: shape of one input.
        metadata: the class and the form to try first; a hint only, for what could be several.

    Raises:
        PolyboundError: it is no model of the package; the message names the node where it leaves the last class that
            was tried.
    """
    form = str(metadata.config.get("form", ""))
    ways: dict[str, Callable[[], PolynomialNetwork | None]] = {
        "ConvCCP": lambda: as_conv(polynomial, shape),
        "CCP": lambda: _as_ccp(polynomial, shape, form),
        "NCP": lambda: _as_ncp(polynomial, shape),
    }
    order = sorted(ways, key=lambda name: name != metadata.kind)
    if order[0] == "NCP" and _with_constant(polynomial) is not None:
        order = list(ways)
    for name in order:
        model = ways[name]()
        if model is not None:
            return _smallest(model) if polynomial.single else model
    raise AssertionError("an NCP is made or refused")


def _smallest(model: PolynomialNetwork) -> PolynomialNetwork:
    """The model in float32, if that loses nothing."""
    kept = all(torch.equal(tensor.float().double(), tensor) for tensor in model.state_dict().values())
    return model.float() if kept else model


def _as_ccp(polynomial: Polynomial, shape: tuple[int, ...], form: str) -> CCP | None:
    """A CCP, if there are no maps between the products; in residual form if its constants are 0, 1, ..., 1.

    Those of a product form may be 0, 1, ..., 1 as well: `form` then decides, if there is no constant of the output.
    """
    if any(step.S for step in polynomial.steps):
        return None
    first, last = (polynomial.first, polynomial.last) if polynomial.steps else _split(polynomial.first)
    maps = [folded(steps, polynomial.features) for steps in (first, *(step.A for step in polynomial.steps))]
    Q, beta = folded(last, len(maps[0][1]))
    plain = [n for n, (_, constant) in enumerate(maps) if not constant.any()]
    if plain:
        maps.insert(0, maps.pop(plain[0]))  # the order of factors does not matter
    weights, constants = ([pair[i] for pair in maps] for i in (0, 1))
    if plain and (form != "product" or beta.any()) and all(bool((constant == 1).all()) for constant in constants[1:]):
        return CCP.from_factors(weights, Q, beta, shape=shape)
    U = [torch.cat([weight, constant.unsqueeze(1)], 1) for weight, constant in maps]
    if beta.any():
        # One more unit that is always 1 carries the output's constant.
        unit = torch.zeros(1, polynomial.features + 1, dtype=torch.float64)
        unit[0, -1] = 1.0
        U, Q = [torch.cat([rows, unit]) for rows in U], torch.cat([Q, beta.unsqueeze(1)], 1)
    return CCP.from_factors(U, Q, form="product", shape=shape)


def _split(steps: Steps) -> tuple[Steps, Steps]:
    """A polynomial of degree one as hidden units and output: before and after its last matrix, if there are two."""
    matrices = [place for place, step in enumerate(steps) if not isinstance(step, Diagonal)]
    return (steps, ()) if len(matrices) < 2 else (steps[: matrices[-1]], steps[matrices[-1] :])


def _with_constant(polynomial: Polynomial) -> str | None:
    """The name of the first product whose map of the input has a constant; an NCP has none."""
    return next((step.node for step in polynomial.steps if not is_linear(step.A)), None)


def _as_ncp(polynomial: Polynomial, shape: tuple[int, ...]) -> NCP:
    """An NCP, its rank the largest number of units of a step; what is missing elsewhere is filled up with zeros.

    Raises:
        PolyboundError: a map of the input has a constant, which an NCP's has not.
    """
    if (node := _with_constant(polynomial)) is not None:
        raise PolyboundError(
            f"node {node!r} (Mul): its map of the input has a constant, which an NCP's has not; its factors,"
            " polybound.deploy.read_onnx(path).factors, can be certified all the same"
        )
    first, b, rest, last = _start(polynomial)
    V = [first, *(folded(step.A, polynomial.features)[0] for step in polynomial.steps)]
    between = [rest, *(step.S for step in polynomial.steps[1:])] if polynomial.steps else []
    S = [folded(steps, len(V[n])) for n, steps in enumerate(between)]
    Q, beta = folded(last, len(V[-1]))
    rank = max(len(rows) for rows in V)
    V = [pad(rows, (0, 0, 0, rank - len(rows))) for rows in V]
    U = [pad(rows, (0, rank - rows.shape[1], 0, rank - len(rows))) for rows, _ in S]
    constants = [pad(vector, (0, rank - len(vector))) for vector in (b, *(c for _, c in S))]
    Q = pad(Q, (0, rank - Q.shape[1]))
    return NCP.from_factors(V, torch.stack(U) if U else V[0].new_zeros(0, rank, rank), constants, Q, beta, shape=shape)


def _start(polynomial: Polynomial) -> tuple[Tensor, Tensor, Steps, Steps]:
    """`V_1`, `b_1`, the maps from there to the first product, and the output map.

    The chain `V_1 x`, `b_1` times it, and a map `S_2` of that is kept as it is. Of any other chain the first product
    is with `W x + c`: `V_1 = W`, `b_1 = 1` and `S_2 y = y + c`.
    """
    steps = polynomial.first
    matrix = steps[0].weight if steps and isinstance(steps[0], Dense) and is_linear(steps[:1]) else None
    if matrix is None or len([step for step in steps if not isinstance(step, Diagonal)]) < 2:
        W, c = folded(steps, polynomial.features)
        rest: Steps = (Diagonal(torch.ones_like(c), c),)
        matrix, b = W, torch.ones_like(c)
    else:
        b = torch.ones(len(matrix), dtype=torch.float64)
        rest = tuple(steps[1:])
        while isinstance(rest[0], Diagonal) and is_linear(rest[:1]):
            b, rest = b * rest[0].weight, rest[1:]
    return matrix, b, rest, polynomial.last if polynomial.steps else rest
