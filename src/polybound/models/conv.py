"""ConvCCP: a CCP whose factors are convolutions, as the paper's PN-Conv is; and PN-Conv's fast forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

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
        runs, batch = self.runs or 1, x.shape[-2]
        images = x.reshape(1 if x.ndim == 2 else runs, batch, *self.shape)
        pooled = [sum(after < n for after in self.pool) for n in range(1, self.degree + 1)]
        if can_collapse(self.shape, self.pre, self.kernel, max(pooled)):
            P, c, K = (t if self.runs else t.unsqueeze(0) for t in (self.P, self.c, self.K))
            factors = collapsed_factors(images, P, c, K, pooled)
        else:
            factors = self._layers(images, pooled)
        y = factors[0]
        for n, factor in enumerate(factors, 1):
            if n > 1:
                y = torch.addcmul(y, factor, y)
            if n in self.pool:
                y = self._halve(y)
        y = y.reshape(batch, runs, self.units).transpose(0, 1)
        if self.runs is None:
            return F.linear(y[0], self.C[:, :-1], self.C[:, -1])
        return torch.baddbmm(self.C[..., -1].unsqueeze(-2), y, self.C[..., :-1].transpose(-1, -2))

    def _layers(self, images: Tensor, pooled: list[int]) -> list[Tensor]:
        """The factors layer by layer, each (batch, runs, channels, *space) at its pooled size."""
        runs, (groups, batch) = self.runs or 1, images.shape[:2]
        # The runs of a stack lie side by side in the channels; inputs they share need no copies, because the first
        # convolution then has all runs' kernels as its output channels.
        h = images.transpose(0, 1).flatten(1, 2)
        if self.pre is not None:
            weight = self.P.reshape(-1, *self.P.shape[-self.dims - 1 :])
            h = CONVOLUTIONS[self.dims](h, weight, self.c.flatten(), padding="same", groups=groups)
            groups = runs
        kernels = self.K.reshape(-1, *self.K.shape[-self.dims - 1 :])
        h = CONVOLUTIONS[self.dims](h, kernels, padding="same", groups=groups)
        factors = list(h.reshape(batch, runs, self.degree, self.channels, *self.shape[1:]).unbind(2))
        for n, times in enumerate(pooled):
            for _ in range(times):
                factors[n] = self._halve(factors[n])
        return factors

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


# PN-Conv's factors in one convolution each: all linear maps between two products collapse, border included.
#
# A factor is a 3 x 3 pre-convolution into m channels, a larger convolution of those, and some 2 x 2 average poolings.
# All of it is linear in the image x, and inside the image it is one strided convolution of x itself, whose kernel is
# the convolution of the three kernels. On batches that is two to four times as fast as the layers.
#
# Two things happen only at the border, where the second convolution meets zeros in place of the pre-convolution's
# output:
#
# - The pre-convolution's constant counts only inside: its image under the second convolution is a fixed map, computed
#   once for a whole batch.
# - The collapsed kernel wrongly sees the pre-convolution's values on the frame of one pixel around the image. They
#   depend on the outermost rows and columns of x alone and reach only the outermost rows and columns of the result;
#   one-dimensional convolutions compute what they did there, and it is subtracted.
#
# The result equals the layers', and so do its gradients.


def can_collapse(shape: tuple[int, ...], pre: int | None, kernel: int, pools: int) -> bool:
    """Whether `collapsed_factors` covers this network: 2-D, a 3 x 3 pre-convolution, sizes that the poolings divide."""
    sizes = shape[1:]
    return (
        len(sizes) == 2
        and pre == 3
        and kernel > 1
        and all(n % 2**pools == 0 and n >= max(kernel, 2**pools) for n in sizes)
    )


def collapsed_factors(x: Tensor, P: Tensor, c: Tensor, K: Tensor, pooled: list[int]) -> list[Tensor]:
    """All factors of E runs, each (batch, E, channels, height, width) at its pooled size.

    Args:
        x: images (groups, batch, inputs, height, width): shared by all runs (groups = 1) or one batch for each.
        P: pre-convolutions (E, m, inputs, 3, 3).
        c: their constants (E, m).
        K: kernels (E, k, channels, m, size, size).
        pooled: how often each of the k factors is pooled, in rising order.
    """
    groups, batch, inputs, height, width = x.shape
    runs, k, channels, m, size, _ = K.shape
    image = x.transpose(0, 1).reshape(batch, groups * inputs, height, width)
    # The kernels of `K * (P * x)`: (E, k, channels, inputs, size + 2, size + 2).
    stacked = K.transpose(0, 1).transpose(1, 2).reshape(k * channels, runs * m, size, size)
    flipped = P.flip(-1, -2).transpose(1, 2).reshape(runs * inputs, m, 3, 3)
    whole = F.conv2d(stacked, flipped, padding=2, groups=runs)
    whole = whole.reshape(k, channels, runs, inputs, size + 2, size + 2).permute(2, 0, 1, 3, 4, 5)
    # What the pre-convolution's constant becomes: the sum over taps that meet the image, at every place.
    weighted = (K * c[:, None, None, :, None, None]).sum(3).reshape(1, runs * k * channels, size, size)
    ones = K.new_ones(1, 1, height, width)
    constants = F.conv2d(ones, weighted.transpose(0, 1), padding=size // 2).reshape(runs, k, channels, height, width)
    factors: list[Tensor] = []
    for times in sorted(set(pooled)):
        first, count, stride = pooled.index(times), pooled.count(times), 2**times
        some = slice(first, first + count)
        kernel = whole[:, some].reshape(-1, 1, size + 2, size + 2)
        if stride > 1:  # followed by the average over windows
            kernel = F.conv2d(kernel, K.new_full((1, 1, stride, stride), 1 / stride**2), padding=stride - 1)
        left = size // 2 + 1
        padding = [edge for n in (width, height) for edge in (left, size + stride - left)]
        kernel = kernel.reshape(runs * count * channels, inputs, *[size + 1 + stride] * 2)
        h = F.conv2d(F.pad(image, padding), kernel, stride=stride, groups=groups)
        h = h.reshape(batch, runs, count * channels, height // stride, width // stride)
        h = h + F.avg_pool2d(constants[:, some].flatten(1, 2), stride)
        h = _MinusStrips.apply(h, *_frame(image, P, K[:, some], groups, stride))  # type: ignore[no-untyped-call]
        factors += h.reshape(batch, runs, count, channels, *h.shape[-2:]).unbind(2)
    return factors


def _frame(image: Tensor, P: Tensor, K: Tensor, groups: int, stride: int) -> list[Tensor]:
    """What the collapsed kernel sees of the pre-convolution on the frame: strips of the top, bottom, left and right.

    Strips are (batch, E, k * channels, rows, columns), rows along the side; K is (E, k, channels, m, size, size).
    """
    batch, (runs, m, inputs, _, _), half = len(image), P.shape, K.shape[-1] // 2
    strips = []
    for horizontal, far in product((True, False), (False, True)):
        # Bring every side into the place of the top: rows are what runs along the side.
        pixels, pre, kernel = (t if horizontal else t.transpose(-1, -2) for t in (image, P, K))
        if far:
            pixels, pre, kernel = pixels.flip(-2), pre.flip(-2), kernel.flip(-2)
        # From the first row, the frame above it, its corners counted with the horizontal sides; and from the frame the
        # first rows of the result. Row t of these meets the frame with its tap half - 1 - t.
        row = pre[..., 2, :].reshape(runs * m, inputs, 3)
        frame = F.conv1d(pixels[..., 0, :], row, padding=2 if horizontal else 1, groups=groups)
        taps = kernel[..., :half, :].flip(-2).movedim(-2, 3).reshape(-1, m, K.shape[-1])
        strip = F.conv1d(frame, taps, padding=half - 1 if horizontal else half, groups=runs)
        strip = strip.reshape(batch, -1, half, pixels.shape[-1])
        if stride > 1:
            strip = F.avg_pool2d(F.pad(strip, (0, 0, 0, -half % stride)), stride)
        strip = strip.flip(-2) if far else strip
        strips.append(strip.reshape(batch, runs, -1, *strip.shape[-2:]))
    return strips


class _MinusStrips(torch.autograd.Function):
    """`h` less strips along its top, bottom, left and right (those two lying on their side), in place.

    Autograd's own way for in-place slices copies the whole gradient for each of them.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, *strips: Tensor) -> Tensor:
        ctx.rows = [strip.shape[-2] for strip in strips]
        for part, strip in zip(_edges(h, ctx.rows), strips, strict=True):
            part.sub_(strip)
        ctx.mark_dirty(h)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0], *(-part for part in _edges(gradients[0], ctx.rows))


def _edges(h: Tensor, rows: list[int]) -> list[Tensor]:
    """The top, bottom, left and right of h, with these numbers of rows, as views with rows along the edge."""
    turned = h.transpose(-1, -2)
    return [h[..., : rows[0], :], h[..., -rows[1] :, :], turned[..., : rows[2], :], turned[..., -rows[3] :, :]]
