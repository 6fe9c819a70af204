"""A model's weights as published, laid open for projection: matrices of one size side by side in one tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Block"]


@dataclass(frozen=True, eq=False)
class Block:
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
    """

    names: tuple[str, ...]
    weight: Tensor
    bias: Tensor | None = None
    constants: tuple[float, ...] = ()
    dims: int = 0
    space: tuple[int, ...] = ()
    coupled: bool = False
    floors: tuple[float, ...] = ()
