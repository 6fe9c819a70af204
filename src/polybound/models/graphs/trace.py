"""Ordinary PyTorch modules as graphs: the module is run once on a tensor that writes down what happens to it.

Why not torch.fx or torch.export: fx sees hundreds of Python's calls, and export brings a compiler's front end along.
Below autograd PyTorch has a few dozen primitive operations left for such networks. Each is met here in one place,
`__torch_dispatch__`, with shapes known and the user's line on the stack.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError
from polybound.models.graphs.graph import Graph
from polybound.models.graphs.operations import Tracer
from polybound.models.graphs.traced import BATCH, Traced


def trace(module: nn.Module, shape: Sequence[int], fused: bool = True) -> Graph:
    """The graph of a module that maps (batch, *shape) to (batch, classes), as it is in evaluation mode.

    Weights that are parameters are shared with the module. Normalisation is folded from its running statistics. A
    module that was traced before has the same graph, unless one of its tensors or what it computes has changed since.

    Args:
        module: made of affine maps, sums and products.
        shape: of one input.
        fused: whether affine maps of affine maps become one, which is what bounds want.

    Raises:
        PolyboundError: the module is no polynomial of its input; with the operation, and where it stands.
    """
    key = tuple(shape), fused
    known = _KNOWN.get(module, {}).get(key)
    if known is not None and known.holds(module, shape):
        return known.graph
    graph = _traced(module, shape, fused)
    _check_against(module, graph, shape)
    copies = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    _KNOWN.setdefault(module, {})[key] = _Known(graph, copies, _sample(module, shape))
    return graph


@dataclass(frozen=True)
class _Known:
    """A graph with the module's tensors, their values and an output of the time when it was traced.

    Values are compared as well as tensors, since the graph has constants that were made of them, as folded statistics;
    an output, since a module may have other settings and parts than before.
    """

    graph: Graph
    tensors: list[tuple[Tensor, Tensor]]
    output: Tensor

    def holds(self, module: nn.Module, shape: Sequence[int]) -> bool:
        """Whether the graph is still the module's."""
        tensors = [*module.parameters(), *module.buffers()]
        if len(tensors) != len(self.tensors) or any(
            a is not b for a, (b, _) in zip(tensors, self.tensors, strict=True)
        ):
            return False
        alike = all((a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b) for a, b in self.tensors)
        return alike and torch.equal(_sample(module, shape), self.output)


_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Known]] = weakref.WeakKeyDictionary()


def _sample(module: nn.Module, shape: Sequence[int]) -> Tensor:
    """What the module makes of two fixed inputs; of other polynomials it is something else, but for a null set."""
    x = torch.rand((2, *shape), generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    with _evaluating(module):
        return module(x.to(_like(module)))  # type: ignore[no-any-return]


def _like(module: nn.Module) -> Tensor:
    """A tensor of the type and on the device that the module computes with."""
    return next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, without gradients; afterwards as it was."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def _traced(module: nn.Module, shape: Sequence[int], fused: bool) -> Graph:
    tracer = Tracer(_like(module))
    try:
        with _evaluating(module), tracer.watching(module):
            output = module(tracer.start(shape))
    except (RuntimeError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PolyboundError(f"the module does not run on inputs of shape {tuple(shape)}: {reason}") from error
    if not isinstance(output, Traced):
        raise PolyboundError(f"the module's output does not depend on its input, it is a {type(output).__name__}")
    if output.ndim != 2 or output.shape[0] != BATCH:
        found = ("batch" if n == BATCH and k == 0 else str(n) for k, n in enumerate(output.shape))
        raise PolyboundError(f"the module's output must have shape (batch, classes), got ({', '.join(found)})")
    node, _ = tracer.regular(output, "the output")
    return tracer.builder.finish(node, fused)


def _check_against(module: nn.Module, graph: Graph, shape: Sequence[int]) -> None:
    """Refuse a graph that is not the module on other inputs and another batch size, as with hidden control flow.

    In float64, so that nothing hides behind rounding; modules that cannot be copied are judged as they are.
    """
    like = _like(module)
    x = torch.rand((BATCH + 2, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    try:
        module, tolerance = copy.deepcopy(module).double(), 1e-7
    except (RuntimeError, TypeError):
        module, tolerance, x = module, 1e-3, x.to(like.dtype)
    graph = _traced(module, shape, True) if tolerance < 1e-5 else graph
    x = x.to(like.device)
    with _evaluating(module):
        wanted, found = module(x), graph(x)
    if not bool(torch.isfinite(wanted).all()):
        return  # weights that are not finite, or a polynomial that overflows: others say so
    size = float(wanted.abs().max()) + 1e-30
    if wanted.shape != found.shape or float((wanted - found).abs().max()) > tolerance * size:
        raise PolyboundError("the module computes something else on other inputs: it has control flow, or randomness")
