"""Affine maps, the one idea under every model: apply it, apply its absolute value, transpose it, write it out.

Every map goes between *flat* vectors, `x -> W x + b`, whatever it is inside (a dense matrix, a convolution, a pooling,
a chain of those), so that bounds and certificates are written once. A stack of runs has leading dimensions `lead`:
weights are then (*lead, ...), and inputs (*lead, batch, inputs) or, shared by all runs, (batch, inputs).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
POOLINGS: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}

_PROBES = 64
"""Unit vectors that a map is applied to at once: float64 convolutions copy every window of all of them."""


class Affine(ABC):
    """The map `x -> W x + b` from `inputs` to `outputs` numbers.

    Attributes:
        inputs: number of columns of W.
        outputs: number of rows of W.
        lead: leading (run) dimensions of the weights, `()` for a single map.
        constant: b, of shape (*lead, outputs).
        off: the `rounding` of a map that was written out; None where the weights are exact.
    """

    inputs: int
    outputs: int
    lead: tuple[int, ...]
    constant: Tensor
    off: tuple[Tensor, Tensor] | None = None

    @property
    def terms(self) -> int:
        """How many roundings one product of weights and inputs can meet in `W x + b` or `W^T y`."""
        return max(self.inputs, self.outputs) + 1

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """`W x` for x of shape (*lead, batch, inputs) or (batch, inputs)."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """`W^T y` for y of shape (*lead, batch, outputs) or (batch, outputs)."""

    @abstractmethod
    def transform(self, change: Callable[[Tensor], Tensor]) -> Affine:
        """The same kind of map with `change` (entry by entry, or taking a run out) applied to each of its tensors."""

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b`."""
        return self.linear(x) + self.constant.unsqueeze(-2)

    def absolute(self) -> Affine:
        """The map of `|W|` and `|b|`; for a `Chain` the chain of absolute values, which is never below it."""
        return self.transform(torch.abs)

    def row_l1(self) -> Tensor:
        """The l1 norm of each row of W, (*lead, outputs); for a `Chain` an upper bound (see `absolute`)."""
        return self.absolute().linear(self.constant.new_ones(1, self.inputs)).squeeze(-2).expand(*self.lead, -1)

    def matrix(self) -> Tensor:
        """W written out, (*lead, outputs, inputs)."""
        eye = torch.eye(self.inputs, dtype=self.constant.dtype, device=self.constant.device)
        first = self.linear(eye[:_PROBES])
        if self.inputs <= _PROBES or first.requires_grad:
            matrix = self.linear(eye).transpose(-1, -2)
        else:
            matrix = first.new_empty(*first.shape[:-2], self.outputs, self.inputs)
            for start in range(0, self.inputs, _PROBES):
                matrix[..., start : start + _PROBES] = self.linear(eye[start : start + _PROBES]).transpose(-1, -2)
        # A map without weights of its own (a pooling) is the same for all runs.
        return matrix.expand(*self.lead, -1, -1)

    def dense(self) -> Dense:
        """The same map as a `Dense` one, whose absolute values are those of W itself: no chain of absolute values."""
        return Dense(self.matrix(), self.constant, self.rounding())

    def rounding(self) -> tuple[Tensor, Tensor]:
        """How far rounding took each row of `matrix()`, in l1 norm, and each entry of `constant`: (*lead, outputs)."""
        return self.off or (torch.zeros_like(self.constant), torch.zeros_like(self.constant))

    def double(self) -> Affine:
        """The same map in float64, cut off from autograd."""
        return self.transform(lambda t: t.detach().double())


