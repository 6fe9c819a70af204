r"""Interval bounds that autograd goes through: a network's own `forward`, run on boxes in the place of tensors.

A `Box` says for every entry of a value that it lies in `centre -+ radius`. Affine maps take it to `W c + b -+ |W| r`,
products to the least and the largest product of ends, squares are never below zero. Normalisation in training mode
takes its statistics from the centres, and keeps them as running ones: folded into the maps, certificates see these.

This is the arithmetic of `polybound.models.Intervals` without its rounding, on modules whose normalisation still moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models import Applied, Bounded, DeepNetwork, Graph, GraphNetwork, Intervals

_INTERVALS = Intervals(outward=False)


def worst_logits(model: DeepNetwork, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Upper bounds of `f_j - f_label` over boxes by intervals, (batch, classes).

    The last map is merged with the differences.

    Args:
        model: in training mode its normalisation takes the statistics of this batch.
        lower: ends of the inputs, (batch, features).
        upper: the other ends.
        labels: (batch,).
    """
    if isinstance(model, GraphNetwork):
        return _worst_of_graph(model.graph(), Bounded(lower, upper), labels)
    found = model(cast(Tensor, Box((lower + upper) / 2, (upper - lower) / 2)))
    if not isinstance(found, Box):
        raise PolyboundError("the module's output does not depend on its input")
    rows = torch.arange(len(labels))
    if found.last is None:
        worst = found.centre + found.radius - (found.centre - found.radius).gather(1, labels.unsqueeze(1))
        return worst.index_put((rows, labels), worst.new_zeros(()))
    source, weight, bias = found.last
    forms = weight - weight[labels].unsqueeze(1)
    worst = _inner(forms, source.centre) + _inner(forms.abs(), source.radius)
    return worst if bias is None else worst + bias - bias[labels].unsqueeze(1)


def _worst_of_graph(graph: Graph, values: Bounded, labels: Tensor) -> Tensor:
    """The same by a walk over a graph, whose maps hold the parameters themselves."""
    node, classes = graph.nodes[graph.output], graph.classes
    forms = torch.eye(classes).to(values.lower)
    forms = (forms - forms[labels].unsqueeze(1)).flatten(0, 1)
    constants = forms.new_zeros(len(forms))
    if isinstance(node, Applied):
        constants, forms = forms @ node.map.constant, node.map.adjoint(forms)
        graph = Graph(graph.nodes[: graph.output], node.source)
    box = graph.evaluate(_INTERVALS, values)
    forms = forms.reshape(len(labels), classes, -1)
    return _inner(forms, box.middle) + _inner(forms.abs(), box.radius) + constants.reshape(-1, classes)


def _inner(forms: Tensor, values: Tensor) -> Tensor:
    return (forms @ values.unsqueeze(-1)).squeeze(-1)


class _Last(NamedTuple):
    """The map that a box is the image of."""

    source: Box
    weight: Tensor
    bias: Tensor | None


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: _apply(function, values, {})


