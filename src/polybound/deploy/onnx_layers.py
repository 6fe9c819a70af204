"""Models layer by layer, for torch's exporter: their own forward passes choose their way by the size of the batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from polybound.models import CCP, NCP, ConvCCP, PolynomialNetwork

__all__ = ["layers"]

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_POOLINGS: dict[int, Callable[[Tensor, int], Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


def layers(model: PolynomialNetwork) -> nn.Module:
    """The same function as a module of plain layers, its factors in one of them; the model itself if it is another."""
    if isinstance(model, CCP):
        return _CCP(model)
    if isinstance(model, NCP):
        return _NCP(model)
    return _ConvCCP(model) if isinstance(model, ConvCCP) else model


class _CCP(nn.Module):
    def __init__(self, model: CCP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        residual = model.form == "residual"
        rows = (model.V if residual else model.U[..., :-1]).flatten(0, 1)
        constants = None if residual else model.U[..., -1].flatten()
        y, *factors = functional.linear(x.flatten(1), rows, constants).tensor_split(model.degree, dim=1)
        for factor in factors:
            y = factor * y + y if residual else factor * y
        return functional.linear(y, *((model.C[:, :-1], model.C[:, -1]) if residual else (model.C,)))


class _NCP(nn.Module):
    def __init__(self, model: NCP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        rows = model.V.flatten(0, 1)
        first, *factors = functional.linear(x.flatten(1), rows).tensor_split(model.degree, dim=1)
        y = first * model.b
        for factor, step in zip(factors, model.S, strict=True):
            y = factor * functional.linear(y, step[:, :-1], step[:, -1])
        return functional.linear(y, model.C[:, :-1], model.C[:, -1])


class _ConvCCP(nn.Module):
    def __init__(self, model: ConvCCP) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        convolve, pool = _CONVOLUTIONS[model.dims], _POOLINGS[model.dims]
        if model.pre is not None:
            x = convolve(x, model.P, model.c, padding=model.pre // 2)
        factors = convolve(x, model.K.flatten(0, 1), padding=model.kernel // 2).tensor_split(model.degree, dim=1)
        y, poolings = factors[0], 0
        for n, factor in enumerate(factors, 1):
            for _ in range(poolings):
                factor = pool(factor, 2)
            if n > 1:
                y = factor * y + y
            if n in model.pool:
                y = pool(y, 2)
                poolings += 1
        return functional.linear(y.flatten(1), model.C[:, :-1], model.C[:, -1])
