"""ConvCCP: a CCP whose factors are convolutions, as the paper's PN-Conv is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError, check_int
from polybound.models.affine import CONVOLUTIONS, POOLINGS, Affine, Chain, Conv, Dense, Identity, Pool
from polybound.models.base import Config, ModelOptions, PolynomialNetwork, damping, fill_uniform, gather, with_bias
from polybound.models.factors import Factors, WeightGroup


class ConvCCP(PolynomialNetwork):
    """A residual CCP with convolutions in the place of matrices:

        p = pre * x + c   (or x itself),   h_n = K_n * p,
        y_1 = h_1,   y_n = h_n y_(n-1) + y_(n-1),   f(x) = Q vec(y_k) + beta

    with zero padding ("same"). After each degree named in `pool`, the running product is average-pooled by 2, and so
    is every later factor before its product. `ConvCCP((1, 28, 28), 16, 10, 4, 7, pre=3, pool=(2, 3))` is PN-Conv.

    Args:
        shape: (channels, length), (channels, height, width) or (channels, depth, height, width) of the input.
        channels: hidden channels.
        classes: number of outputs.
        degree: number of factors k.
        kernel: size of the factors' kernels, odd.
        pre: size of the pre-convolution's kernel, odd; None for none.
        pool: degrees after which to pool.
        **options: `runs`, `seed`, `device` and `dtype`; see `PolynomialNetwork`.

    Attributes:
        P: kernel of the pre-convolution, (*lead, channels, shape[0], *(pre,)*dims), if there is one.
        c: its bias, (*lead, channels).
        K: the factors' kernels, (*lead, k, channels, inputs, *(kernel,)*dims).
        C: `[Q, beta]`, (*lead, classes, units + 1).

    >>> import torch, polybound as pb
    >>> pb.ConvCCP((3, 16, 16), channels=4, classes=10, degree=3, kernel=5, pool=(2,))(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    _arguments = ("shape", "channels", "classes", "degree", "kernel", "pre", "pool", "runs")

    def __init__(
        self,
        shape: Sequence[int],
        channels: int,
        classes: int,
        degree: int,
        kernel: int = 7,
        *,
        pre: int | None = None,
        pool: Sequence[int] = (),
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(shape, classes, degree, **options)
        self.dims = len(self.shape) - 1
        if self.dims not in CONVOLUTIONS:
            raise PolyboundError(f"shape must be (channels, 1 to 3 sizes), got {self.shape}")
        self.channels = check_int("channels", channels)
        self.kernel = check_int("kernel", kernel)
        self.pre = None if pre is None else check_int("pre", pre)
        if self.kernel % 2 == 0 or (self.pre is not None and self.pre % 2 == 0):
            raise PolyboundError(f"kernel sizes must be odd, got kernel={kernel}, pre={pre}")
        self.pool = tuple(sorted(pool))
        if len(set(self.pool)) < len(self.pool) or not set(self.pool) <= set(range(1, degree + 1)):
            raise PolyboundError(f"pool must name different degrees from 1 to {degree}, got {tuple(pool)}")
        last = tuple(n >> len(self.pool) for n in self.shape[1:])
        if 0 in last:
            raise PolyboundError(f"{len(self.pool)} poolings leave nothing of an input of shape {self.shape}")
        self.units = channels * prod(last)

        inputs = self.shape[0] if pre is None else channels
        if pre is not None:
            self.P = self._parameter(channels, self.shape[0], *(pre,) * self.dims)
            self.c = self._parameter(channels)
        self.K = self._parameter(degree, channels, inputs, *(kernel,) * self.dims)
        self.C = self._parameter(classes, self.units + 1)
        self.reset_parameters()

    @classmethod
    def from_factors(
        cls,
        K: Tensor | Sequence[Tensor],
        C: Tensor,
        bias: Tensor | None = None,
        *,
        shape: Sequence[int],
        pre: Tensor | None = None,
        pre_bias: Tensor | None = None,
        pool: Sequence[int] = (),
    ) -> ConvCCP:
        """A ConvCCP from weights trained anywhere, with the names of the class's formula.

        Args:
            K: the k kernels (channels, inputs, *size).
            C: the output matrix, (classes, units).
            bias: (classes,); zero by default.
            shape: shape of one input.
            pre: kernel of the pre-convolution, (channels, shape[0], *size), or None.
            pre_bias: its bias, (channels,); zero by default.
            pool: degrees after which to pool.

        >>> import torch, polybound as pb
        >>> K = [torch.randn(2, 1, 3, 3) for _ in range(2)]
        >>> pb.ConvCCP.from_factors(K, torch.randn(5, 32), shape=(1, 4, 4))(torch.zeros(1, 1, 4, 4)).shape
        torch.Size([1, 5])
        """
        K = gather("K", K)
        if K.ndim != len(shape) + 2 or C.ndim != 2:
            raise PolyboundError(f"K must be (k, channels, inputs, *size) for an input of shape {tuple(shape)}")
        config: Config = {"shape": list(shape), "channels": K.shape[1], "classes": len(C), "degree": len(K)}
        config |= {"kernel": K.shape[-1], "pre": None if pre is None else pre.shape[-1]}
        state = {"K": K, "C": with_bias(C, bias)}
        if pre is not None:
            state |= {"P": pre, "c": K.new_zeros(len(pre)) if pre_bias is None else pre_bias}
        return cls._filled(config | {"pool": list(pool), "runs": None}, state)

    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        if self.pre is not None:
            weights["P"].normal_(0.0, 0.02, generator=generator)
            fill_uniform(weights["c"], self.shape[0] * self.pre**self.dims, generator)
        weights["K"].normal_(0.0, 0.02 * damping(self.degree), generator=generator)
        fill_uniform(weights["C"], self.units, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self._flat(x)
        x = x.unsqueeze(0) if x.ndim == 2 else x
        plain = type(x) in (Tensor, nn.Parameter) and x.dtype == self.K.dtype  # not what traces, or bounds, the layers
        apply: Callable[..., Tensor] = partial(_ByHand.apply, self) if plain and self.dims == 2 else self._by_layers
        logits: Tensor = apply(x, *self.parameters())
        return logits[0] if self.runs is None else logits

    def _by_layers(self, x: Tensor, *weights: Tensor) -> Tensor:
        """Logits (E, batch, classes) of inputs (groups, batch, features), layer by layer under autograd."""
        *pre, K, C = (weight if self.runs else weight.unsqueeze(0) for weight in weights)
        runs, (groups, batch, _) = len(K), x.shape
        # The runs of a stack lie side by side in the channels; inputs they share need no copies, because the first
        # convolution then has all runs' kernels as its output channels.
        h = x.reshape(groups, batch, *self.shape).transpose(0, 1).flatten(1, 2)
        if pre:
            h = CONVOLUTIONS[self.dims](h, pre[0].flatten(0, 1), pre[1].flatten(), padding="same", groups=groups)
            groups = runs
        h = CONVOLUTIONS[self.dims](h, K.flatten(0, 2), padding="same", groups=groups)
        y, pooled = h.new_ones(()), 0
        for n, factor in enumerate(h.reshape(batch, runs, self.degree, self.channels, *self.shape[1:]).unbind(2), 1):
            for _ in range(pooled):
                factor = self._halve(factor)
            y = factor if n == 1 else torch.addcmul(y, factor, y)
            if n in self.pool:
                y, pooled = self._halve(y), pooled + 1
        y = y.reshape(batch, runs, self.units).transpose(0, 1)
        return torch.baddbmm(C[..., -1].unsqueeze(-2), y, C[..., :-1].transpose(-1, -2))

    def _halve(self, y: Tensor) -> Tensor:
        """Average pooling by 2 of (batch, runs, channels, *space)."""
        pooled = POOLINGS[self.dims](y.flatten(0, 2).unsqueeze(1), 2)
        return pooled.reshape(*y.shape[:3], *pooled.shape[2:])

    def factors(self) -> Factors:
        before: list[Affine] = [] if self.pre is None else [Conv(self.P, self.c, self.shape)]
        shape = self.shape if self.pre is None else (self.channels, *self.shape[1:])
        A: list[Affine] = []
        S: list[Affine] = []
        pools: list[Pool] = []
        for n, K in enumerate(self.K.unbind(-self.dims - 3), 1):
            conv = Conv(K, None, shape)
            if n > 1:
                S.append(pools[-1] if n - 1 in self.pool else Identity(A[-1].outputs, self.lead, self.C))
            A.append(Chain([*before, conv, *pools], shift=float(n > 1)))
            if n in self.pool:
                pools.append(Pool(pools[-1].out_shape if pools else conv.out_shape, self.lead, self.C))
        C: Affine = Dense(self.C[..., :-1], self.C[..., -1])
        if self.degree in self.pool:
            C = Chain([pools[-1], C])
        s1 = self.C.new_ones(*self.lead, A[0].outputs)
        return Factors("CCP", tuple(A), tuple(S), s1, C, constant=True)

    def weight_groups(self) -> list[WeightGroup]:
        names = tuple(f"U{n}" for n in range(1, self.degree + 1))
        groups = [
            WeightGroup(
                names,
                self.K,
                constants=(0.0,) + (1.0,) * (self.degree - 1),
                dims=self.dims,
                space=self.shape[1:],
                coupled=True,
                floors=(1.0,) + (0.0,) * (self.degree - 1),  # as published: the first kernel onto max(bound, 1)
            ),
            WeightGroup(("C",), self.C.unsqueeze(-3)),
        ]
        if self.pre is not None:
            kernel, bias = self.P.unsqueeze(-self.dims - 3), self.c.unsqueeze(-2)
            groups.insert(0, WeightGroup(("pre",), kernel, bias, dims=self.dims, space=self.shape[1:]))
        return groups


class _ByHand(torch.autograd.Function):
    """The logits of a network of images by its closed form, several times as fast as the layers, and its gradients.

    Gradients of gradients are those of the layers.
    """

    @staticmethod
    def forward(ctx: Any, model: ConvCCP, x: Tensor, *weights: Tensor) -> Tensor:
        from polybound.models.passes.conv import ConvGradients

        ctx.model, ctx.form = model, ConvGradients(model)
        ctx.save_for_backward(x, *weights)
        logits: Tensor = ctx.form.logits(x).transpose(1, 2)
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, (_, *wanted) = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():
            asked = [one for one, needed in zip(inputs, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(ctx.model._by_layers(*inputs), asked, grads, create_graph=True))
            return None, *(next(found) if needed else None for needed in wanted)
        x, d = inputs[0], grads[0].transpose(1, 2)
        of_x = ctx.form.input_gradient(d) if wanted[0] else None
        if of_x is not None:  # runs that share their inputs
            of_x = of_x.unflatten(0, (len(x), -1)).sum(1)
        if not any(wanted[1:]):
            return None, of_x, *(None for _ in wanted[1:])
        pairs = ctx.form.gradients_of(x, lambda _, runs, samples: d[runs, :, samples])
        of = dict(zip(ctx.form.parameters, (gradient for _, gradient in pairs), strict=True))
        names = [name for name, _ in ctx.model.named_parameters()]
        return None, of_x, *(of[name].view_as(one) for name, one in zip(names, inputs[1:], strict=True))
