"""A chain of products as a model of the package: which class it is, and with which weights."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from polybound.deploy.onnx.affine import Diagonal, Steps, folded, is_linear, same_steps
from polybound.deploy.onnx.expressions import Polynomial
from polybound.deploy.onnx.files import OnnxMetadata
from polybound.errors import PolyboundError
from polybound.models import CCP, NCP, Conv, ConvCCP, Dense, PolynomialNetwork, Pool


def build_model(polynomial: Polynomial, shape: tuple[int, ...], metadata: OnnxMetadata) -> PolynomialNetwork:
    """The model that a polynomial is; float32 if the graph is and nothing is lost by it.

    Args:
        polynomial: a chain of products.
        shape: shape of one input.
        metadata: the class and the form to try first, where several fit; only a hint.

    Raises:
        PolyboundError: no model of the package fits; the message names the node that does not fit the last class.
    """
    form = str(metadata.config.get("form", ""))
    ways: dict[str, Callable[[], PolynomialNetwork | None]] = {
        "ConvCCP": lambda: _as_conv(polynomial, shape),
        "CCP": lambda: _as_ccp(polynomial, shape, form),
        "NCP": lambda: _as_ncp(polynomial, shape),
    }
    order = sorted(ways, key=lambda name: name != metadata.kind)
    if order[0] == "NCP" and any(not is_linear(step.A) for step in polynomial.steps):
        order = list(ways)  # an NCP's maps of the input have no constants
    for name in order:
        model = ways[name]()
        if model is None:
            continue
        exact = all(torch.equal(tensor.float().double(), tensor) for tensor in model.state_dict().values())
        return model.float() if polynomial.single and exact else model
    raise AssertionError("an NCP is made or refused")


def _as_conv(polynomial: Polynomial, shape: tuple[int, ...]) -> ConvCCP | None:
    """The polynomial as a ConvCCP; None if it is not one."""
    first, last = polynomial.first, polynomial.last
    if not polynomial.steps:
        place = max((n for n, step in enumerate(first, 1) if isinstance(step, Conv | Pool)), default=0)
        first, last = first[:place], first[place:]
    factors = [_factor(steps, shape) for steps in (first, *(step.A for step in polynomial.steps))]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors):
        return None
    # One kind of factors: kernels square and of one shape, one pre-convolution, constants 0, 1, 1, ...
    convs, poolings, shifts = zip(*known, strict=True)
    kernels, before = [steps[-1].weight for steps in convs], convs[0][:-1]
    if (
        len({tuple(kernel.shape) for kernel in kernels}) > 1
        or any(len(set(conv.weight.shape[2:])) > 1 for steps in convs for conv in steps)
        or list(shifts) != [0.0] + [1.0] * (len(shifts) - 1)
        or not all(same_steps(before, steps[:-1]) for steps in convs[1:])
        or any(conv.channels != convs[0][-1].channels for conv in before)
    ):
        return None
    # The maps after each product: those after the first factor are part of it, or of degree one were split off.
    after: list[Steps] = [()] * (len(known) > 1) + [step.S for step in polynomial.steps[1:]]
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
    Q, beta = folded(last, units)
    pre, bias = (before[0].weight, before[0].bias) if before else (None, None)
    return ConvCCP.from_factors(kernels, Q, beta, shape=shape, pre=pre, pre_bias=bias, pool=pool)


def _factor(steps: Steps, shape: tuple[int, ...]) -> tuple[tuple[Conv, ...], int, float] | None:
    """A chain of maps of the input as a factor of a ConvCCP; None if it is not one.

    Returns:
        A pre-convolution or none and the kernel's convolution, the number of poolings, and a constant.
    """
    convs = []
    for step in steps:
        if not isinstance(step, Conv):
            break
        convs.append(step)
    if not 1 <= len(convs) <= 2 or not _follow(steps, shape):
        return None
    constants, poolings = [convs[-1].bias], 0
    for step in steps[len(convs) :]:
        if isinstance(step, Pool):
            poolings += 1
        elif isinstance(step, Diagonal) and bool((step.weight == 1).all()):
            constants.append(step.constant)  # the mean of equal constants is that constant
        else:
            return None
    if not all(bool((constant == constant[0]).all()) for constant in constants):
        return None
    return tuple(convs), poolings, sum(float(constant[0]) for constant in constants)


def _follow(steps: Steps, shape: tuple[int, ...]) -> bool:
    """Whether each map is of images of the shape that the one before it makes; a reshape may have come between."""
    for step in steps:
        if isinstance(step, Conv | Pool):
            if step.shape != shape:
                return False
            shape = step.out_shape
    return True


def _as_ccp(polynomial: Polynomial, shape: tuple[int, ...], form: str) -> CCP | None:
    """A CCP, if there are no maps between the products; in residual form if its constants are 0, 1, ..., 1.

    Those of a product form may be 0, 1, ..., 1 as well: `form` then decides, if there is no constant of the output.
    """
    if any(step.S for step in polynomial.steps):
        return None
    first, last = polynomial.first, polynomial.last
    if not polynomial.steps:
        # Of degree one: hidden units and output are what is before and after the last matrix, if there are two.
        matrices = [place for place, step in enumerate(first) if not isinstance(step, Diagonal)]
        first, last = (first, ()) if len(matrices) < 2 else (first[: matrices[-1]], first[matrices[-1] :])
    maps = [folded(steps, polynomial.features) for steps in (first, *(step.A for step in polynomial.steps))]
    Q, beta = folded(last, len(maps[0][1]))
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


def _as_ncp(polynomial: Polynomial, shape: tuple[int, ...]) -> NCP:
    """An NCP, its rank the largest number of units of a step; smaller steps are filled up with zeros.

    Raises:
        PolyboundError: a map of the input has a constant; those of an NCP have none.
    """
    node = next((step.node for step in polynomial.steps if not is_linear(step.A)), None)
    if node is not None:
        raise PolyboundError(
            f"node {node!r} (Mul): its map of the input has a constant, those of an NCP have none; its factors,"
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

    The chain `V_1 x`, `b_1` times it, and a map `S_2` of that is kept. In any other chain the first product
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
