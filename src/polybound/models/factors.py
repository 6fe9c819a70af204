"""The canonical factors of a model, from which bounds, certificates and encryption are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.models.affine import Affine, Dense, Identity
from polybound.models.windows import Windowed, written_out


def lift(step: Affine, constant_unit: bool) -> Tensor:
    """The matrix of an affine map on the lifted input `[x, 1]`.

    `[[W, b], [0, 1]]` with the constant unit of the paper's lemmas, `[W, b]` without: (*lead, m, d).
    """
    rows = torch.cat([step.matrix(), step.constant.unsqueeze(-1)], dim=-1)
    if not constant_unit:
        return rows
    last = rows.new_zeros(*rows.shape[:-2], 1, rows.shape[-1])
    last[..., -1] = 1.0
    return torch.cat([rows, last], dim=-2)


@dataclass(frozen=True, eq=False, repr=False)
class Factors:
    """Every polynomial network as one chain of products of affine maps.

        y_1 = A_1(x) * s_1,   y_n = A_n(x) * S_n(y_(n-1)),   f(x) = C(y_k)

    NCP fills all of it; CCP has `S_n` the identity and `s_1 = 1`, so that `A_n` is the paper's `U_n`; PN-Conv is a CCP
    whose `S_n` pools. The paper's lemmas 11 and 12 put the constants into one more unit that is always 1; `constant`
    says whether there is one. `matrices()` writes out the lemmas' matrices on the lifted input `z = [x, 1]`.

    Attributes:
        kind: "CCP" or "NCP", which of the paper's theorems apply.
        A: the k maps of the input.
        S: the k - 1 maps between the products.
        s1: (*lead, units), the first factor's scale.
        C: the output map.
        constant: whether the canonical form has the constant unit.
        working: whether these are `double()` already, so that bounds can hand them on to each other.
    """

    kind: Literal["CCP", "NCP"]
    A: tuple[Affine, ...]
    S: tuple[Affine, ...]
    s1: Tensor
    C: Affine
    constant: bool
    working: bool = False

    def __repr__(self) -> str:
        runs = f", runs={self.lead[0]}" if self.lead else ""
        sizes = f"degree={self.degree}, features={self.features}, classes={self.C.outputs}"
        return f"Factors({self.kind}, {sizes}{runs})"

    @property
    def degree(self) -> int:
        """The degree k of the polynomial."""
        return len(self.A)

    @property
    def features(self) -> int:
        """The length of the input x (without the constant 1)."""
        return self.A[0].inputs

    @property
    def lead(self) -> tuple[int, ...]:
        """The run dimensions of a stack."""
        return self.A[0].lead

    @property
    def coupled(self) -> bool:
        """Whether every `S_n` is the identity, so that f is `C` of one plain product."""
        return all(isinstance(step, Identity) for step in self.S)

    def __call__(self, x: Tensor) -> Tensor:
        """f(x), straight from the definition: the oracle of the models' faster forward passes."""
        last = reduce(lambda _, y: y, self.partial_products(x))
        return self.C(last)

    def partial_products(self, x: Tensor) -> Iterator[Tensor]:
        """y_1, ..., y_k for inputs of shape (*lead, batch, features) or (batch, features)."""
        y = self.A[0](x) * self.s1.unsqueeze(-2)
        yield y
        for a, s in zip(self.A[1:], self.S, strict=True):
            y = a(x) * s(y)
            yield y

    def transform(self, change: Callable[[Tensor], Tensor]) -> Factors:
        """The same factors with `change` applied to every tensor."""
        A, S = (tuple(step.transform(change) for step in steps) for steps in (self.A, self.S))
        return replace(self, A=A, S=S, s1=change(self.s1), C=self.C.transform(change))

    def double(self) -> Factors:
        """The same factors in float64, cut off from autograd."""
        return self if self.working else replace(self.transform(lambda t: t.detach().double()), working=True)

    def run(self, index: int) -> Factors:
        """The factors of one run of a stack."""
        return self.transform(lambda t: t[index])

    @cached_property
    def dense(self) -> Factors:
        """The same factors with the maps of the input and of the output written out, each with its `rounding`."""
        if all(isinstance(step, Dense) for step in (*self.A, self.C)):
            return self
        return replace(self, A=tuple(a.dense() for a in self.A), C=self.C.dense())

    @cached_property
    def written_out(self) -> Factors:
        """As `dense`, but for convolutions that are smaller window by window; of one run."""
        if all(isinstance(step, Dense | Windowed) for step in (*self.A, self.C)):
            return self
        return replace(self, A=tuple(written_out(a) for a in self.A), C=self.C.dense())

    def entries(self) -> int:
        """How many numbers the written-out maps of the input have, for one run."""
        return sum(a.inputs * a.outputs for a in self.A)

    def lifted(self) -> Factors:
        """The same function of a free lifted input z: all maps linear, the constant unit written out."""
        rounded = [F.pad(torch.stack(a.rounding()).sum(0), (0, int(self.constant))) for a in self.A]
        A = tuple(
            Dense(lift(a, self.constant), off=(rows, torch.zeros_like(rows)))
            for a, rows in zip(self.A, rounded, strict=True)
        )
        if not self.constant:
            return replace(self, A=A)
        S: list[Affine] = []
        for s in self.S:
            identity = isinstance(s, Identity)
            S.append(Identity(s.outputs + 1, self.lead, self.s1) if identity else Dense(lift(s, constant_unit=True)))
        s1 = torch.cat([self.s1, self.s1.new_ones(*self.lead, 1)], dim=-1)
        C = Dense(torch.cat([self.C.matrix(), self.C.constant.unsqueeze(-1)], dim=-1))
        return replace(self, A=A, S=tuple(S), s1=s1, C=C, constant=False)

    def matrices(self) -> dict[str, Tensor]:
        """The lemmas' matrices by name: `U1..Uk, C` (CCP), `A1, s1, A2, S2, ..., C` (NCP).

        Where a CCP pools between its products, the pooling stands as S_n.
        """
        lifted = self.lifted()
        named = {}
        for n, a in enumerate(lifted.A, 1):
            named[f"{'U' if self.kind == 'CCP' else 'A'}{n}"] = a.matrix()
            if n == 1 and self.kind == "NCP":
                named["s1"] = lifted.s1
            elif n > 1 and not isinstance(lifted.S[n - 2], Identity):
                named[f"S{n}"] = lifted.S[n - 2].matrix()
        return named | {"C": lifted.C.matrix()}