class Dense(Affine):
    """A matrix: weight (*lead, outputs, inputs), bias (*lead, outputs) or None.

    Args:
        weight: W.
        bias: b.
        off: see `Affine`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, off: tuple[Tensor, Tensor] | None = None) -> None:
        self.weight, self.off = weight, off
        self.lead = tuple(weight.shape[:-2])
        self.outputs, self.inputs = weight.shape[-2:]
        self.constant = weight.new_zeros(weight.shape[:-1]) if bias is None else bias

    def linear(self, x: Tensor) -> Tensor:
        return x @ self.weight.transpose(-1, -2)

    def adjoint(self, y: Tensor) -> Tensor:
        return y @ self.weight

    def transform(self, change: Callable[[Tensor], Tensor]) -> Dense:
        off = self.off and (change(self.off[0]), change(self.off[1]))
        return Dense(change(self.weight), change(self.constant), off)

    def matrix(self) -> Tensor:
        return self.weight

    def dense(self) -> Dense:
        return self


class Identity(Affine):
    """`x -> x` on `size` numbers; `like` gives the type and device of its (zero) constant."""

    def __init__(self, size: int, lead: tuple[int, ...], like: Tensor) -> None:
        self.inputs = self.outputs = size
        self.lead = lead
        self.constant = like.new_zeros(*lead, size)

    def linear(self, x: Tensor) -> Tensor:
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        return y

    __call__ = linear

    def transform(self, change: Callable[[Tensor], Tensor]) -> Identity:
        constant = change(self.constant)
        return Identity(self.inputs, tuple(constant.shape[:-1]), constant)


class Conv(Affine):
    """A convolution with "same" zero padding and stride 1 over an image of shape (channels, *space).

    Args:
        weight: kernel (*lead, out_channels, channels, *kernel), odd sizes, 1 to 3 spatial dimensions.
        bias: (*lead, out_channels), or None.
        shape: (channels, *space).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, shape: Sequence[int]) -> None:
        self.weight = weight
        self.shape = tuple(shape)
        self.dims = len(self.shape) - 1
        self.lead = tuple(weight.shape[: -self.dims - 2])
        self.channels = weight.shape[-self.dims - 2]
        self.inputs = prod(self.shape)
        self.outputs = self.channels * prod(self.shape[1:])
        self.bias = weight.new_zeros(*self.lead, self.channels) if bias is None else bias
        self.constant = self.bias.repeat_interleave(prod(self.shape[1:]), dim=-1)

    @property
    def terms(self) -> int:
        return max(self.channels, self.shape[0]) * prod(self.weight.shape[-self.dims :]) + 1

    @property
    def out_shape(self) -> tuple[int, ...]:
        """(out_channels, *space)."""
        return (self.channels, *self.shape[1:])

    def matricised(self) -> Tensor:
        """M(K), one row for each output channel: (*lead, out_channels, channels * prod(kernel))."""
        return self.weight.flatten(-self.dims - 1)

    def linear(self, x: Tensor) -> Tensor:
        return self._grouped(x, self.shape, self.out_shape, CONVOLUTIONS[self.dims])

    def adjoint(self, y: Tensor) -> Tensor:
        return self._grouped(y, self.out_shape, self.shape, TRANSPOSED[self.dims])

    def _grouped(self, x: Tensor, source: Sequence[int], target: Sequence[int], op: Callable[..., Tensor]) -> Tensor:
        # All runs of a stack are the groups of one convolution.
        runs, batch = prod(self.lead), x.shape[-2]
        x = x.expand(*self.lead, *x.shape[-2:]).reshape(runs, batch, *source).transpose(0, 1)
        padding = [size // 2 for size in self.weight.shape[-self.dims :]]
        kernel = self.weight.reshape(runs * self.channels, *self.weight.shape[-self.dims - 1 :])
        y = op(x.reshape(batch, runs * source[0], *source[1:]), kernel, padding=padding, groups=runs)
        return y.reshape(batch, runs, -1).transpose(0, 1).reshape(*self.lead, batch, prod(target))

    def transform(self, change: Callable[[Tensor], Tensor]) -> Conv:
        return Conv(change(self.weight), change(self.bias), self.shape)


class Pool(Affine):
    """Average pooling by 2 in each direction of an image of shape (channels, *space); odd remainders are dropped."""

    def __init__(self, shape: Sequence[int], lead: tuple[int, ...], like: Tensor) -> None:
        self.shape = tuple(shape)
        self.dims = len(self.shape) - 1
        self.out_shape = (self.shape[0], *(n // 2 for n in self.shape[1:]))
        self.inputs, self.outputs = prod(self.shape), prod(self.out_shape)
        self.lead = lead
        self.constant = like.new_zeros(*lead, self.outputs)

    @property
    def terms(self) -> int:
        return int(2**self.dims) + 1

    def linear(self, x: Tensor) -> Tensor:
        return POOLINGS[self.dims](x.reshape(-1, *self.shape), 2).reshape(*x.shape[:-1], self.outputs)

    def adjoint(self, y: Tensor) -> Tensor:
        x = y.reshape(-1, *self.out_shape) / 2**self.dims
        for axis in range(2, 2 + self.dims):
            x = x.repeat_interleave(2, dim=axis)
        margins = [pair for n in reversed(self.shape[1:]) for pair in (0, n % 2)]
        return F.pad(x, margins).reshape(*y.shape[:-1], self.inputs)

    def transform(self, change: Callable[[Tensor], Tensor]) -> Pool:
        constant = change(self.constant)
        return Pool(self.shape, tuple(constant.shape[:-1]), constant)


class Chain(Affine):
    """Maps one after another, then a constant shift: `x -> W_n(... W_1 x + b_1 ...) + b_n + shift`."""

    def __init__(self, maps: Sequence[Affine], shift: float = 0.0) -> None:
        self.maps = tuple(maps)
        self.shift = shift
        self.inputs, self.outputs = self.maps[0].inputs, self.maps[-1].outputs
        self.lead = self.maps[0].lead
        constant = self.maps[0].constant
        for step in self.maps[1:]:
            constant = step(constant.unsqueeze(-2)).squeeze(-2)
        self.constant = constant + shift

    @property
    def terms(self) -> int:
        return sum(step.terms + 1 for step in self.maps)

    def linear(self, x: Tensor) -> Tensor:
        for step in self.maps:
            x = step.linear(x)
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        for step in reversed(self.maps):
            y = step.adjoint(y)
        return y

    def transform(self, change: Callable[[Tensor], Tensor]) -> Chain:
        return Chain([step.transform(change) for step in self.maps], self.shift)

    def absolute(self) -> Chain:
        return Chain([step.absolute() for step in self.maps], abs(self.shift))

    def rounding(self) -> tuple[Tensor, Tensor]:
        r"""At most `gamma_terms` of the chain of absolute values, and what underflows.

        An entry of `W_n ... W_1` is a sum of products of weights, each computed up to `terms` roundings, so it is off
        by at most `gamma_terms` of the sum of their absolute values, the entry of `|W_n| ... |W_1|`. Each operation may
        also underflow, by less than the least number, and later maps multiply that by their row-l1 norms at most.
        After poolings alone, an entry is one weight times a power of two, which is exact but for underflow.
        """
        info = torch.finfo(self.constant.dtype)
        absolute = self.absolute()
        grown = self.constant.new_ones(self.lead)
        for step in absolute.maps[1:]:
            grown = grown * step.row_l1().amax(-1).clamp_min(1.0)
        least = (self.inputs + 1) * self.terms * len(self.maps) * info.smallest_normal * info.eps
        share = (self.terms + 8) * info.eps
        floor = (grown * least).unsqueeze(-1)
        rounded = 0.0 if all(isinstance(step, Pool) for step in self.maps[:-1]) else share
        return absolute.row_l1() * rounded + floor, absolute.constant * share + floor
