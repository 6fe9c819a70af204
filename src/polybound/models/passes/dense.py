"""Forward and backward passes of dense polynomial networks by hand.

A product of affine maps has gradients in closed form: the derivative by one factor is the product of the others.
A training step is then two matrix products over the weights: no graph, no gradient tensor (the second product goes
straight into the weights), no optimiser. `tests/models/test_passes.py` holds it to autograd.

The runs of a stack lie in `groups` of equal size, one after another; the runs of a group share their inputs, and so one
matrix product.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models.base import PolynomialNetwork
from polybound.models.ccp import CCP
from polybound.models.conv import ConvCCP
from polybound.models.ncp import NCP
from polybound.models.passes.base import JacobianGradients, LogitGradient, ManualGradients, Pairs
from polybound.models.passes.conv import ConvGradients

_NOTHING = 1e-20
"""A gradient that cannot move a weight."""


def has_closed_form(model: object) -> bool:
    """Whether `closed_form` knows the model: a CCP, an NCP, or a ConvCCP of images."""
    return isinstance(model, CCP | NCP) or (isinstance(model, ConvCCP) and model.dims == 2)


def closed_form(model: PolynomialNetwork) -> ManualGradients:
    """The closed-form passes of a CCP, an NCP or a ConvCCP of images, on the model's own parameters."""
    if isinstance(model, CCP):
        return CCPGradients(model)
    if isinstance(model, NCP):
        return _NCPGradients(model)
    if isinstance(model, ConvCCP) and has_closed_form(model):
        return ConvGradients(model)
    raise PolyboundError(f"{type(model).__name__} has no closed-form passes")


