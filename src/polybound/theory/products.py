"""The paper's matrix products: Kronecker, column-wise Khatri-Rao, face-splitting.

All three order their factors as `torch.kron` does: the first index is the slowest. (The paper's printed example of
the face-splitting product has the columns in the other order; norms do not see the difference, but the mixed-product
laws need one order throughout.)
"""

from __future__ import annotations

from functools import reduce

from torch import Tensor

from polybound.errors import PolyboundError

__all__ = ["face_splitting", "khatri_rao", "kronecker"]


def kronecker(*matrices: Tensor) -> Tensor:
    """The Kronecker product, batched over leading dimensions: `(A (x) B)_(ip+k, jq+l) = A_ij B_kl`.

    >>> import torch
    >>> kronecker(torch.tensor([[1., 2.]]), torch.tensor([[1., 10.]]))
    tensor([[ 1., 10.,  2., 20.]])
    """
    return reduce(
        lambda a, b: (a[..., :, None, :, None] * b[..., None, :, None, :]).flatten(-4, -3).flatten(-2), matrices
    )


def khatri_rao(*matrices: Tensor) -> Tensor:
    """The column-wise Khatri-Rao product `*`: column j is the Kronecker product of the columns j.

    >>> import torch
    >>> khatri_rao(torch.tensor([[1.], [2.]]), torch.tensor([[1.], [10.]])).T
    tensor([[ 1., 10.,  2., 20.]])
    """
    if len({matrix.shape[-1] for matrix in matrices}) != 1:
        raise PolyboundError(f"Khatri-Rao product of matrices with {[m.shape[-1] for m in matrices]} columns")
    return reduce(lambda a, b: (a[..., :, None, :] * b[..., None, :, :]).flatten(-3, -2), matrices)


def face_splitting(*matrices: Tensor) -> Tensor:
    """The face-splitting product: row j is the Kronecker product of the rows j.

    Mixed product law: `(A_1 B_1) o (A_2 B_2) = face_splitting(A_1, A_2) @ khatri_rao(B_1, B_2)`.

    >>> import torch
    >>> face_splitting(torch.tensor([[1., 2.]]), torch.tensor([[1., 10.]]))
    tensor([[ 1., 10.,  2., 20.]])
    """
    if len({matrix.shape[-2] for matrix in matrices}) != 1:
        raise PolyboundError(f"face-splitting product of matrices with {[m.shape[-2] for m in matrices]} rows")
    return reduce(lambda a, b: (a[..., :, None] * b[..., None, :]).flatten(-2), matrices)
