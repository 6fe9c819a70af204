"""The engine of SEAL's ciphertexts."""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp
from typing import Any

from polybound.deploy.encrypted.deep.entries import Array
from polybound.deploy.encrypted.seal import Keys, Scheme, sealapi


class Ciphertexts:
    """Ciphertexts of one client.

    Args:
        scheme: SEAL with the plan's parameters.
        keys: the client's public keys; None while weights are encoded.
    """

    def __init__(self, scheme: Scheme, keys: Keys | None = None) -> None:
        self.scheme, self.keys = scheme, keys
        self._evaluator = sealapi.Evaluator(scheme.context)

    def encode(self, slots: Array, scale: float, primes: int) -> Any:
        plain = self.scheme.plain(slots, scale, self.scheme.parms_id(primes))
        return None if plain.is_zero() else plain

    def nothing(self, primes: int, scale: float) -> Any:
        assert self.keys is not None  # noqa: S101
        zero = sealapi.Ciphertext()
        self.keys.encryptor.encrypt_zero(self.scheme.parms_id(primes), zero)
        zero.scale = scale
        return zero

    def rotate(self, value: Any, steps: Sequence[int]) -> Any:
        assert self.keys is not None  # noqa: S101
        for step in steps:
            turned = sealapi.Ciphertext()
            self._evaluator.rotate_vector(value, step, self.keys.rotations, turned)
            value = turned
        return value

    def times(self, value: Any, plain: Any) -> Any:
        product = sealapi.Ciphertext()
        self._evaluator.multiply_plain(value, plain, product)
        return product

    def factor(self, value: Any, factor: float, scale: float) -> Any:
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
        assert self.keys is not None  # noqa: S101
        found = sealapi.Ciphertext()
        if left is right:
            self._evaluator.square(left, found)
        else:
            self._evaluator.multiply(left, right, found)
        self._evaluator.relinearize_inplace(found, self.keys.relinearisation)
        return found

    def add(self, total: Any, value: Any) -> Any:
        self._evaluator.add_inplace(total, value)
        return total

    def shift(self, value: Any, slots: Array) -> Any:
        plain = self.scheme.plain(slots, value.scale, value.parms_id())
        self._evaluator.add_plain_inplace(value, plain)
        return value

    def lower(self, value: Any, primes: int) -> Any:
        parms_id = self.scheme.parms_id(primes)
        if list(value.parms_id()) == list(parms_id):
            return value
        found = sealapi.Ciphertext()
        self._evaluator.mod_switch_to(value, parms_id, found)
        return found

    def rescaled(self, value: Any, primes: int, scale: float) -> Any:
        found = sealapi.Ciphertext()
        self._evaluator.rescale_to(value, self.scheme.parms_id(primes), found)
        found.scale = scale
        return found

    def scaled(self, value: Any, scale: float) -> Any:
        value.scale = scale
        return value
