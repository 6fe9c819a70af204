"""The object that projects a model's weights onto norm balls, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Literal

import torch
from torch import Tensor, nn

from polybound.constraints.l1 import project_l1_rows
from polybound.constraints.product import project_product
from polybound.constraints.spectral import project_spectral, project_spectral_conv
from polybound.errors import PolyboundError, check_choice, check_norm
from polybound.models import DeepNetwork, PolynomialNetwork, WeightGroup
from polybound.registry import format_value
from polybound.theory import mantissa_product, torus_norm

BoundLike = float | Sequence[float] | Tensor
Target = Literal["weights", "operator", "product"]


class Projection:
    """Euclidean projection of a model's weights onto norm balls, in place; the last line of the paper's algorithms.

    Args:
        model: a polynomial network, a stack of them, or any `torch.nn.Module` made of Linear and Conv1d/2d/3d layers
            (each layer's rows are bounded together with its bias).
        bound: one bound for all matrices; or a dict with a bound for each of some (`{"U1": 1.5, "C": 0.8}`, those not
            named stay free). For a stack each bound may be a sequence, one number for each run. `inf` is no bound.
        norm: "inf", the largest row-l1 norm (of a convolution: of its matricised kernel, by Theorem 5), or "2", the
            spectral norm (of a convolution: the norm on the torus, never below that of the operator).
        on: what the bound is about. "weights": all weights that can move: every V_i and kernel as published, the whole
            U_i of the product form with its constant column, and `[C, bias]` and a pre-convolution with its bias
            together. "operator": the U_i with their constant columns; where that is the residual form's fixed 1, the
            rest of the row gets `bound - 1`. "product": the product over i of the row-l1 norms of the U_i, for every
            unit (names "product", "C" and "pre").

    One bound for all of PN-Conv leaves its first kernel at `max(bound, 1)`, as published.

    Of deep networks every map has the name of its parameter, "body.2.a.weight". The scale of a normalisation, with the
    deviation that it divides by, is a map too: a diagonal matrix. Without biases, with on="operator", the bounds are on
    the operators alone.

    Attributes:
        names: what can have a bound.

    >>> import polybound as pb
    >>> model = pb.paper_model("pn-4", seed=0)
    >>> projection = pb.Projection(model, bound=1.0)
    >>> projection.contains()
    False
    >>> projection.apply_()
    >>> projection.contains()
    True
    """

    def __init__(
        self,
        model: nn.Module,
        bound: BoundLike | Mapping[str, BoundLike] = 1.0,
        *,
        norm: Literal["inf", "2"] | float = "inf",
        on: Target = "weights",
    ) -> None:
        name = check_norm(norm)
        if not isinstance(model, nn.Module):
            raise PolyboundError(f"needs a torch.nn.Module of Linear and Conv layers, got {type(model).__name__}")
        check_choice("on", on, ("weights", "operator", "product"))
        if on != "weights" and name != "inf":
            raise PolyboundError(f"on={on!r} goes with norm='inf'")
        self.model, self._options = model, f"norm={name!r}, on={on!r}"
        self._without_bias = on == "operator" and isinstance(model, DeepNetwork)
        self._spaces = model.image_sizes() if name == "2" and isinstance(model, DeepNetwork) else {}
        groups = self._groups()
        if on == "product" and not any(group.coupled for group in groups):
            raise PolyboundError(f"on='product' is for CCP and ConvCCP, not for {type(model).__name__}")
        lead = model.lead if isinstance(model, PolynomialNetwork) else ()
        self._rules = [_Rule(group, name, on) for group in groups]
        self.names = tuple(name for rule in self._rules for name in rule.names)
        given = bound if isinstance(bound, Mapping) else dict.fromkeys(self.names, bound)
        if unknown := [name for name in given if name not in self.names]:
            raise PolyboundError(f"no matrix called {unknown[0]!r}; there are {', '.join(self.names)}")
        for rule, group in zip(self._rules, groups, strict=True):
            radius = torch.stack([_radius(name, given.get(name, inf), lead) for name in rule.names], dim=-1)
            if group.floors and rule.kind == "rows" and not isinstance(bound, Mapping):
                radius = torch.maximum(radius, torch.tensor(group.floors, dtype=radius.dtype))
            rule.limit(radius)

    def __repr__(self) -> str:
        bounds = [f"{name} {format_value(bound.tolist())}" for name, bound in self.bounds().items()]
        return f"Projection({type(self.model).__name__}, {', '.join(bounds)}, {self._options})"

    def _groups(self) -> list[WeightGroup]:
        # Each time from the model: moving it, or loading a state, may replace its parameters.
        if isinstance(self.model, PolynomialNetwork):
            groups = self.model.weight_groups()
            if self._spaces:
                groups = [replace(group, space=self._spaces.get(group.names[0], ())) for group in groups]
            return [replace(group, bias=None) for group in groups] if self._without_bias else groups
        groups = []
        for name, layer in self.model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                bias = None if layer.bias is None else layer.bias.unsqueeze(0)
                dims = 0 if isinstance(layer, nn.Linear) else layer.weight.ndim - 2
                groups.append(WeightGroup((name or "weight",), layer.weight.unsqueeze(0), bias, dims=dims))
        if not groups:
            raise PolyboundError(f"{type(self.model).__name__} has no Linear or Conv layer to project")
        return groups

    @torch.no_grad()
    def apply_(self) -> None:
        """Project all weights, in place."""
        for rule, group in zip(self._rules, self._groups(), strict=True):
            if not rule.free:
                rule.project(group)

    @torch.no_grad()
    def norms(self) -> dict[str, Tensor]:
        """The current norms by name, in float64; one value for each run of a stack."""
        norms: dict[str, Tensor] = {}
        for rule, group in zip(self._rules, self._groups(), strict=True):
            norms |= dict(zip(rule.names, rule.norms(group).cpu().unbind(-1), strict=True))
        return norms

    @torch.no_grad()
    def ratio(self, run: int) -> Tensor:
        """The largest of a run's norms relative to its bound, in the precision of the weights; for norm "inf"."""
        ratios = []
        for rule, group in zip(self._rules, self._groups(), strict=True):
            rows = _joined(group)
            lead = rows.ndim > 3
            norms = (rows[run] if lead else rows).abs().sum(-1).amax(-1)
            ratios.append((norms / (rule.radius[run] if lead else rule.radius).to(norms.device)).amax())
        return torch.stack(ratios).amax()

    def bounds(self) -> dict[str, Tensor]:
        """The bounds by name, in float64; one value for each run of a stack."""
        return {
            name: value for rule in self._rules for name, value in zip(rule.names, rule.radius.unbind(-1), strict=True)
        }

    def contains(self) -> bool:
        """Whether every norm, computed in float64, is within its bound."""
        bounds = self.bounds()
        return all(bool((value <= bounds[name]).all()) for name, value in self.norms().items())


def _radius(name: str, value: BoundLike, lead: tuple[int, ...]) -> Tensor:
    """The bound of a matrix, one for each run, in float64."""
    try:
        radius = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise PolyboundError(f"a bound must be a number, or one number for each run, got {value!r}") from None
    if radius.shape not in ((), lead):
        raise PolyboundError(f"{radius.numel()} bounds for {f'{lead[0]} runs' if lead else 'a single model'}")
    if not (radius >= 0).all():
        raise PolyboundError(f"a bound must be a number of at least 0, got {value!r} for {name}")
    return radius.expand(lead)


class _Rule:
    """How one group of weights is projected, and its norms. It has one of four kinds:

    "rows": row-l1 norms, `max_j ||row j||_1 + constant <= radius`, the constant columns counted with on="operator".
    "spectral": of matrices with their bias, of kernels on the torus.
    "scales": of a normalisation, over the deviations that it divides by, `max_i |w_i| / s_i <= radius`.
    "product": over the factors of a unit, of row-l1 norms with their constant columns: `theta` of the units.

    Attributes:
        names: of the bounds.
        radius: the bounds, (*lead, names).
        free: whether no bound binds.
    """

    def __init__(self, group: WeightGroup, norm: str, on: Target) -> None:
        self.kind = "product" if on == "product" and group.coupled else "spectral" if norm == "2" else "rows"
        self.kind = self.kind if group.scale is None else "scales"
        self.names = ("product",) if self.kind == "product" else group.names
        if self.kind == "spectral" and group.dims and not group.space:
            raise PolyboundError(f"the l2 norm of {group.names[0]} depends on the size of its input: use norm='inf'")
        counted = group.constants if self.kind == "product" or on == "operator" else ()
        self.constants = torch.tensor(counted or (0.0,) * len(group.names), dtype=torch.float64)

    def limit(self, radius: Tensor) -> None:
        """Take the bounds."""
        self.radius, self.free = radius, bool(torch.isinf(radius).all())
        if self.kind == "rows":
            room = (radius - self.constants).unsqueeze(-1)
            if not (room >= 0).all():
                worst = self.names[int(room.reshape(-1, len(self.names)).amin(0).argmin())]
                raise PolyboundError(f"the constant column of {worst} alone has norm 1: its bound must be at least 1")
            # A plain number spares the projection a tensor of radii.
            self.room: float | Tensor = float(room.flatten()[0]) if (room == room.flatten()[0]).all() else room

    def project(self, group: WeightGroup) -> None:
        """Project the weights, in place."""
        if self.kind == "spectral" and group.dims:
            group.weight.copy_(project_spectral_conv(group.weight, self.radius, group.space))
            return
        if group.scale is not None:
            most = (self.radius.to(group.scale.device) / group.scale).to(group.weight.dtype)
            most = torch.nextafter(most, torch.zeros_like(most))  # below, however the quotient was rounded
            group.weight.copy_(torch.minimum(torch.maximum(group.weight, -most), most))
            return
        rows = _joined(group)
        if self.kind == "product":
            rows = project_product(rows, self.radius.squeeze(-1), offset=self.constants)
        elif self.kind == "spectral":
            rows = project_spectral(rows, self.radius)
        else:
            if isinstance(self.room, Tensor):
                self.room = self.room.to(rows.device)
            project_l1_rows(rows, self.room, out=rows)
            if group.bias is None:  # the rows are the weights themselves
                return
        if group.bias is None:
            group.weight.copy_(rows.reshape(group.weight.shape))
        else:
            group.weight.copy_(rows[..., :-1].reshape(group.weight.shape))
            group.bias.copy_(rows[..., -1])

    def norms(self, group: WeightGroup) -> Tensor:
        """The current norms, (*lead, names)."""
        if self.kind == "spectral":
            if group.dims:
                return torus_norm(group.weight, group.space)
            norms: Tensor = torch.linalg.matrix_norm(_joined(group).double(), 2)
            return norms
        rows = _joined(group).double().abs().sum(-1)
        rows = rows if group.scale is None else rows * group.scale.squeeze(-1)
        constants = self.constants.to(rows.device)
        if self.kind != "product":
            return rows.amax(-1) + constants
        # A plain product could be infinity times zero.
        mantissa, exponent = mantissa_product((rows + constants.unsqueeze(-1)).movedim(-2, 0))
        half = exponent.clamp(-2200, 2200) // 2
        product = mantissa * torch.exp2(half.double()) * torch.exp2((exponent.clamp(-2200, 2200) - half).double())
        return product.amax(-1, keepdim=True)


def _joined(group: WeightGroup) -> Tensor:
    """Matrices (*lead, names, rows, columns), kernels matricised; a view unless there is a bias to join."""
    rows = group.weight.flatten(-group.dims - 1) if group.dims else group.weight
    return rows if group.bias is None else torch.cat([rows, group.bias.unsqueeze(-1)], dim=-1)