# A model's weights as projections see them: matrices of one size side by side in one tensor.


@dataclass(frozen=True, eq=False)
class WeightGroup:
    """Matrices, or kernels, of one size; views of parameters, to be changed in place.

    Attributes:
        names: the paper's name of each matrix: "U1", ..., "C".
        weight: (*lead, len(names), rows, columns), or kernels (*lead, len(names), rows, channels, *size).
        bias: (*lead, len(names), rows), bounded together with the rows; None if there is none.
        constants: for each matrix, the entry of its constant column (the residual form's fixed 1), which no
            projection can move.
        dims: spatial dimensions of the kernels, 0 for matrices.
        space: sizes of the image that a kernel runs over, if known.
        coupled: whether the matrices are the factors of one product, row by row.
        floors: for each matrix, the least bound it takes when one bound is given for all.
        scale: what the weights of a normalisation, (1, channels, 1), are multiplied by: 1 over the deviations that it
            divides by, in float64; together they are a diagonal matrix. None for all else.
    """

    names: tuple[str, ...]
    weight: Tensor
    bias: Tensor | None = None
    constants: tuple[float, ...] = ()
    dims: int = 0
    space: tuple[int, ...] = ()
    coupled: bool = False
    floors: tuple[float, ...] = ()
    scale: Tensor | None = None
