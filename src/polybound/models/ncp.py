"""NCP, the nested coupled CP decomposition: a recursion of products with a matrix in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from polybound.errors import PolyboundError, check_int
from polybound.models.affine import Dense
from polybound.models.base import ModelOptions, PolynomialNetwork, damping, fill_uniform, gather, with_bias
from polybound.models.factors import Factors, WeightGroup


class NCP(PolynomialNetwork):
    """A nested coupled CP polynomial of the input:

        y_1 = (V_1 x) * b_1,   y_n = (V_n x) * (U_n y_(n-1) + b_n),   f(x) = Q y_k + beta

    Matrices start as PyTorch's `Linear` does and the `b_n` at one, so that every degree begins near the linear model
    `V_k x` instead of at a vanishing or overflowing product.

    Args:
        features: length of the input.
        rank: number of hidden units m.
        classes: number of outputs.
        degree: number of steps k.
        shape: shape of one input, if it is not flat.
        **options: `runs`, `seed`, `device` and `dtype`; see `PolynomialNetwork`.

    Attributes:
        V: (*lead, k, m, features).
        b: b_1, (*lead, m).
        S: `[U_n, b_n]` for n = 2..k, (*lead, k - 1, m, m + 1).
        C: `[Q, beta]`, (*lead, classes, m + 1).

    >>> import torch, polybound as pb
    >>> pb.NCP(features=64, rank=16, classes=10, degree=4, runs=3)(torch.zeros(5, 64)).shape
    torch.Size([3, 5, 10])
    """

    _arguments = ("features", "rank", "classes", "degree", "runs", "shape")

    def __init__(
        self,
        features: int,
        rank: int,
        classes: int,
        degree: int,
        *,
        shape: Sequence[int] | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__((features,) if shape is None else shape, classes, degree, **options)
        if self.features != features:
            raise PolyboundError(f"shape {self.shape} has {self.features} entries, not {features}")
        self.rank = check_int("rank", rank)
        self.V = self._parameter(degree, rank, features)
        self.b = self._parameter(rank)
        self.S = self._parameter(degree - 1, rank, rank + 1)
        self.C = self._parameter(classes, rank + 1)
        self.reset_parameters()

    @classmethod
    def from_factors(
        cls,
        V: Tensor | Sequence[Tensor],
        U: Tensor | Sequence[Tensor],
        b: Tensor | Sequence[Tensor],
        C: Tensor,
        bias: Tensor | None = None,
        *,
        shape: Sequence[int] | None = None,
    ) -> NCP:
        """An NCP from weights trained anywhere, with the names of the class's formula.

        Args:
            V: the k matrices (rank, features).
            U: the k - 1 matrices (rank, rank) in between, U_2 first.
            b: the k vectors (rank,), b_1 first.
            C: the output matrix, (classes, rank).
            bias: (classes,); zero by default.
            shape: shape of one input, if it is not flat.

        >>> import torch, polybound as pb
        >>> model = pb.NCP(5, 3, 4, degree=2, seed=0)
        >>> V, S, C = model.V, model.S, model.C
        >>> b = torch.cat([model.b.unsqueeze(0), S[..., -1]])
        >>> copy = pb.NCP.from_factors(V, S[..., :-1], b, C[:, :-1], C[:, -1])
        >>> bool((copy(torch.ones(1, 5)) == model(torch.ones(1, 5))).all())
        True
        """
        V, b = gather("V", V), gather("b", b)
        if V.ndim != 3 or b.shape != V.shape[:2] or C.ndim != 2:
            raise PolyboundError("V must be (k, rank, features), b (k, rank) and C (classes, rank)")
        degree, rank, features = V.shape
        between = gather("U", U) if degree > 1 or isinstance(U, Tensor) else V.new_zeros(0, rank, rank)
        if between.shape != (degree - 1, rank, rank):
            raise PolyboundError(f"U must be ({degree - 1}, {rank}, {rank}), got {tuple(between.shape)}")
        sizes = {"features": features, "rank": rank, "classes": len(C), "degree": degree}
        S = torch.cat([between.to(V.dtype), b[1:].unsqueeze(-1).to(V.dtype)], -1)
        state = {"V": V, "b": b[0], "S": S, "C": with_bias(C, bias)}
        return cls._filled(sizes | {"runs": None, "shape": list(shape or (features,))}, state)

    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        fill_uniform(weights["V"], self.features, generator)
        fill_uniform(weights["S"][..., :-1], self.rank, generator, damping(self.degree))
        weights["S"][..., -1] = 1.0
        weights["b"].fill_(1.0)
        fill_uniform(weights["C"], self.rank, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self._flat(x)
        rows = self.V.flatten(0, -2) if x.ndim == 2 else self.V.flatten(-3, -2)
        h = (rows @ x.transpose(-1, -2)).reshape(*self.V.shape[:-1], x.shape[-2])
        first, *others = h.unbind(-3)
        y = first * self.b.unsqueeze(-1)
        for factor, S in zip(others, self.S.unbind(-3), strict=True):
            y = factor * (S[..., :-1] @ y + S[..., -1:])
        return (self.C[..., :-1] @ y + self.C[..., -1:]).transpose(-1, -2)

    def factors(self) -> Factors:
        A = tuple(Dense(V) for V in self.V.unbind(-3))
        S = tuple(Dense(S[..., :-1], S[..., -1]) for S in self.S.unbind(-3))
        return Factors("NCP", A, S, self.b, Dense(self.C[..., :-1], self.C[..., -1]), constant=True)

    def weight_groups(self) -> list[WeightGroup]:
        steps = range(1, self.degree + 1)
        groups = [
            WeightGroup(tuple(f"A{n}" for n in steps), self.V),
            WeightGroup(("S1",), self.b.unsqueeze(-1).unsqueeze(-3)),
            WeightGroup(tuple(f"S{n}" for n in steps[1:]), self.S),
            WeightGroup(("C",), self.C.unsqueeze(-3)),
        ]
        return [group for group in groups if group.names]
