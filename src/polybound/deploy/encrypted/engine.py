"""Sums and products of ciphertexts, as chains and graphs are evaluated with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp
from typing import Any

import numpy.typing as npt

from polybound.deploy.encrypted.seal import Keys, Scheme, sealapi

Slots = npt.NDArray[Any]
"""Numbers in slots, real or complex."""

Step = tuple[int, list[tuple[int, int, Any]]]
"""A giant step, and what it rotates: ciphertexts that are read, by their baby steps, and their weights."""


class Engine:
    """The ciphertexts of one client. None is ever changed, except by `add` its first argument and by `scaled`.

    Args:
        scheme: SEAL with the plan's parameters.
        keys: the client's public keys; None while weights are encoded.
    """

    def __init__(self, scheme: Scheme, keys: Keys | None = None) -> None:
        self.scheme, self._keys = scheme, keys
        self._evaluator = sealapi.Evaluator(scheme.context)

    @property
    def keys(self) -> Keys:
        """The client's keys."""
        assert self._keys is not None  # noqa: S101
        return self._keys

    def encode(self, slots: Slots, scale: float, primes: int) -> Any:
        """A plaintext; None if it is zero."""
        plain = self.scheme.plain(slots, scale, self.scheme.parms_id(primes))
        return None if plain.is_zero() else plain

    def nothing(self, primes: int, scale: float) -> Any:
        """An encrypted zero."""
        zero = sealapi.Ciphertext()
        self.keys.encryptor.encrypt_zero(self.scheme.parms_id(primes), zero)
        zero.scale = scale
        return zero

    def rotate(self, value: Any, step: int) -> Any:
        """The ciphertext rotated by a step that has a key."""
        turned = sealapi.Ciphertext()
        self._evaluator.rotate_vector(value, step, self.keys.rotations, turned)
        return turned

    def conjugate(self, value: Any) -> Any:
        """The conjugates of all slots."""
        mirrored = sealapi.Ciphertext()
        self._evaluator.complex_conjugate(value, self.keys.rotations, mirrored)
        return mirrored

    def times(self, value: Any, plain: Any) -> Any:
        """The product with a plaintext."""
        product = sealapi.Ciphertext()
        self._evaluator.multiply_plain(value, plain, product)
        return product

    def factor(self, value: Any, factor: float, scale: float) -> Any:
        """The product with a whole number, which only changes the scale."""
        product = sealapi.Ciphertext()
        if factor == 1:
            # The binding has no copy: the level's own change does one.
            self._evaluator.mod_switch_to(value, value.parms_id(), product)
            return product
        # A power of two at a time: the encoder's own numbers are doubles, and a whole number is exact.
        mantissa, exponent = frexp(factor)
        plain = self.scheme.plain(2 * mantissa, 2.0 ** (exponent - 1), value.parms_id())
        self._evaluator.multiply_plain(value, plain, product)
        product.scale = scale
        return product

    def product(self, left: Any, right: Any) -> Any:
        """The product of two ciphertexts, or a square, relinearised."""
        found = sealapi.Ciphertext()
        if left is right:
            self._evaluator.square(left, found)
        else:
            self._evaluator.multiply(left, right, found)
        self._evaluator.relinearize_inplace(found, self.keys.relinearisation)
        return found

    def add(self, total: Any, value: Any) -> Any:
        """The sum, in place of the first; a total of None is zero."""
        if total is None:
            return value
        self._evaluator.add_inplace(total, value)
        return total

    def shift(self, value: Any, slots: Slots | float) -> Any:
        """The sum with a constant, in place."""
        plain = self.scheme.plain(slots, value.scale, value.parms_id())
        self._evaluator.add_plain_inplace(value, plain)
        return value

    def lower(self, value: Any, primes: int) -> Any:
        """The same value with fewer primes."""
        parms_id = self.scheme.parms_id(primes)
        if list(value.parms_id()) == list(parms_id):
            return value
        found = sealapi.Ciphertext()
        self._evaluator.mod_switch_to(value, parms_id, found)
        return found

    def rescaled(self, value: Any, primes: int, scale: float | None = None) -> Any:
        """The value divided by primes until this number of them is left, at the scale that follows or at this one."""
        found = sealapi.Ciphertext()
        self._evaluator.rescale_to(value, self.scheme.parms_id(primes), found)
        return found if scale is None else self.scaled(found, scale)

    def scaled(self, value: Any, scale: float) -> Any:
        """The value, whose scale is this but for rounding."""
        value.scale = scale
        return value

    def total(self, steps: Sequence[Step], babies: Mapping[int, Mapping[int, Any]], stride: int) -> Any:
        """A matrix by its diagonals: from the largest giant step to none, weighted baby steps; None if it is zero.

        Args:
            steps: the giant steps, the largest first.
            babies: each ciphertext that is read and is not zero, by its baby steps.
            stride: of the giant steps.
        """
        total, following = None, [giant for giant, _ in steps[1:]] + [0]
        for (giant, weights), then in zip(steps, following, strict=True):
            for read, baby, plain in weights:
                if read in babies:
                    total = self.add(total, self.times(babies[read][baby], plain))
            if giant != then and total is not None:
                total = self.rotate(total, stride * (giant - then))
        return total
