"""The three matrix products and the laws the paper's proofs rest on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, seeds
from polybound.theory import face_splitting, khatri_rao, kronecker

sizes = st.integers(1, 4)


@st.composite
def matrices(draw, *shapes):
    """Random matrices whose sizes are named by letters, equal letters being equal sizes."""
    values = {letter: draw(sizes) for letter in "".join(shapes)}
    generator = torch.Generator().manual_seed(draw(seeds))
    return [torch.randn(values[a], values[b], generator=generator, dtype=F64) for a, b in shapes]


@given(matrices("ab", "cd"))
def test_kronecker_is_torchs(case):
    assert torch.equal(kronecker(*case), torch.kron(*case))


@given(matrices("ab", "cb"))
def test_khatri_rao_is_kronecker_of_columns(case):
    A, B = case
    expected = torch.stack([torch.kron(a, b) for a, b in zip(A.T, B.T, strict=True)], dim=1)
    assert torch.equal(khatri_rao(A, B), expected)


@given(matrices("ab", "ac"))
def test_face_splitting_is_kronecker_of_rows(case):
    A, B = case
    assert torch.equal(face_splitting(A, B), torch.stack([torch.kron(a, b) for a, b in zip(A, B, strict=True)]))


@given(matrices("ab", "bc", "ad", "dc", "ae", "ec"))
def test_lemma_7_mixed_product_of_face_splitting_and_khatri_rao(case):
    A1, B1, A2, B2, A3, B3 = case
    torch.testing.assert_close((A1 @ B1) * (A2 @ B2), face_splitting(A1, A2) @ khatri_rao(B1, B2))
    left = (A1 @ B1) * (A2 @ B2) * (A3 @ B3)
    torch.testing.assert_close(left, face_splitting(A1, A2, A3) @ khatri_rao(B1, B2, B3))


@given(matrices("ab", "bc", "de", "ec"))
def test_lemma_10_khatri_rao_of_products(case):
    A, C, B, D = case
    torch.testing.assert_close(khatri_rao(A @ C, B @ D), kronecker(A, B) @ khatri_rao(C, D))


@given(matrices("ab", "bc", "de", "ef"))
def test_kronecker_of_products(case):
    A, C, B, D = case
    torch.testing.assert_close(kronecker(A @ C, B @ D), kronecker(A, B) @ kronecker(C, D))


def test_products_are_batched():
    A, B = torch.randn(5, 3, 2), torch.randn(5, 3, 4)
    assert torch.equal(face_splitting(A, B)[2], face_splitting(A[2], B[2]))
    assert torch.equal(khatri_rao(A.mT, B.mT)[2], khatri_rao(A[2].mT, B[2].mT))
    assert torch.equal(kronecker(A, B)[2], kronecker(A[2], B[2]))


def test_sizes_that_do_not_fit():
    with pytest.raises(pb.PolyboundError, match="2, 3"):
        face_splitting(torch.zeros(2, 2), torch.zeros(3, 2))
    with pytest.raises(pb.PolyboundError, match="2, 3"):
        khatri_rao(torch.zeros(2, 2), torch.zeros(2, 3))