class Box:
    """`centre -+ radius`, entry by entry; PyTorch's functions and modules take it as they take a tensor.

    Args:
        centre: the middle.
        radius: not negative, of the same shape.
        last: the map that it is the image of, so that what follows can be merged with it.

    >>> box = Box(torch.tensor([1.0]), torch.tensor([2.0]))
    >>> torch.square(box)
    Box(centre=tensor([4.5000]), radius=tensor([4.5000]))
    """

    def __init__(self, centre: Tensor, radius: Tensor, last: _Last | None = None) -> None:
        self.centre, self.radius, self.last = centre, radius, last

    def __repr__(self) -> str:
        return f"Box(centre={self.centre}, radius={self.radius})"

    def __len__(self) -> int:
        return len(self.centre)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "dtype", "device", "size", "dim", "numel"):
            return getattr(self.centre, name)
        function = getattr(Tensor, name, None)
        if function is None or name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _apply(function, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _apply(func, args, kwargs or {})

    __add__ = __radd__ = _operator(torch.add)
    __sub__, __rsub__, __neg__ = _operator(torch.sub), _operator(torch.rsub), _operator(torch.neg)
    __mul__ = __rmul__ = _operator(torch.mul)
    __truediv__, __pow__ = _operator(torch.div), _operator(torch.pow)
    __matmul__, __getitem__ = _operator(torch.matmul), _operator(Tensor.__getitem__)

    def __rmatmul__(self, other: Any) -> Any:
        return _apply(torch.matmul, (other, self), {})

    @property
    def bounded(self) -> Bounded:
        """Its ends."""
        return Bounded(self.centre - self.radius, self.centre + self.radius)


def _apply(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One of PyTorch's functions on boxes, by its name."""
    name = func.__name__.strip("_")
    if name in _RULES:
        return _RULES[name](*args, **kwargs)
    if name in _WEIGHTED and isinstance(args[0], Box):
        source, weight, bias, *rest = *args, *(kwargs.pop("bias", None),) * (len(args) == 2)
        last = _Last(source, weight, bias) if name == "linear" and source.centre.ndim == 2 else None
        centre = func(source.centre, weight, bias, *rest, **kwargs)
        return Box(centre, func(source.radius, weight.abs(), None, *rest, **kwargs), last)
    if name in _MOVES:
        return _both(func, args, kwargs)
    raise _no_rule(name)


def _no_rule(what: str) -> PolyboundError:
    return PolyboundError(f"method certified has no interval rule for {what}; the network that pb.load reads has all")


def _both(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A map without negative entries: of the centres, and of the radii."""

    def side(name: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [side(name, one) for one in value] if any(isinstance(one, Box) for one in value) else value
        return getattr(value, name) if isinstance(value, Box) else value

    centre, radius = (func(*(side(name, one) for one in args), **kwargs) for name in ("centre", "radius"))
    if isinstance(centre, list | tuple):
        return tuple(Box(c, r) for c, r in zip(centre, radius, strict=True))
    return Box(centre, radius)


def _add(left: Any, right: Any, *, alpha: float = 1) -> Box:
    right = right if alpha == 1 else right * alpha
    if isinstance(left, Box) and isinstance(right, Box):
        return Box(left.centre + right.centre, left.radius + right.radius)
    box, constant = (left, right) if isinstance(left, Box) else (right, left)
    centre = box.centre + constant
    return Box(centre, box.radius.expand_as(centre))


def _mul(left: Any, right: Any) -> Box:
    if left is right:
        return _square(left)
    if isinstance(left, Box) and isinstance(right, Box):
        found = _INTERVALS.product(left.bounded, right.bounded)
        return Box(found.middle, found.radius)
    box, constant = (left, right) if isinstance(left, Box) else (right, left)
    return Box(box.centre * constant, box.radius * abs(constant))


def _square(box: Box) -> Box:
    size = box.centre.abs()
    far, near = (size + box.radius).square(), (size - box.radius).clamp_min(0).square()
    return Box((far + near) / 2, (far - near) / 2)


def _pow(box: Any, exponent: Any) -> Box:
    """A whole power, by squaring, as certificates see it."""
    if not isinstance(exponent, int) or exponent < 1:
        raise PolyboundError(f"method certified takes whole powers from 1 on, got {exponent!r}")
    result = None
    while True:
        if exponent & 1:
            result = box if result is None else _mul(result, box)
        exponent >>= 1
        if not exponent:
            return cast(Box, result)
        box = _square(box)


def _matmul(left: Any, right: Any) -> Box:
    if isinstance(left, Box) and isinstance(right, Box):
        raise _no_rule("a product of two matrices of values")
    if isinstance(left, Box):
        return Box(left.centre @ right, left.radius @ right.abs())
    return Box(left @ right.centre, left.abs() @ right.radius)


def _einsum(equation: str, *operands: Any) -> Box:
    """A contraction of one box with weights."""
    if sum(isinstance(one, Box) for one in operands) != 1:
        raise _no_rule("einsum of several values")
    centre = [one.centre if isinstance(one, Box) else one for one in operands]
    radius = [one.radius if isinstance(one, Box) else one.abs() for one in operands]
    return Box(torch.einsum(equation, *centre), torch.einsum(equation, *radius))


def _batch_norm(
    box: Box,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Box:
    """Normalisation by the statistics of the centres in training, by the running ones otherwise."""
    mean, var = running_mean, running_var
    if training or mean is None or var is None:
        dims = [0, *range(2, box.centre.ndim)]
        var, mean = torch.var_mean(box.centre, dims, correction=0)
        if running_mean is not None and running_var is not None:
            count = box.centre.numel() / len(mean)
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(var.detach() * (count / max(count - 1, 1)), momentum)
    scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()
    shift = -mean * scale if bias is None else bias - mean * scale
    sides = (-1, *(1,) * (box.centre.ndim - 2))
    scale = scale.reshape(sides)
    return Box(torch.addcmul(shift.reshape(sides), box.centre, scale), box.radius * scale.abs())


def _dropout(box: Box, p: float = 0.5, training: bool = True, inplace: bool = False) -> Box:
    del inplace
    kept = F.dropout(torch.ones_like(box.centre), p, training)
    return Box(box.centre * kept, box.radius * kept)


def _pad(box: Box, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Box:
    padded = F.pad(box.radius, pad, mode)
    return Box(F.pad(box.centre, pad, mode, value), padded)


class _Quadratic(torch.autograd.Function):
    """`scale (x + shift)^2 + bias` of a box, with half of the passes over memory that autograd would take.

    With `h = |c + shift| + r` and `l = max(|c + shift| - r, 0)`, the centre is `scale (h^2 + l^2) / 2 + bias` and the
    radius `|scale| (h^2 - l^2) / 2`.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, r: Tensor, scale: Tensor, shift: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        moved = c + shift
        far = moved.abs()
        near = (far - r).clamp_min_(0)
        far += r
        ctx.save_for_backward(moved, far, near, scale)
        one, other, half = far.square(), near.square(), scale / 2
        centre = torch.addcmul(bias, one + other, half)
        return centre, one.sub_(other).mul_(half.abs())

    @staticmethod
    def backward(ctx: Any, of_centre: Tensor, of_radius: Tensor) -> tuple[Tensor, ...]:
        moved, far, near, scale = ctx.saved_tensors
        of_radius = of_radius * scale.sign()
        of_far, of_near = (of_centre + of_radius).mul_(far), (of_centre - of_radius).mul_(near)
        of_scale = ((of_far * far).sum_to_size(scale.shape) + (of_near * near).sum_to_size(scale.shape)) / 2
        of_moved = (of_far + of_near).mul_(scale).mul_(moved.sign())
        # What lies below zero is cut off, where `near` is zero, and so is its gradient.
        return (
            of_moved,
            of_far.sub_(of_near).mul_(scale),
            of_scale,
            of_moved.sum_to_size(scale.shape),
            of_centre.sum_to_size(scale.shape),
        )


def _quadratic(box: Box, scale: Tensor, shift: Tensor, bias: Tensor) -> Box:
    lead = (1,) * (box.centre.ndim - scale.ndim)
    parts = (part.reshape(*lead, *part.shape) for part in (scale, shift, bias))
    return Box(*_Quadratic.apply(box.centre, box.radius, *parts))  # type: ignore[no-untyped-call]


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "radd", "iadd"), _add),
    **dict.fromkeys(("sub", "subtract", "isub"), lambda left, right, *, alpha=1: _add(left, -right, alpha=alpha)),
    "rsub": lambda left, right, *, alpha=1: _add(right, -left, alpha=alpha),
    **dict.fromkeys(("mul", "rmul", "multiply", "imul"), _mul),
    **dict.fromkeys(("div", "truediv", "true_divide"), lambda left, right: _mul(left, 1.0 / right)),
    "neg": lambda box: Box(-box.centre, box.radius),
    "square": _square,
    "pow": _pow,
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    "einsum": _einsum,
    "batch_norm": _batch_norm,
    "dropout": _dropout,
    "pad": _pad,
    "quadratic": _quadratic,
}

_WEIGHTED = {
    *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
}

_MOVES = {
    *("reshape", "view", "flatten", "unflatten", "permute", "transpose", "t", "movedim", "squeeze", "unsqueeze"),
    *("expand", "expand_as", "getitem", "select", "narrow", "chunk", "split", "unbind", "index_select", "gather"),
    *("flip", "roll", "repeat", "repeat_interleave", "contiguous", "clone", "to", "float", "double", "cat", "stack"),
    *("sum", "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"),
    *("adaptive_avg_pool3d", "pixel_shuffle", "pixel_unshuffle", "concat", "interpolate"),
}
"""Maps whose entries are not negative."""