class _DenseGradients(ManualGradients):
    """What CCP and NCP share: affine maps of the whole input, all in one matrix product."""

    def __init__(self, weight: Tensor, C: Tensor) -> None:
        # Detached views: the parameters are changed in place, behind autograd's back.
        self.weight = weight.detach()
        self.weight = self.weight if weight.ndim == 4 else self.weight.unsqueeze(0)
        self.C = C.detach() if C.ndim == 3 else C.detach().unsqueeze(0)
        self.runs, self.degree, self.rank, self.columns = self.weight.shape
        self._gradient: Tensor | None = None  # to allocate it for every step costs a tenth of it

    @abstractmethod
    def backward(self, d: Tensor) -> tuple[Tensor, Pairs]:
        """From the logits' gradient d, (E, classes, batch): that of the factors, (E, k, m, batch), and of the others.

        The others are pairs of a parameter and its gradient: all that is small.
        """

    @abstractmethod
    def _factor_gradient(self, dy: Tensor) -> Tensor:
        """From the gradient of the last product, (E, m, batch), that of the factors, (E, k, m, batch)."""

    def _factors(self, x: Tensor) -> Tensor:
        """All affine maps of the input at once: (E, k, m, batch)."""
        self.x, (groups, batch, _) = x, x.shape
        rows = self.weight.view(groups, -1, self.columns)
        return torch.bmm(rows, x.transpose(1, 2)).view(self.runs, self.degree, self.rank, batch)

    def descend_(self, x: Tensor, logit_grad: LogitGradient, rate: float, decay: float = 0.0) -> None:
        d = logit_grad(self.logits(x), slice(0, self.runs), slice(0, x.shape[1]))
        self._update_(*self.backward(d), rate, decay)

    def _update_(self, factors: Tensor, others: Pairs, rate: float, decay: float) -> None:
        groups, batch, _ = self.x.shape
        rows = self.weight.view(groups, -1, self.columns)
        rows.baddbmm_(factors.view(groups, -1, batch), self.x, beta=1.0 - rate * decay, alpha=-rate)
        for parameter, gradient in others:
            parameter.mul_(1.0 - rate * decay).sub_(gradient, alpha=rate)

    def gradients_of(self, x: Tensor, logit_grad: LogitGradient) -> Pairs:
        d = logit_grad(self.logits(x), slice(0, self.runs), slice(0, x.shape[1]))
        return self._gradients(*self.backward(d))

    def _gradients(self, factors: Tensor, others: Pairs) -> Pairs:
        if self._gradient is None:
            self._gradient = torch.empty_like(self.weight)
        groups, batch, _ = self.x.shape
        torch.bmm(factors.view(groups, -1, batch), self.x, out=self._gradient.view(groups, -1, self.columns))
        return [(self.weight, self._gradient), *others]

    def input_gradient(self, d: Tensor) -> Tensor:
        factors = self._factor_gradient(torch.bmm(self.C[..., : self.rank].transpose(1, 2), d))
        rows = self.weight.view(self.runs, -1, self.columns)
        return torch.bmm(factors.view(self.runs, -1, d.shape[-1]).transpose(1, 2), rows)

    def _output(self, y: Tensor) -> Tensor:
        """`Q y + beta`, or `C y` where C has no constant column."""
        if self.C.shape[-1] == self.rank:
            return torch.bmm(self.C, y)
        return torch.baddbmm(self.C[..., -1:], self.C[..., :-1], y)

    def _output_gradient(self, d: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of C and of y."""
        gradient = torch.bmm(d, y.transpose(1, 2))
        if self.C.shape[-1] > self.rank:
            gradient = torch.cat([gradient, d.sum(-1, keepdim=True)], -1)
        return gradient, torch.bmm(self.C[..., : self.rank].transpose(1, 2), d)


class CCPGradients(_DenseGradients, JacobianGradients):
    """`dy_k/dh_i` is the product of all other factors: of a prefix and a suffix.

    The product form's factors see the lifted input `[x, 1]`, whose constant is no input. A loss of the rows of the
    Jacobian takes a forward pass of tangents and one more backward pass.
    """

    def __init__(self, model: CCP) -> None:
        self.residual = model.form == "residual"
        super().__init__(model.V if self.residual else model.U, model.C)

    def logits(self, x: Tensor) -> Tensor:
        self.h = self._factors(x if self.residual else F.pad(x, (0, 1), value=1.0))
        if self.residual:
            self.h[:, 1:] += 1.0
        self.each = self.h.unbind(1)
        self.prefix = [self.each[0]]
        for factor in self.each[1:]:
            self.prefix.append(self.prefix[-1] * factor)
        return self._output(self.prefix[-1])

    def input_gradient(self, d: Tensor) -> Tensor:
        found = super().input_gradient(d)
        return found if self.residual else found[..., :-1]

    def backward(self, d: Tensor) -> tuple[Tensor, Pairs]:
        gradient, dy = self._output_gradient(d, self.prefix[-1])
        return self._factor_gradient(dy), [(self.C, gradient)]

    def _factor_gradient(self, dy: Tensor) -> Tensor:
        return self._others(dy, self.each, self.prefix)

    def _others(self, dy: Tensor, each: Sequence[Tensor], prefix: Sequence[Tensor]) -> Tensor:
        """`dy prod_(j != i) h_j` for all i: (E, k, *shape of dy)."""
        factors = dy.new_empty(self.runs, self.degree, *dy.shape[1:])
        into, suffix = factors.unbind(1), dy
        for n in range(self.degree - 1, 0, -1):
            torch.mul(suffix, prefix[n - 1], out=into[n])
            suffix = suffix * each[n]
        into[0].copy_(suffix)
        return factors

    def rows(self, v: Tensor) -> Tensor:
        """With `q = Q^T v` and the factors h, the sum over i of `q prod_(j != i) h_j` times the rows of `V_i`."""
        runs, directions, classes, batch = v.shape
        self.v = v.transpose(1, 2).reshape(runs, classes, -1)
        self.q = torch.bmm(self.C[..., : self.rank].transpose(1, 2), self.v).view(runs, self.rank, directions, batch)
        # A dimension for the directions.
        self.each_by_direction = [h.unsqueeze(2) for h in self.each]
        self.prefix_by_direction = [y.unsqueeze(2) for y in self.prefix]
        self.slopes = self._others(self.q, self.each_by_direction, self.prefix_by_direction).view(
            runs, self.degree * self.rank, -1
        )
        weight = self.weight.view(runs, -1, self.columns)
        rows = torch.bmm(self.slopes.transpose(1, 2), weight).view(runs, directions, batch, -1)
        return rows if self.residual else rows[..., :-1]

    def update_by_rows_(self, d: Tensor, r: Tensor, rate: float, decay: float = 0.0) -> None:
        r = r if self.residual else F.pad(r, (0, 1))
        self._update_(*self._backward_by_rows(d, r), rate, decay)
        self.weight.view(self.runs, -1, self.columns).baddbmm_(self.slopes, r.flatten(1, 2), alpha=-rate)

    def gradients_by_rows(self, d: Tensor, r: Tensor) -> Pairs:
        r = r if self.residual else F.pad(r, (0, 1))
        pairs = self._gradients(*self._backward_by_rows(d, r))
        pairs[0][1].view(self.runs, -1, self.columns).baddbmm_(self.slopes, r.flatten(1, 2))
        return pairs

    def _backward_by_rows(self, d: Tensor, r: Tensor) -> tuple[Tensor, Pairs]:
        """As `backward`, but for what the weights add by the rows themselves, `slopes r`.

        The loss sees the rows through `<r, rows> = <q, t_k>`, where t is the derivative of the prefixes y as the
        factors move by `g_i = V_i r`: `t_n = t_(n-1) h_n + y_(n-1) g_n`. So back through that recursion, with the
        adjoints a of t and b of y; the latter begins with that of the logits.
        """
        weight = self.weight.view(self.runs, -1, self.columns)
        g = torch.bmm(weight, r.flatten(1, 2).transpose(1, 2)).view(self.runs, self.degree, *self.q.shape[1:]).unbind(1)
        t = [g[0]]
        for n in range(1, self.degree):
            t.append(torch.addcmul(t[-1] * self.each_by_direction[n], self.prefix_by_direction[n - 1], g[n]))
        of_C, b = self._output_gradient(d, self.prefix[-1])
        of_C[..., : self.rank].baddbmm_(self.v, t[-1].flatten(2).transpose(1, 2))

        factors = torch.empty_like(self.h)
        into, a = factors.unbind(1), self.q
        for n in range(self.degree - 1, 0, -1):
            torch.addcmul((a * t[n - 1]).sum(2), b, self.prefix[n - 1], out=into[n])
            b = torch.addcmul((a * g[n]).sum(2), b, self.each[n])
            a = a * self.each_by_direction[n]
        into[0].copy_(b)
        return factors, [(self.C, of_C)]


class _NCPGradients(_DenseGradients):
    """Back through the recursion: `y_n = h_n s_n`, `s_n = U_n y_(n-1) + b_n`.

    Small bounds leave the U_n near zero. The gradients by the first factors are then subnormal numbers, which some CPUs
    multiply several times as slowly. Gradients that cannot move a weight are set to zero, as gradients by logits are in
    training; the gradients by the inputs keep them.
    """

    def __init__(self, model: NCP) -> None:
        super().__init__(model.V, model.C)
        self.S = model.S.detach() if model.S.ndim == 4 else model.S.detach().unsqueeze(0)
        self.b = model.b.detach() if model.b.ndim == 2 else model.b.detach().unsqueeze(0)

    def logits(self, x: Tensor) -> Tensor:
        self.h = self._factors(x)
        self.inner = [self.b.unsqueeze(-1).expand_as(self.h[:, 0])]
        # What the matrices in between see, y_1 to y_(k-1), side by side: one product then has all their gradients.
        self.before = torch.empty_like(self.h[:, 1:])
        for n in range(1, self.degree):
            y = torch.mul(self.h[:, n - 1], self.inner[-1], out=self.before[:, n - 1])
            S = self.S[:, n - 1]
            self.inner.append(torch.baddbmm(S[..., -1:], S[..., :-1], y))
        self.y = self.h[:, -1] * self.inner[-1]
        return self._output(self.y)

    def backward(self, d: Tensor) -> tuple[Tensor, Pairs]:
        gradient, dy = self._output_gradient(d, self.y)
        ds = torch.empty_like(self.before)
        factors, dy = self._recur(dy, ds)
        of_U = torch.bmm(ds.flatten(0, 1), self.before.flatten(0, 1).transpose(1, 2))
        dS = torch.cat([of_U.view(*self.S.shape[:-1], self.rank), ds.sum(-1, keepdim=True)], -1)
        db = (dy * self.h[:, 0]).sum(-1)
        return factors, [(self.C, gradient), (self.S, dS), (self.b, db)]

    def _factor_gradient(self, dy: Tensor) -> Tensor:
        return self._recur(dy, None)[0]

    def _recur(self, dy: Tensor, slopes: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradients of all factors, and of y_1; those of all s_n go into `slopes`, if that is given."""
        factors = torch.empty_like(self.h)
        for n in range(self.degree - 1, 0, -1):
            torch.mul(dy, self.inner[n], out=factors[:, n])
            ds = torch.mul(dy, self.h[:, n], out=None if slopes is None else slopes[:, n - 1])
            dy = torch.bmm(self.S[:, n - 1, :, :-1].transpose(1, 2), ds)
            if slopes is not None:
                dy = F.hardshrink(dy, _NOTHING)
        torch.mul(dy, self.inner[0], out=factors[:, 0])
        return factors, dy
