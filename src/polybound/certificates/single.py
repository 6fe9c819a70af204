"""Matrix products in single precision, twice as fast, with a bound of what that loses."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["UNDERFLOW", "fits_single", "product_in_single", "single_error"]

_U = 2.0**-24

UNDERFLOW = 2.0**-80
"""More than what underflow costs a product of two numbers below 2^40, one of which, or the product, is subnormal."""


def single_error(terms: int) -> float:
    r"""A number c with `|computed - a b'| <= c |a| |b'|`, entry by entry, for sums of so many products.

    Each entry is rounded to single precision, and each sum of K products, in any order, to within `gamma_K`: the factor
    is `(1 + u)^2 (1 + gamma_K) - 1`, u = 2^-24, which is less than this for K below 2^20. One more rounding, when the
    product is added to its transposed, is in it.
    """
    return (terms + 8) * 1.125 * _U


def fits_single(sizes: Tensor) -> bool:
    """Whether numbers of these sizes, at most, neither overflow nor are so small that underflow would matter."""
    return bool(((sizes > 2.0**-30) & (sizes < 2.0**40)).all())


def product_in_single(a: Tensor, b: Tensor) -> Tensor | None:
    r"""`a b'` in single precision, (problems, n, n); None where it would not be as exact as it must be.

    What underflows adds at most `K UNDERFLOW` to an entry.

    Args:
        a: (problems, n, K), single precision, of sizes that fit.
        b: (problems or 1, n, K), likewise.
    """
    # Any other setting allows for products in bfloat16.
    if torch.get_float32_matmul_precision() != "highest" or a.shape[-1] >= 2**20:
        return None
    shared = len(b) == 1
    found = (a.flatten(0, 1) @ b[0].T).reshape(len(a), a.shape[1], -1) if shared else a @ b.transpose(1, 2)
    return found if _plausible(a[0], b[0], found[0]) else None


def _plausible(a: Tensor, b: Tensor, found: Tensor) -> bool:
    """Whether a row of a product is as near to that in double precision as it must be: some BLAS may cut corners."""
    middle, terms = a.shape[0] // 2, a.shape[1]
    row, columns = a[middle].double(), b.double()
    near = (columns.abs() @ row.abs()) * single_error(terms) + terms * UNDERFLOW
    return bool(((found[middle].double() - columns @ row).abs() <= near).all())
