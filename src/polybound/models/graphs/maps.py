"""The further affine maps of a graph: general convolutions and poolings, selections, sums of entries, scales, rows.

All go between flat vectors, as every `Affine` does. A selection covers whatever only moves numbers (reshape, slice,
permute, pad, concatenate, up-sample by copies), its adjoint whatever adds some of them up (sums and means over axes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from polybound.models.affine import CONVOLUTIONS, POOLINGS, TRANSPOSED, Affine, Chain


class _Described(Affine):
    """A map that is told by some tensors and some settings, both by the names of its constructor's arguments."""

    tensors: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[str, ...]]
    lead = ()

    def transform(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {name: change(getattr(self, name)) for name in self.tensors}
        return type(self)(**values, **{name: getattr(self, name) for name in self.settings})


class Select(_Described):
    """`y_j = x[index_j]`, and `y_j = 0` where the index is -1.

    Args:
        index: (outputs,), whole numbers below `inputs`.
        inputs: length of x.
        like: gives the type and device of the (zero) constant.
    """

    tensors = ("like",)
    settings = ("index", "inputs")

    def __init__(self, index: Tensor, inputs: int, like: Tensor) -> None:
        self.index, self.inputs, self.outputs = index, inputs, len(index)
        self.like, self.constant = like, like.new_zeros(self.outputs)

    @property
    def terms(self) -> int:
        return self._most + 1

    @cached_property
    def _most(self) -> int:
        used = self.index[self.index >= 0]
        return int(torch.bincount(used, minlength=1).max())

    @cached_property
    def _gaps(self) -> Tensor | None:
        gaps = self.index < 0
        return gaps if bool(gaps.any()) else None

    def linear(self, x: Tensor) -> Tensor:
        y = x[..., self.index.clamp_min(0)]
        return y if self._gaps is None else y.masked_fill(self._gaps, 0.0)

    def adjoint(self, y: Tensor) -> Tensor:
        if self._gaps is not None:
            y = y.masked_fill(self._gaps, 0.0)
        return y.new_zeros(*y.shape[:-1], self.inputs).index_add(-1, self.index.clamp_min(0), y)


class Collect(_Described):
    """`y_j = sum of all x_i with index_i = j`; entries of index -1 are left out. The adjoint of `Select`.

    Args:
        index: (inputs,), whole numbers below `outputs`.
        outputs: length of y.
        like: gives the type and device of the (zero) constant.
    """

    tensors = ("like",)
    settings = ("index", "outputs")

    def __init__(self, index: Tensor, outputs: int, like: Tensor) -> None:
        self.index, self.inputs, self.outputs = index, len(index), outputs
        self.like, self.constant = like, like.new_zeros(outputs)

    @cached_property
    def _select(self) -> Select:
        return Select(self.index, self.outputs, self.like)

    @property
    def terms(self) -> int:
        return self._select.terms

    def linear(self, x: Tensor) -> Tensor:
        return self._select.adjoint(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self._select.linear(y)


class Scale(_Described):
    """`y_j = weight_j x_j + bias_j`: a constant factor, or normalisation with fixed statistics.

    Args:
        weight: (size,).
        bias: (size,), or None for zeros.
    """

    tensors = ("weight", "bias")
    settings = ()

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.inputs = self.outputs = len(weight)
        self.constant = self.bias = torch.zeros_like(weight) if bias is None else bias

    @property
    def terms(self) -> int:
        return 2

    def linear(self, x: Tensor) -> Tensor:
        return x * self.weight

    def adjoint(self, y: Tensor) -> Tensor:
        return y * self.weight


class Repeated(_Described):
    """One matrix applied to each of several rows: `x (rows, columns) -> x W^T + b`, flat on both sides.

    Args:
        weight: (outputs of a row, columns).
        bias: (outputs of a row,), or None.
        rows: how many there are.
    """

    tensors = ("weight", "bias")
    settings = ("rows",)

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        self.weight, self.rows = weight, rows
        self.bias = weight.new_zeros(len(weight)) if bias is None else bias
        self.inputs, self.outputs = rows * weight.shape[1], rows * len(weight)

    @property
    def constant(self) -> Tensor:  # type: ignore[override]
        return self.bias.repeat(self.rows)

    @property
    def terms(self) -> int:
        return max(self.weight.shape) + 1

    def linear(self, x: Tensor) -> Tensor:
        return (x.reshape(*x.shape[:-1], self.rows, -1) @ self.weight.T).flatten(-2)

    def adjoint(self, y: Tensor) -> Tensor:
        return (y.reshape(*y.shape[:-1], self.rows, -1) @ self.weight).flatten(-2)


class Convolution(_Described):
    """A convolution, or a transposed one, with any stride, zero padding, dilation and groups.

    Args:
        weight: (out_channels, channels / groups, *kernel); transposed (channels, out_channels / groups, *kernel).
        bias: (out_channels,), or None.
        shape: (channels, *space) of the image.
        stride: in each direction.
        padding: in each direction, on both sides; a transposed convolution cuts as much from its result.
        dilation: in each direction.
        groups: of channels.
        transposed: whether it is one.
        output_padding: of a transposed convolution.
    """

    tensors = ("weight", "bias")
    settings = ("shape", "stride", "padding", "dilation", "groups", "transposed", "output_padding")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        shape: Sequence[int],
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
        transposed: bool = False,
        output_padding: Sequence[int] | None = None,
    ) -> None:
        self.weight, self.shape = weight, tuple(shape)
        self.dims = len(self.shape) - 1
        self.stride, self.padding, self.dilation = tuple(stride), tuple(padding), tuple(dilation)
        self.groups, self.transposed = groups, transposed
        self.output_padding = tuple(output_padding or (0,) * self.dims)
        self.channels = weight.shape[1] * groups if transposed else len(weight)
        self.bias = weight.new_zeros(self.channels) if bias is None else bias
        sizes = zip(
            self.shape[1:], weight.shape[2:], self.stride, self.padding, self.dilation, self.output_padding, strict=True
        )
        space = [
            (n - 1) * s - 2 * p + d * (k - 1) + o + 1 if transposed else (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d, o in sizes
        ]
        self.out_shape = (self.channels, *space)
        self.inputs, self.outputs = prod(self.shape), prod(self.out_shape)

    @property
    def constant(self) -> Tensor:  # type: ignore[override]
        return self.bias.repeat_interleave(prod(self.out_shape[1:]))

    @property
    def terms(self) -> int:
        return max(self.weight.shape[0], self.weight.shape[1] * self.groups) * prod(self.weight.shape[2:]) + 1

    def linear(self, x: Tensor) -> Tensor:
        return self._apply(x, self.transposed, self.shape, self.out_shape, self.output_padding)

    def adjoint(self, y: Tensor) -> Tensor:
        left = (0,) * self.dims
        if not self.transposed:  # rows and columns of the image that no window reaches
            sizes = zip(self.shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation, strict=True)
            left = tuple((n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in sizes)
        return self._apply(y, not self.transposed, self.out_shape, self.shape, left)

    def _apply(
        self, x: Tensor, transposed: bool, shape: Sequence[int], target: Sequence[int], left: Sequence[int]
    ) -> Tensor:
        options: dict[str, Any] = {"stride": self.stride, "dilation": self.dilation, "groups": self.groups}
        images = x.reshape(-1, *shape)
        if not transposed:
            y = CONVOLUTIONS[self.dims](images, self.weight, padding=self.padding, **options)
            for axis, n in enumerate(target[1:], 2):
                y = y.narrow(axis, 0, n)  # a transposed one with output padding sees no more
        else:
            op = TRANSPOSED[self.dims]
            y = op(images, self.weight, padding=self.padding, output_padding=tuple(left), **options)
        return y.reshape(*x.shape[:-1], prod(target))


class AveragePool(_Described):
    """Average pooling with any window, stride and zero padding (which counts in the average).

    Args:
        shape: (channels, *space) of the image.
        size: of the window, in each direction.
        stride: in each direction.
        padding: in each direction, on both sides.
        like: gives the type and device of the (zero) constant.
    """

    tensors = ("like",)
    settings = ("shape", "size", "stride", "padding")

    def __init__(
        self, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], padding: Sequence[int], like: Tensor
    ) -> None:
        self.shape, self.size, self.stride, self.padding = tuple(shape), tuple(size), tuple(stride), tuple(padding)
        self.dims, self.like = len(self.size), like
        sizes = zip(self.shape[1:], self.size, self.stride, self.padding, strict=True)
        self.out_shape = (self.shape[0], *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes))
        self.inputs, self.outputs = prod(self.shape), prod(self.out_shape)
        self.constant = like.new_zeros(self.outputs)

    @property
    def terms(self) -> int:
        return prod(self.size) + 2

    def linear(self, x: Tensor) -> Tensor:
        pool = POOLINGS[self.dims]
        y = pool(x.reshape(-1, *self.shape), self.size, self.stride, self.padding, count_include_pad=True)
        return y.reshape(*x.shape[:-1], self.outputs)

    def adjoint(self, y: Tensor) -> Tensor:
        images = y.reshape(-1, 1, *self.out_shape[1:]) / prod(self.size)
        sizes = zip(self.shape[1:], self.size, self.stride, self.padding, strict=True)
        left = tuple((n + 2 * p - k) % s for n, k, s, p in sizes)
        ones = y.new_ones(1, 1, *self.size)
        x = TRANSPOSED[self.dims](images, ones, stride=self.stride, padding=self.padding, output_padding=left)
        return x.reshape(*y.shape[:-1], self.inputs)


def key(step: Affine) -> Any:
    """What two maps have in common if they are the same: the same tensors in the same roles."""
    if isinstance(step, Chain):
        return ("Chain", step.shift, *(key(part) for part in step.maps))
    parts: list[Any] = [type(step).__name__]
    for name, value in sorted(vars(step).items()):
        if isinstance(value, Tensor):
            whole = not value.is_floating_point()
            parts.append((name, value.cpu().numpy().tobytes() if whole else _content(value)))
        elif not name.startswith("_"):
            parts.append((name, value))
    return tuple(parts)


def _content(tensor: Tensor) -> Any:
    """A tensor by its storage, or, where it is all zeros as most constants are, by that."""
    if not tensor.requires_grad and not bool(tensor.any()):
        return ("zeros", tuple(tensor.shape), tensor.dtype)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
