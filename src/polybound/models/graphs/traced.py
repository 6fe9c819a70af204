"""Tensors that write down what happens to them: what a traced tensor is, how it moves, and which node it becomes.

The traced tensor knows, for each of its entries, which sample and which entry of which node it is (`places`). So
whatever only moves numbers (reshape, permute, slice, expand, ...) is PyTorch's own operation on a tensor of places. An
operation that would mix samples shows, and is refused.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError
from polybound.models.affine import Affine
from polybound.models.graphs.graph import Builder
from polybound.models.graphs.maps import Select

BATCH = 3
"""Samples in the traced batch: more than one, so that mixing them shows."""

_LARGEST = 2**23
"""Entries that a tensor of one sample may have."""


class Traced(Tensor):
    """A tensor of which every entry is an entry of a node, for one of the samples."""

    tracer: Any
    node: int
    places: Tensor
    aliases: list[weakref.ref[Traced]]
    """All tensors that share its memory: writing into one of several is not followed."""

    @staticmethod
    def __new__(cls, tracer: TracerBase, node: int, places: Tensor) -> Traced:
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


class TracerBase:
    """What a trace is made with: the builder, where in the module it is, and what each operation means.

    Args:
        like: gives the type and device of constants.
        batch: how many samples there are. More than one, so that mixing them shows.
    """

    operations: ClassVar[dict[str, Callable[..., Any]]] = {}
    """What operations of PyTorch mean, by name; with `moves` all that are taken."""
    advice: ClassVar[dict[str, str]] = {}
    """Why others are no polynomials, by name."""
    label: str | None = None
    """What is at work, where that is no module."""

    def __init__(self, like: Tensor, batch: int = BATCH) -> None:
        self.builder = Builder()
        self.like, self.batch = like.detach().new_zeros(()), batch
        self.names: dict[int, str] = {}
        self.inside: list[str] = []
        self.spread: dict[Any, tuple[Tensor, Any]] = {}
        """Constants that were spread over entries, so that the same one is one tensor; with what it was made of."""

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Keep in `inside` the path of the part of a module that runs."""
        self.names = {id(part): name for name, part in module.named_modules()}

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
            if file == _TRACE:
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
        return self.whole(self.builder.input(shape), shape)

    # What every operation goes through.

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation of PyTorch on traced tensors."""
        name = func.overloadpacket.__name__
        if name in self.operations:
            return self.operations[name](self, *args, **kwargs)
        if name in _MOVES:
            return self.move(func, args, kwargs)
        if name.endswith("_") and name[:-1] in self.operations and isinstance(args[0], Traced):
            if sum(ref() is not None for ref in args[0].aliases) > 1:
                raise self.refuse(f"{name}, in place, into a part of a tensor", "write the result to a new tensor")
            made = self.operations[name[:-1]](self, *args, **kwargs)
            args[0].node, args[0].places = made.node, made.places
            return args[0]
        if name in self.advice:
            raise self.refuse(name.strip("_"), self.advice[name])
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
        given = as_constant(constant)
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


def as_constant(value: Any) -> Tensor:
    """A number as a tensor."""
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)


_TRACE = str(Path(__file__).with_name("trace.py"))
"""The file from which a module is run: above it on the stack nothing is the module's."""

_NOT_THE_USERS = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])

_MOVES = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "expand", "unsqueeze"),
    *("squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "flip", "roll", "repeat", "alias"),
    *("clone", "detach", "contiguous", "index_select", "index", "unfold", "as_strided", "diagonal", "rot90", "gather"),
    *("narrow", "chunk", "flatten", "movedim", "unflatten", "swapaxes", "pixel_shuffle", "pixel_unshuffle"),
    *("channel_shuffle", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
    "lift_fresh",
}

_COPIES = {"clone", "contiguous", "index_select", "index", "gather", "repeat", "flip", "roll", "rot90"}
"""Those of them whose results have memory of their own."""
