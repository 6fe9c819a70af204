"""CCP, the coupled CP decomposition: one product of k affine maps of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor

from polybound.errors import PolyboundError, check_choice, check_int
from polybound.models.affine import Dense, Identity
from polybound.models.base import ModelOptions, PolynomialNetwork, damping, fill_uniform, gather, with_bias
from polybound.models.factors import Factors, WeightGroup


class CCP(PolynomialNetwork):
    """A coupled CP polynomial of the input, in one of two forms.

    "residual", the original recursion (its degree-4 and degree-10 kinds are the paper's PN-4 and PN-10):

        y_1 = V_1 x,   y_n = (V_n x) * y_(n-1) + y_(n-1),   f(x) = Q y_k + beta

    "product", the paper's re-parametrisation with free matrices on the lifted input z = [x, 1]:

        f(x) = C ((U_1 z) * ... * (U_k z))

    Weights start as PyTorch's `Linear` does; the constant columns of the product form start at those of the residual
    form (0 for the first factor, 1 for the others), so that high degrees neither vanish nor overflow.

    Args:
        features: length of the input.
        rank: number of hidden units m.
        classes: number of outputs.
        degree: number of factors k.
        form: "residual" or "product".
        shape: shape of one input, if it is not flat: images of that shape are then accepted as they are.
        **options: `runs`, `seed`, `device` and `dtype`; see `PolynomialNetwork`.

    Attributes:
        V: (*lead, k, m, features) of the residual form.
        U: (*lead, k, m, features + 1) of the product form.
        C: `[Q, beta]`, (*lead, classes, m + 1), of the residual form; (*lead, classes, m) of the product form.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(features=64, rank=16, classes=10, degree=4)
    >>> model(torch.zeros(5, 64)).shape
    torch.Size([5, 10])
    """

    _arguments = ("features", "rank", "classes", "degree", "form", "runs", "shape")

    def __init__(
        self,
        features: int,
        rank: int,
        classes: int,
        degree: int,
        form: Literal["residual", "product"] = "residual",
        *,
        shape: Sequence[int] | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__((features,) if shape is None else shape, classes, degree, **options)
        if self.features != features:
            raise PolyboundError(f"shape {self.shape} has {self.features} entries, not {features}")
        self.rank, self.form = check_int("rank", rank), check_choice("form", form, ("residual", "product"))
        if form == "residual":
            self.V = self._parameter(degree, rank, features)
            self.C = self._parameter(classes, rank + 1)
        else:
            self.U = self._parameter(degree, rank, features + 1)
            self.C = self._parameter(classes, rank)
        self.reset_parameters()

    @classmethod
    def from_factors(
        cls,
        V: Tensor | Sequence[Tensor],
        C: Tensor,
        bias: Tensor | None = None,
        *,
        form: Literal["residual", "product"] = "residual",
        shape: Sequence[int] | None = None,
    ) -> CCP:
        """A CCP from weights trained anywhere.

        Args:
            V: the k matrices (rank, features) of the residual form, or (rank, features + 1), on the lifted input [x,
                1], of the product form; one tensor or a sequence.
            C: the output matrix, (classes, rank).
            bias: (classes,), of the residual form; zero by default.
            form: which of the two.
            shape: shape of one input, if it is not flat.

        >>> import torch, polybound as pb
        >>> V = [torch.randn(3, 5, dtype=torch.float64) for _ in range(2)]
        >>> C, beta = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
        >>> x = torch.randn(7, 5, dtype=torch.float64)
        >>> y = x @ V[0].T
        >>> torch.allclose(pb.CCP.from_factors(V, C, beta)(x), (x @ V[1].T * y + y) @ C.T + beta)
        True
        """
        V = gather("V", V)
        if V.ndim != 3 or C.ndim != 2:
            raise PolyboundError(f"V must be (k, rank, features), C (classes, rank): {V.ndim} and {C.ndim} dimensions")
        if form == "product" and bias is not None:
            raise PolyboundError("the product form has no bias: its constants are the last columns of V")
        degree, rank, columns = V.shape
        features = columns - (form == "product")
        sizes = {"features": features, "rank": rank, "classes": len(C), "degree": degree}
        config = sizes | {"form": form, "runs": None, "shape": list(shape or (features,))}
        return cls._filled(config, {"U": V, "C": C} if form == "product" else {"V": V, "C": with_bias(C, bias)})

    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        scale = damping(self.degree)
        if self.form == "residual":
            fill_uniform(weights["V"], self.features, generator, scale)
        else:
            U = weights["U"]
            fill_uniform(U[..., :-1], self.features, generator, scale)
            U[0, :, -1] = 0.0
            U[1:, :, -1] = 1.0
        fill_uniform(weights["C"], self.rank, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self._flat(x)
        if self.form == "product":
            x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
        # Units before samples, (*lead, k, m, batch): one matrix product serves all factors and, if the inputs are
        # shared, all runs; the Hadamard products then run over contiguous memory.
        weight = self.V if self.form == "residual" else self.U
        rows = weight.flatten(0, -2) if x.ndim == 2 else weight.flatten(-3, -2)
        h = (rows @ x.transpose(-1, -2)).reshape(*weight.shape[:-1], x.shape[-2])
        first, *others = h.unbind(-3)
        y = first
        for factor in others:
            y = torch.addcmul(y, factor, y) if self.form == "residual" else factor * y
        logits = self.C[..., :-1] @ y + self.C[..., -1:] if self.form == "residual" else self.C @ y
        return logits.transpose(-1, -2)

    def factors(self) -> Factors:
        if self.form == "residual":
            weights: Tensor = self.V
            Q, beta = self.C[..., :-1], self.C[..., -1]
            shifts = [torch.full_like(weights[..., 0, :, 0], float(n > 0)) for n in range(self.degree)]
        else:
            weights = self.U[..., :-1]
            Q, beta = self.C, self.C.new_zeros(self.C.shape[:-1])
            shifts = list(self.U[..., -1].unbind(-2))
        A = tuple(Dense(w, shift) for w, shift in zip(weights.unbind(-3), shifts, strict=True))
        identity = Identity(self.rank, self.lead, self.C)
        s1 = self.C.new_ones(*self.lead, self.rank)
        return Factors("CCP", A, (identity,) * (self.degree - 1), s1, Dense(Q, beta), self.form == "residual")

    def weight_groups(self) -> list[WeightGroup]:
        names = tuple(f"U{n}" for n in range(1, self.degree + 1))
        if self.form == "residual":
            maps = WeightGroup(names, self.V, constants=(0.0,) + (1.0,) * (self.degree - 1), coupled=True)
        else:
            maps = WeightGroup(names, self.U, coupled=True)
        return [maps, WeightGroup(("C",), self.C.unsqueeze(-3))]
