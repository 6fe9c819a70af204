"""Ordinary PyTorch modules as graphs: the module is run once on a tensor that writes down what happens to it.

Why not torch.fx or torch.export: fx sees hundreds of Python's calls, and export brings a compiler's front end along.
Below autograd PyTorch has a few dozen primitive operations left for such networks. Each is met here in one place,
`__torch_dispatch__`, with shapes known and the user's line on the stack.

The traced tensor knows, for each of its entries, which sample and which entry of which node it is (`places`). So
whatever only moves numbers (reshape, permute, slice, expand, ...) is PyTorch's own operation on a tensor of places. An
operation that would mix samples shows, and is refused.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError
from polybound.models.affine import Affine, Conv, Dense, Pool
from polybound.models.graphs.graph import Builder, Graph
from polybound.models.graphs.maps import AveragePool, Collect, Convolution, Repeated, Scale, Select

_BATCH = 3
"""Samples in the traced batch: more than one, so that mixing them shows."""

_MOST = 2**22
"""Products of entries that a product of two traced matrices may have."""

_LARGEST = 2**23
"""Entries that a tensor of one sample may have."""


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
        return (
            len(tensors) == len(self.tensors)
            and all(
                tensor is mine and (tensor.dtype, tensor.device) == (value.dtype, value.device)
                for tensor, (mine, value) in zip(tensors, self.tensors, strict=True)
            )
            and all(torch.equal(tensor, value) for tensor, value in self.tensors)
            and torch.equal(_sample(module, shape), self.output)
        )


_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Known]] = weakref.WeakKeyDictionary()


def _sample(module: nn.Module, shape: Sequence[int]) -> Tensor:
    """What the module makes of two fixed inputs; of other polynomials it is something else, but for a null set."""
    like = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))
    x = torch.rand((2, *shape), generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    with _evaluating(module):
        return module(x.to(like))  # type: ignore[no-any-return]


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
    tracer = Tracer.of(module)
    try:
        with _evaluating(module), tracer.watching():
            output = module(tracer.start(shape))
    except (RuntimeError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PolyboundError(f"the module does not run on inputs of shape {tuple(shape)}: {reason}") from error
    if not isinstance(output, Traced):
        raise PolyboundError(f"the module's output does not depend on its input, it is a {type(output).__name__}")
    if output.ndim != 2 or output.shape[0] != _BATCH:
        found = ("batch" if n == _BATCH and k == 0 else str(n) for k, n in enumerate(output.shape))
        raise PolyboundError(f"the module's output must have shape (batch, classes), got ({', '.join(found)})")
    node, _ = tracer.regular(output, "the output")
    return tracer.builder.finish(node, fused)


def _check_against(module: nn.Module, graph: Graph, shape: Sequence[int]) -> None:
    """Refuse a graph that is not the module on other inputs and another batch size, as with hidden control flow.

    In float64, so that nothing hides behind rounding; modules that cannot be copied are judged as they are.
    """
    like = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((_BATCH + 2, *shape), generator=generator, dtype=torch.float64) - 0.5
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


class Traced(Tensor):
    """A tensor of which every entry is an entry of a node, for one of the samples."""

    tracer: Tracer
    node: int
    places: Tensor
    aliases: list[weakref.ref[Traced]]
    """All tensors that share its memory: writing into one of several is not followed."""

    @staticmethod
    def __new__(cls, tracer: Tracer, node: int, places: Tensor) -> Traced:
        like = tracer.like
        made: Traced = torch.Tensor._make_wrapper_subclass(
            cls, places.shape, dtype=like.dtype, device=like.device, requires_grad=False
        )
        made.tracer, made.node, made.places = tracer, node, places
        made.aliases = [weakref.ref(made)]
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        return f"a traced tensor of shape {tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        del types
        traced = next(value for value in _flat((*args, *(kwargs or {}).values())) if isinstance(value, Traced))
        return traced.tracer.run(func, args, kwargs or {})


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


class Tracer:
    """What a trace is made with: the builder, where in the module it is, and what each operation means.

    Args:
        like: gives the type and device of constants.
        batch: how many samples there are. More than one, so that mixing them shows.
    """

    label: str | None = None
    """What is at work, where that is no module."""

    def __init__(self, like: Tensor, batch: int = _BATCH) -> None:
        self.builder = Builder()
        self.like, self.batch = like.detach().new_zeros(()), batch
        self.names: dict[int, str] = {}
        self.inside: list[str] = []
        self.spread: dict[Any, tuple[Tensor, Any]] = {}
        """Constants that were spread over entries, so that the same one is one tensor; with what it was made of."""

    @classmethod
    def of(cls, module: nn.Module) -> Tracer:
        """The tracer of a module, in the type of its weights."""
        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
        made = cls(tensors[0] if tensors else torch.zeros(1))
        made.names = {id(part): name for name, part in module.named_modules()}
        return made

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep in `inside` the path of the module that runs."""

        def entered(part: nn.Module, _: Any) -> None:
            self.inside.append(self.names.get(id(part), type(part).__name__))

        def left(*_: Any) -> None:
            self.inside.pop()

        enter = nn.modules.module.register_module_forward_pre_hook(entered)
        leave = nn.modules.module.register_module_forward_hook(left)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()

    def origin(self) -> str:
        """The module that runs, and the line of the user's code."""
        if self.label is not None:
            return self.label
        path = self.inside[-1] if self.inside else ""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if frame.f_code is trace.__code__:
                return path
            if not file.startswith(_NOT_THE_USERS):
                function, line = frame.f_code.co_name, frame.f_lineno
                runs = self.names.get(id(frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))))
                if runs is None or runs == path:
                    return f"{path}.{function}, line {line}" if path else f"{function}, line {line}"
                return f"{path}, called in {f'{runs}.' if runs else ''}{function}, line {line}"
            frame = frame.f_back
        return path

    def refuse(self, what: str, advice: str) -> PolyboundError:
        """The error that says what is no polynomial, where it stands, and what is."""
        origin = self.origin()
        return PolyboundError(f"{what}{f' in {origin}' if origin else ''}: {advice}")

    def start(self, shape: Sequence[int]) -> Traced:
        """A batch of inputs."""
        node = self.builder.input(shape)
        size = prod(shape)
        return Traced(self, node, torch.arange(self.batch * size).reshape(self.batch, *shape))

    # What every operation goes through.

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation of PyTorch on traced tensors."""
        name = func.overloadpacket.__name__
        if name in _SPECIAL:
            return _SPECIAL[name](self, *args, **kwargs)
        if name in _MOVES:
            return self.move(func, args, kwargs)
        if name.endswith("_") and name[:-1] in _SPECIAL and isinstance(args[0], Traced):
            if sum(ref() is not None for ref in args[0].aliases) > 1:
                raise self.refuse(f"{name}, in place, into a part of a tensor", "write the result to a new tensor")
            made = _SPECIAL[name[:-1]](self, *args, **kwargs)
            args[0].node, args[0].places = made.node, made.places
            return args[0]
        if name in _ADVICE:
            raise self.refuse(name.strip("_"), _ADVICE[name])
        raise self.refuse(name.strip("_"), "no polynomial, or not known as one; affine maps, sums and products are")

    def move(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that only moves entries, applied to their places."""
        swapped = [value.places if isinstance(value, Traced) else value for value in args]
        kwargs = {key: value for key, value in kwargs.items() if key in ("dim", "start", "end", "step", "size")}
        if func.overloadpacket.__name__ in ("view", "_unsafe_view"):
            made = swapped[0].reshape(tuple(swapped[1]))  # places may lie otherwise in memory than the values would
        else:
            made = func(*swapped, **kwargs)
        moved = [Traced(self, args[0].node, places) for places in (made if isinstance(made, list | tuple) else [made])]
        if func.overloadpacket.__name__ not in _COPIES:
            for one in moved:
                args[0].aliases += one.aliases
                one.aliases = args[0].aliases
        return moved if isinstance(made, list | tuple) else moved[0]

    def settle(self, value: Traced) -> tuple[int, Tensor]:
        """A node whose entries are those of `value` of one sample, in order; and which entries are each sample's.

        Returns:
            The node, and the flat positions (samples, entries).
        """
        size = self.builder.size(value.node)
        if value.places.numel() > _LARGEST * self.batch:
            raise self.refuse(f"a tensor of shape {tuple(value.shape)}", f"at most {_LARGEST:,} entries are taken")
        flat = value.places.reshape(-1)
        if flat.numel() == self.batch * size and torch.equal(flat, torch.arange(self.batch * size)):
            return value.node, flat.reshape(self.batch, size)
        sample = torch.div(flat, size, rounding_mode="floor")
        order = torch.argsort(sample, stable=True)
        entries = flat.numel() // self.batch
        counts = torch.bincount(sample, minlength=self.batch)
        if entries == 0 or not bool((counts == entries).all()):
            raise self.refuse("an operation on some samples of a batch alone", "the batch must stay whole")
        positions = order.reshape(self.batch, entries)
        index = flat[positions] - size * torch.arange(self.batch).unsqueeze(1)
        if not bool((index == index[0]).all()):
            raise self.mixes()
        node = self.builder.affine(Select(index[0], size, self.like), value.node, self.origin())
        return node, positions

    def mixes(self) -> PolyboundError:
        """The error for what is not done sample by sample."""
        return self.refuse("an operation across the batch", "every output must depend on one sample alone")

    def made(self, node: int, positions: Tensor, shape: Sequence[int]) -> Traced:
        """A traced tensor of that shape whose entries at `positions` (samples, entries) are those of the node."""
        entries = positions.shape[1]
        places = torch.empty(positions.numel(), dtype=torch.long)
        places[positions] = torch.arange(self.batch * entries).reshape(self.batch, entries)
        return Traced(self, node, places.reshape(tuple(shape)))

    def regular(self, value: Traced, what: str) -> tuple[int, tuple[int, ...]]:
        """The node of a value whose first dimension is the batch, and the shape of one sample."""
        node, positions = self.settle(value)
        size = positions.shape[1]
        if value.shape[0] != self.batch or not torch.equal(positions.reshape(-1), torch.arange(self.batch * size)):
            raise self.refuse(what, "the first dimension must be the batch")
        return node, tuple(value.shape[1:])

    def images(self, value: Traced, what: str) -> tuple[int, int, tuple[int, ...]]:
        """The node of images, how many a sample has, one after the other in the first dimension, and their shape."""
        times = max(1, value.shape[0] // self.batch)
        apart = value.reshape(self.batch, times, *value.shape[1:]) if value.shape[0] == times * self.batch else value
        node, shape = self.regular(apart, what)  # type: ignore[arg-type]
        return node, times, shape[1:]

    def imaged(self, node: int, times: int, shape: Sequence[int]) -> Traced:
        """The batch of several images a sample."""
        return self.whole(node, (times, *shape)).flatten(0, 1)  # type: ignore[return-value]

    def whole(self, node: int, shape: Sequence[int]) -> Traced:
        """The traced batch of a node, (batch, *shape)."""
        return Traced(self, node, torch.arange(self.batch * prod(shape)).reshape(self.batch, *shape))

    def apply(self, step: Affine, source: int) -> int:
        """A map of a node, with the place where it stands."""
        return self.builder.affine(step, source, self.origin())

    def per_entry(self, constant: Any, positions: Tensor, shape: Sequence[int]) -> Tensor:
        """A constant spread over a tensor of that shape, for the entries of one sample."""
        given = _constant(constant)
        if given.is_complex():
            raise self.refuse("a complex constant", "weights must be real")
        what = given.item() if given.ndim == 0 else (given.data_ptr(), given.shape, given.stride(), given.dtype)
        key = what, tuple(shape), tuple(positions[0, :1].tolist()), tuple(positions[0, -1:].tolist())
        if key in self.spread:
            return self.spread[key][0]
        values = given.to(self.like).expand(tuple(shape)).reshape(-1)
        first = values[positions[0]]
        if given.ndim and not bool((values[positions] == first).all() | torch.isnan(first).any()):
            raise self.refuse("a constant that differs between samples", "the batch has no weights of its own")
        self.spread[key] = first, given
        return first

    # Entry by entry.

    def scaled(self, value: Traced, constant: Any) -> Traced:
        """`value * constant`."""
        if isinstance(constant, int | float) and constant == 1:
            return value
        shape = _broadcast(value, constant)
        node, positions = self.settle(_spread(value, shape))
        return self.made(self.apply(Scale(self.per_entry(constant, positions, shape)), node), positions, shape)

    def shifted(self, value: Traced, constant: Any) -> Traced:
        """`value + constant`."""
        shape = _broadcast(value, constant)
        node, positions = self.settle(_spread(value, shape))
        bias = self.per_entry(constant, positions, shape)
        ones = self.per_entry(1.0, positions, shape)
        return self.made(self.apply(Scale(ones, bias), node), positions, shape)

    def both(self, left: Traced, right: Traced) -> tuple[int, int, Tensor, tuple[int, ...]]:
        """Two values of one shape, as nodes whose entries correspond."""
        shape = _broadcast(left, right)
        one, positions = self.settle(_spread(left, shape))
        other, same = self.settle(_spread(right, shape))
        if not torch.equal(positions, same):
            raise self.mixes()
        return one, other, positions, shape

    def times(self, left: Any, right: Any) -> Traced:
        """A product of two values, or of one and a constant."""
        if not isinstance(left, Traced):
            left, right = right, left
        if not isinstance(right, Traced):
            return self.scaled(left, right)
        one, other, positions, shape = self.both(left, right)
        return self.made(self.builder.product(one, other, self.origin()), positions, shape)

    def plus(self, left: Any, right: Any, *, alpha: float = 1) -> Traced:
        """A sum of two values, or of one and a constant."""
        right = right if alpha == 1 else self.times(right, alpha) if isinstance(right, Traced) else right * alpha
        if not isinstance(left, Traced):
            left, right = right, left
        if not isinstance(right, Traced):
            return self.shifted(left, right)
        one, other, positions, shape = self.both(left, right)
        return self.made(self.builder.sum((one, other), self.origin()), positions, shape)

    def minus(self, left: Any, right: Any, *, alpha: float = 1) -> Traced:
        """A difference."""
        if not isinstance(right, Traced):
            return self.shifted(left, -_constant(right) * alpha)
        return self.plus(left, self.scaled(right, -alpha))

    def over(self, left: Any, right: Any, *, rounding_mode: str | None = None) -> Traced:
        """A division by a constant."""
        if isinstance(right, Traced):
            raise self.refuse("a division by a value", "no polynomial; a product is")
        if rounding_mode is not None:
            raise self.refuse("a rounded division", "no polynomial; a division by a constant is")
        return self.scaled(left, 1.0 / _constant(right).double())

    def power(self, value: Any, exponent: Any) -> Traced:
        """A power with a whole exponent, by squaring."""
        if isinstance(exponent, Tensor) and not isinstance(exponent, Traced) and exponent.numel() == 1:
            exponent = exponent.item()
        if not isinstance(value, Traced) or not isinstance(exponent, int | float) or exponent != int(exponent):
            raise self.refuse("a power", "no polynomial; a power with a whole exponent, such as x ** 2, is")
        if not 0 < exponent <= 2**20:
            raise self.refuse(f"the power {exponent}", "exponents from 1 to 2^20 are taken")
        left, result = int(exponent), None
        while True:
            if left & 1:
                result = value if result is None else self.times(result, value)
            left >>= 1
            if not left:
                return result  # type: ignore[return-value]
            value = self.times(value, value)

    def add_products(self, value: Any, one: Any, other: Any, factor: float) -> Traced:
        """`value + factor * one * other`."""
        product = self.times(one, other) if isinstance(one, Traced) or isinstance(other, Traced) else one * other
        return self.plus(value, product, alpha=factor)

    # Sums over dimensions.

    def total(self, value: Traced, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
        """The sum over some dimensions."""
        del dtype
        dims = range(value.ndim) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
        dims = sorted({d % value.ndim for d in dims})
        node, positions = self.settle(value)
        kept = [1 if d in dims else n for d, n in enumerate(value.shape)]
        group = torch.arange(prod(kept)).reshape(kept).expand(value.shape).reshape(-1)[positions]
        groups, ranked = [], []
        for of in group:
            met = torch.zeros(prod(kept), dtype=torch.bool)
            met[of] = True
            groups.append(met.nonzero().squeeze(1))
            ranked.append(met.cumsum(0)[of] - 1)
        if any(len(of) != prod(kept) // self.batch for of in groups):
            raise self.mixes()
        ranks = torch.stack(ranked)
        if not bool((ranks == ranks[0]).all()):
            raise self.mixes()
        summed = self.apply(Collect(ranks[0], len(groups[0]), self.like), node)
        shape = kept if keepdim else [n for d, n in enumerate(value.shape) if d not in dims]
        return self.made(summed, torch.stack(groups), shape)

    def mean(self, value: Traced, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Traced:
        """The mean over some dimensions."""
        summed = self.total(value, dim, keepdim, dtype=dtype)
        return self.scaled(summed, summed.numel() / value.numel())

    # Matrices.

    def matmul(self, left: Any, right: Any, bias: Tensor | None = None) -> Traced:
        """`left @ right` of matrices, and a bias of every row."""
        if isinstance(left, Traced) and isinstance(right, Traced):
            return self.bmm(left.unsqueeze(0), right.unsqueeze(0)).squeeze(0)  # type: ignore[return-value]
        if isinstance(right, Traced):
            return self.matmul(right.t(), left.t()).t()  # type: ignore[return-value]
        if left.shape[1] != right.shape[0]:
            shapes = f"{('n', *left.shape[1:])} and {tuple(right.shape)}".replace("'", "")
            raise self.refuse(f"a product of matrices {shapes}", "their shapes do not fit")
        node, positions = self.settle(left)
        rows, columns = left.shape
        of = torch.div(positions, columns, rounding_mode="floor")
        count = positions.shape[1] // columns
        of = of.reshape(self.batch, count, columns)
        if rows % self.batch or count * columns != positions.shape[1] or not bool((of == of[..., :1]).all()):
            raise self.mixes()
        weight = right.t().to(self.like)
        step = Dense(weight, bias) if count == 1 else Repeated(weight, bias, count)
        outputs = right.shape[1]
        placed = (of[..., :1] * outputs + torch.arange(outputs)).reshape(self.batch, -1)
        return self.made(self.apply(step, node), placed, (rows, outputs))

    def addmm(self, bias: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Traced:
        """`beta * bias + alpha * left @ right`."""
        plain = isinstance(left, Traced) and not isinstance(right, Traced) and not isinstance(bias, Traced)
        if plain and alpha == beta == 1 and bias.shape == right.shape[1:]:
            return self.matmul(left, right, bias.to(self.like))
        product = self.matmul(left, right) if alpha == 1 else self.scaled(self.matmul(left, right), alpha)
        if isinstance(bias, Traced):
            return self.plus(product, bias, alpha=beta)
        return self.shifted(product, bias if beta == 1 else bias * beta)

    def bmm(self, left: Any, right: Any) -> Traced:
        """Matrix products of a batch."""
        if not isinstance(left, Traced):
            return self.bmm(right.transpose(1, 2), left.transpose(1, 2)).transpose(1, 2)  # type: ignore[return-value]
        n, rows, inner = left.shape
        if isinstance(right, Traced):
            if n * rows * inner * right.shape[2] > self.batch * _MOST:
                raise self.refuse("a product of two large matrices", f"at most {_MOST:,} products of entries are taken")
            return self.total(self.times(left.unsqueeze(3), right.unsqueeze(1)), 2)
        if n == 1 or right.stride(0) == 0 or bool((right == right[:1]).all()):
            joined = self.matmul(left.reshape(n * rows, inner), right[0])
            return joined.reshape(n, rows, right.shape[2])  # type: ignore[return-value]
        parts = [self.matmul(left[k], right[k]) for k in range(n)]
        return self.joined([part.unsqueeze(0) for part in parts], 0)

    def baddbmm(self, bias: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Traced:
        """`beta * bias + alpha * left @ right`, of a batch."""
        return self.plus(self.scaled(self.bmm(left, right), alpha), bias * beta if beta != 1 else bias)

    def vector(self, left: Any, right: Any) -> Traced:
        """A matrix times a vector."""
        if isinstance(right, Traced):
            raise self.mixes()
        return self.matmul(left, right.unsqueeze(1)).squeeze(1)  # type: ignore[return-value]

    def joined(self, values: Sequence[Any], dim: int = 0) -> Traced:
        """Values side by side."""
        beside = next(value for value in values if isinstance(value, Traced)).narrow(dim, 0, 1)
        values = [  # a constant is one of each sample, as what stands beside it
            value
            if isinstance(value, Traced)
            else self.shifted(self.scaled(_spread(beside, tuple(value.shape)), 0.0), value)
            for value in values
        ]
        nodes = list(dict.fromkeys(value.node for value in values))
        if len(nodes) == 1:
            return Traced(self, nodes[0], torch.cat([value.places for value in values], dim))
        sizes = {node: self.builder.size(node) for node in nodes}
        whole, starts, parts = sum(sizes.values()), dict[int, int](), []
        for node, size in sizes.items():
            starts[node] = sum(sizes[before] for before in starts)
            index = torch.full((whole,), -1)
            index[starts[node] : starts[node] + size] = torch.arange(size)
            parts.append(self.apply(Select(index, size, self.like), node))
        places = []
        for value in values:
            size = sizes[value.node]
            sample = torch.div(value.places, size, rounding_mode="floor")
            places.append(sample * whole + starts[value.node] + value.places % size)
        return Traced(self, self.builder.sum(parts, self.origin()), torch.cat(places, dim))

    def stacked(self, values: Sequence[Any], dim: int = 0) -> Traced:
        """Values along a new dimension."""
        return self.joined([value.unsqueeze(dim) for value in values], dim)

    # Images.

    def convolution(
        self,
        value: Any,
        weight: Any,
        bias: Any,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Traced:
        """A convolution, or a transposed one."""
        if isinstance(weight, Traced) or isinstance(bias, Traced):
            raise self.refuse("a convolution whose kernel is a value", "kernels must be weights")
        node, times, shape = self.images(value, "a convolution")
        if times > 1:  # each image of a sample has the same kernels
            weight, groups, shape = (
                weight.repeat(times, *(1,) * (weight.ndim - 1)),
                groups * times,
                (times * shape[0], *shape[1:]),
            )
            bias = None if bias is None else bias.repeat(times)
        dims = len(shape) - 1
        spread = [list(of) * dims if len(of) == 1 else list(of) for of in (stride, padding, dilation, output_padding)]
        same = [n // 2 for n in weight.shape[2:]]
        plain = not transposed and groups == 1 and spread[0] == spread[2] == [1] * dims and spread[1] == same
        step: Affine
        if plain and all(n % 2 for n in weight.shape[2:]):
            step = Conv(weight, bias, shape)
        else:
            step = Convolution(
                weight,
                bias,
                shape,
                stride=spread[0],
                padding=spread[1],
                dilation=spread[2],
                groups=groups,
                transposed=transposed,
                output_padding=spread[3],
            )
        return self.imaged(self.apply(step, node), times, (step.out_shape[0] // times, *step.out_shape[1:]))

    def pool(
        self,
        value: Traced,
        size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Traced:
        """Average pooling."""
        node, times, shape = self.images(value, "a pooling")
        shape = (times * shape[0], *shape[1:])
        dims = len(shape) - 1
        size, stride, padding = (
            list(of) * dims if len(of) == 1 else list(of) for of in (size, stride or size, padding)
        )
        if ceil_mode and any((n + 2 * p - k) % s for n, k, s, p in zip(shape[1:], size, stride, padding, strict=True)):
            raise self.refuse("a pooling with ceil_mode", "windows must lie within the image")
        step: Pool | AveragePool = AveragePool(shape, size, stride, padding, self.like)
        if list(size) == list(stride) == [2] * dims and not any(padding):
            step = Pool(shape, (), self.like)  # which chains know
        pooled = self.apply(step, node)
        if divisor_override is not None:
            pooled = self.apply(Scale(self.like.new_full((step.outputs,), prod(size) / divisor_override)), pooled)
        elif not count_include_pad and any(padding):
            share = step.linear(torch.ones(1, step.inputs))[0]
            pooled = self.apply(Scale((1.0 / share).to(self.like)), pooled)
        return self.imaged(pooled, times, (step.out_shape[0] // times, *step.out_shape[1:]))

    def adaptive(self, value: Traced, output: Sequence[int]) -> Traced:
        """Average pooling to a size that divides the image's."""
        space = value.shape[2:]
        if any(n % o for n, o in zip(space, output, strict=True)):
            raise self.refuse("an adaptive pooling", f"the result's size must divide the image's, {tuple(space)}")
        return self.pool(value, [n // o for n, o in zip(space, output, strict=True)])

    def pad(self, value: Traced, widths: Sequence[int], fill: float = 0.0) -> Traced:
        """Zeros around an image, or a negative width to cut."""
        node, shape = self.regular(value, "a padding")
        if fill:
            raise self.refuse(f"a padding with {fill}", "pad with zeros")
        if len(widths) > 2 * len(shape):
            raise self.mixes()
        index = torch.arange(prod(shape)).reshape(shape)
        index = torch.ops.aten.constant_pad_nd(index, list(widths), -1)
        return self.whole(self.apply(Select(index.reshape(-1), prod(shape), self.like), node), index.shape)

    def nearest(self, value: Traced, *given: Any) -> Traced:
        """Up-sampling by copies: the places, up-sampled."""
        node, shape = self.regular(value, "an up-sampling")
        places = torch.arange(float(prod(shape)), dtype=torch.float64).reshape(1, *shape)
        sizes = next(list(of) for of in given if of is not None and all(isinstance(n, int) for n in of))
        index = torch.nn.functional.interpolate(places, size=sizes, mode="nearest")[0].long()
        return self.whole(self.apply(Select(index.reshape(-1), prod(shape), self.like), node), index.shape)

    def normalised(
        self, value: Traced, weight: Any, bias: Any, mean: Any, var: Any, training: Any, *rest: Any
    ) -> tuple[Traced, Tensor, Tensor]:
        """Batch normalisation with fixed statistics, a scale and a shift of each channel."""
        if training is True or mean is None or var is None:
            raise self.refuse(
                "batch norm in training mode", "no polynomial; with running statistics (track_running_stats) it is one"
            )
        scale = 1.0 / torch.sqrt(var.double() + rest[-1])
        scale = scale if weight is None else scale * weight.double()
        shift = -mean.double() * scale if bias is None else bias.double() - mean.double() * scale
        sides = (1, -1, *(1,) * (value.ndim - 2))
        found = self.shifted(self.scaled(value, scale.reshape(sides)), shift.reshape(sides))
        return found, self.like.new_empty(0), self.like.new_empty(0)


def _broadcast(one: Any, other: Any) -> tuple[int, ...]:
    shapes = (tuple(getattr(value, "shape", ())) for value in (one, other))
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _spread(value: Tensor, shape: tuple[int, ...]) -> Traced:
    return value.expand(shape)  # type: ignore[return-value]


def _constant(value: Any) -> Tensor:
    return (
        value
        if isinstance(value, Tensor)
        else torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)
    )


_NOT_THE_USERS = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])

_MOVES = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "expand", "unsqueeze"),
    *("squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "flip", "roll", "repeat", "alias"),
    *("clone", "detach", "contiguous", "index_select", "index", "unfold", "as_strided", "diagonal", "rot90", "gather"),
    *("narrow", "chunk", "flatten", "movedim", "unflatten", "swapaxes", "pixel_shuffle", "pixel_unshuffle"),
    *(
        "channel_shuffle",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad1d",
        "replication_pad2d",
        "lift_fresh",
    ),
}

_COPIES = {"clone", "contiguous", "index_select", "index", "gather", "repeat", "flip", "roll", "rot90"}
"""Those of them whose results have memory of their own."""

_SPECIAL: dict[str, Callable[..., Any]] = {
    "mul": Tracer.times,
    "add": Tracer.plus,
    "sub": Tracer.minus,
    "rsub": lambda tracer, left, right, alpha=1: tracer.minus(right, left, alpha=alpha),
    "neg": lambda tracer, value: tracer.scaled(value, -1.0),
    "div": Tracer.over,
    "pow": Tracer.power,
    "square": lambda tracer, value: tracer.times(value, value),
    "addcmul": lambda tracer, base, one, other, *, value=1: tracer.add_products(base, one, other, value),
    "sum": Tracer.total,
    "mean": Tracer.mean,
    "mm": Tracer.matmul,
    "mv": Tracer.vector,
    "addmm": Tracer.addmm,
    "bmm": Tracer.bmm,
    "baddbmm": Tracer.baddbmm,
    "cat": Tracer.joined,
    "stack": Tracer.stacked,
    "convolution": Tracer.convolution,
    "_convolution": lambda tracer, *args: tracer.convolution(*args[:9]),
    "avg_pool2d": Tracer.pool,
    "avg_pool3d": Tracer.pool,
    "_adaptive_avg_pool2d": Tracer.adaptive,
    "_adaptive_avg_pool3d": Tracer.adaptive,
    "constant_pad_nd": Tracer.pad,
    "upsample_nearest1d": Tracer.nearest,
    "upsample_nearest2d": Tracer.nearest,
    "upsample_nearest3d": Tracer.nearest,
    "native_batch_norm": lambda tracer, *args: tracer.normalised(*args),
    "_native_batch_norm_legit": lambda tracer, *args: tracer.normalised(*args),
    "_native_batch_norm_legit_no_training": lambda tracer, x, w, b, m, v, momentum, eps: tracer.normalised(
        x, w, b, m, v, False, momentum, eps
    ),
    "_to_copy": lambda _, value, **__: value,
    "zeros_like": lambda tracer, value, **_: tracer.like.new_zeros(tuple(value.shape)),
    "new_zeros": lambda tracer, _, size, **__: tracer.like.new_zeros(size),
    "new_ones": lambda tracer, _, size, **__: tracer.like.new_ones(size),
    "new_full": lambda tracer, _, size, value, **__: tracer.like.new_full(size, value),
    "ones_like": lambda tracer, value, **_: tracer.like.new_ones(tuple(value.shape)),
}

_NO = "no polynomial; `x * x` or a product of two maps is"
_ADVICE = {
    **dict.fromkeys(("relu", "relu_", "leaky_relu", "gelu", "silu", "sigmoid", "tanh", "elu", "hardtanh", "abs"), _NO),
    **dict.fromkeys(
        ("clamp", "clamp_min", "threshold", "maximum", "minimum", "where", "softplus", "mish", "sign"), _NO
    ),
    **dict.fromkeys(("hardswish", "hardsigmoid", "celu", "_prelu_kernel", "prelu", "exp", "log", "sqrt", "rsqrt"), _NO),
    **dict.fromkeys(("reciprocal", "sin", "cos", "log_sigmoid_forward", "erf"), _NO),
    "_softmax": "no polynomial: it divides; the loss applies it, leave it out of the network",
    "_log_softmax": "no polynomial: it divides; the loss applies it, leave it out of the network",
    "max_pool2d_with_indices": "no polynomial; average pooling is",
    "max_pool3d_with_indices": "no polynomial; average pooling is",
    "_adaptive_max_pool2d": "no polynomial; average pooling is",
    "max": "no polynomial; a mean is",
    "amax": "no polynomial; a mean is",
    "native_layer_norm": "no polynomial: it divides by a statistic of its input; batch norm with running statistics is",
    "native_group_norm": "no polynomial: it divides by a statistic of its input; batch norm with running statistics is",
    "linalg_vector_norm": "no polynomial: it is a root; a sum of squares is",
    "std": "no polynomial: it is a root; a sum of squares is",
    "native_dropout": "random; dropout in evaluation mode is nothing, and taken",
    "bernoulli_": "random; dropout in evaluation mode is nothing, and taken",
    "_local_scalar_dense": "control flow that depends on values is no polynomial",
    "is_nonzero": "control flow that depends on values is no polynomial",
    **dict.fromkeys(("gt", "lt", "ge", "le", "eq", "ne"), "a comparison is no polynomial"),
}
