"""What each of PyTorch's primitive operations does to traced tensors; whatever is no polynomial is refused."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from polybound.models.affine import Affine, Conv, Dense, Pool
from polybound.models.graphs.maps import AveragePool, Collect, Convolution, Repeated, Scale, Select
from polybound.models.graphs.traced import Traced, TracerBase, as_constant

_MOST = 2**22
"""Products of entries that a product of two traced matrices may have."""


class Tracer(TracerBase):
    """A tracer with all operations that polynomials are made of."""

    # Entry by entry.

    def scaled(self, value: Traced, constant: Any) -> Traced:
        """`value * constant`."""
        if isinstance(constant, int | float) and constant == 1:
            return value
        shape = _broadcast(value, constant)
        node, positions = self.settle(value.expand(shape))  # type: ignore[arg-type]
        return self.made(self.apply(Scale(self.per_entry(constant, positions, shape)), node), positions, shape)

    def shifted(self, value: Traced, constant: Any) -> Traced:
        """`value + constant`."""
        shape = _broadcast(value, constant)
        node, positions = self.settle(value.expand(shape))  # type: ignore[arg-type]
        bias, ones = self.per_entry(constant, positions, shape), self.per_entry(1.0, positions, shape)
        return self.made(self.apply(Scale(ones, bias), node), positions, shape)

    def both(self, left: Traced, right: Traced) -> tuple[int, int, Tensor, tuple[int, ...]]:
        """Two values of one shape, as nodes whose entries correspond."""
        shape = _broadcast(left, right)
        one, positions = self.settle(left.expand(shape))  # type: ignore[arg-type]
        other, same = self.settle(right.expand(shape))  # type: ignore[arg-type]
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
            return self.shifted(left, -as_constant(right) * alpha)
        return self.plus(left, self.scaled(right, -alpha))

    def over(self, left: Any, right: Any, *, rounding_mode: str | None = None) -> Traced:
        """A division by a constant."""
        if isinstance(right, Traced):
            raise self.refuse("a division by a value", "no polynomial; a product is")
        if rounding_mode is not None:
            raise self.refuse("a rounded division", "no polynomial; a division by a constant is")
        return self.scaled(left, 1.0 / as_constant(right).double())

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

        def filled(value: Tensor) -> Traced:
            """A constant of each sample, as what stands beside it."""
            return self.shifted(self.scaled(beside.expand(value.shape), 0.0), value)  # type: ignore[arg-type]

        values = [value if isinstance(value, Traced) else filled(value) for value in values]
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
            weight = weight.repeat(times, *(1,) * (weight.ndim - 1))
            bias = None if bias is None else bias.repeat(times)
            groups, shape = groups * times, (times * shape[0], *shape[1:])
        dims = len(shape) - 1
        given = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
        sizes = {name: list(of) * dims if len(of) == 1 else list(of) for name, of in given.items()}
        even = sizes["stride"] == sizes["dilation"] == [1] * dims and sizes["padding"] == [
            n // 2 for n in weight.shape[2:]
        ]
        step: Affine
        if even and not transposed and groups == 1 and all(n % 2 for n in weight.shape[2:]):
            step = Conv(weight, bias, shape)
        else:
            step = Convolution(weight, bias, shape, groups=groups, transposed=transposed, **sizes)
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
        given = size, stride or size, padding
        size, stride, padding = (list(of) * dims if len(of) == 1 else list(of) for of in given)
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
        self, value: Traced, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
    ) -> tuple[Traced, Tensor, Tensor]:
        """Batch normalisation with fixed statistics, a scale and a shift of each channel.

        The rest begins with whether it is in training mode, where the operation says so, and ends with epsilon.
        """
        if rest[0] is True or mean is None or var is None:
            advice = "no polynomial; with running statistics (track_running_stats) it is one"
            raise self.refuse("batch norm in training mode", advice)
        scale = 1.0 / torch.sqrt(var.double() + rest[-1])
        scale = scale if weight is None else scale * weight.double()
        shift = -mean.double() * scale if bias is None else bias.double() - mean.double() * scale
        sides = (1, -1, *(1,) * (value.ndim - 2))
        found = self.shifted(self.scaled(value, scale.reshape(sides)), shift.reshape(sides))
        return found, self.like.new_empty(0), self.like.new_empty(0)


def _broadcast(one: Any, other: Any) -> tuple[int, ...]:
    shapes = (tuple(getattr(value, "shape", ())) for value in (one, other))
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


Tracer.operations = {
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
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), Tracer.pool),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), Tracer.adaptive),
    "constant_pad_nd": Tracer.pad,
    **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"), Tracer.nearest),
    "native_batch_norm": Tracer.normalised,
    "_native_batch_norm_legit": Tracer.normalised,
    "_native_batch_norm_legit_no_training": Tracer.normalised,
    "_to_copy": lambda _, value, **__: value,
    "zeros_like": lambda tracer, value, **_: tracer.like.new_zeros(tuple(value.shape)),
    "new_zeros": lambda tracer, _, size, **__: tracer.like.new_zeros(size),
    "new_ones": lambda tracer, _, size, **__: tracer.like.new_ones(size),
    "new_full": lambda tracer, _, size, value, **__: tracer.like.new_full(size, value),
    "ones_like": lambda tracer, value, **_: tracer.like.new_ones(tuple(value.shape)),
}

_ADVICE = {
    "relu relu_ leaky_relu gelu silu sigmoid tanh elu hardtanh abs clamp clamp_min threshold maximum minimum where "
    "softplus mish sign hardswish hardsigmoid celu _prelu_kernel prelu exp log sqrt rsqrt reciprocal sin cos "
    "log_sigmoid_forward erf": "no polynomial; `x * x` or a product of two maps is",
    "_softmax _log_softmax": "no polynomial: it divides; the loss applies it, leave it out of the network",
    "max_pool2d_with_indices max_pool3d_with_indices _adaptive_max_pool2d": "no polynomial; average pooling is",
    "max amax": "no polynomial; a mean is",
    "native_layer_norm native_group_norm": "no polynomial: it divides by a statistic of its input; "
    "batch norm with running statistics is",
    "linalg_vector_norm std": "no polynomial: it is a root; a sum of squares is",
    "native_dropout bernoulli_": "random; dropout in evaluation mode is nothing, and taken",
    "_local_scalar_dense is_nonzero": "control flow that depends on values is no polynomial",
    "gt lt ge le eq ne": "a comparison is no polynomial",
}
Tracer.advice = {name: advice for names, advice in _ADVICE.items() for name in names.split()}
