"""Batches: up to N / 2 images at once, one ciphertext a pixel. Client and server of one `BatchPlan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted.batch_plan import BatchParameters, BatchPlan
from polybound.deploy.encrypted.messages import join, split
from polybound.deploy.encrypted.polynomial import Array
from polybound.deploy.encrypted.ranges import tree_groups
from polybound.deploy.encrypted.residues import ResidueFormat
from polybound.deploy.encrypted.seal import Exchange, make_context, sealapi
from polybound.errors import PolyboundError

__all__ = ["BatchClient", "BatchServer"]

_PIXELS = 64  # at a time: what lies in memory as float64


class BatchClient:
    """One secret key for batches.

    Args:
        parameters: the plan's parameters.
        features: pixels of an image.
    """

    def __init__(self, parameters: BatchParameters, features: int) -> None:
        self.parameters, self.features = parameters, features
        self._context = make_context(parameters.ring, parameters.bits)
        self._generator = sealapi.KeyGenerator(self._context)
        self._encryptor = sealapi.Encryptor(self._context, self._generator.secret_key())
        self._decryptor = sealapi.Decryptor(self._context, self._generator.secret_key())
        self._encoder = sealapi.CKKSEncoder(self._context)
        self._exchange = Exchange()

    def keys(self) -> bytes:
        """The public keys that a server needs: for products, and to encrypt zeros."""
        public = sealapi.PublicKey()
        self._generator.create_public_key(public)
        return join([self._exchange.to_bytes(key) for key in (self._generator.create_relin_keys(), public)])

    def encrypt(self, images: Array, compressed: bool = False) -> list[bytes]:
        """The ciphertexts of all pixels of up to N / 2 images (images, features).

        Compressed they are a little more than half as large, and take twice the server's time.
        """
        images = np.asarray(images, dtype=np.float64)
        if images.shape[1:] != (self.features,) or not 0 < len(images) <= self.parameters.ring // 2:
            raise PolyboundError(
                f"1 to {self.parameters.ring // 2} images of {self.features} pixels are wanted, got {images.shape}"
            )
        found = [self._exchange.to_bytes(self._encrypt(pixel)) for pixel in images.T]
        if compressed:
            return found
        form = ResidueFormat.of(self._context, self._exchange, sealapi.Plaintext("0"))
        return [form.uncompressed(content) for content in found]

    def _encrypt(self, values: Array) -> Any:
        plain, result = sealapi.Plaintext(), sealapi.Ciphertext()
        self._encoder.encode(values.tolist(), 2.0**self.parameters.pixels, plain)
        # Not seeded: the server works on the residues of both polynomials.
        self._encryptor.encrypt_symmetric(plain, result)
        return result

    def decrypt(self, reply: list[bytes], images: int) -> Array:
        """The logits (images, classes) of a reply."""
        found = []
        for content in reply:
            result = self._exchange.load_into(sealapi.Ciphertext(), self._context, content, "the reply")
            plain = sealapi.Plaintext()
            self._decryptor.decrypt(result, plain)
            found.append(self._encoder.decode_double(plain)[:images])
        return np.array(found).T


class BatchServer:
    """The network of a batch plan.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        p = plan.parameters
        self._context = make_context(p.ring, p.bits)
        self._evaluator = sealapi.Evaluator(self._context)
        self._encoder = sealapi.CKKSEncoder(self._context)
        self._exchange = Exchange()
        self._format = ResidueFormat.of(self._context, self._exchange, sealapi.Plaintext("0"))
        self._weights = np.rint(plan.polynomial.W.reshape(-1, plan.polynomial.features) * 2.0**p.weights)
        largest = np.abs(self._weights).sum(1).max() * max(self._format.moduli)
        if largest >= 2.0**53:
            raise PolyboundError("the weights are too large for exact products: the plan is of another network")

    def load_keys(self, content: bytes) -> tuple[Any, Any]:
        """A client's keys: for products, and an encryptor of zeros.

        Raises:
            PolyboundError: they are damaged, or of other parameters.
        """
        p = self.plan.parameters
        one = 2 * len(p.bits) * p.ring * 8 + 4096
        first, second = split(content, [one * p.primes, one], "the keys")
        products = self._exchange.load_into(sealapi.RelinKeys(), self._context, first, "the keys")
        public = self._exchange.load_into(sealapi.PublicKey(), self._context, second, "the keys")
        return products, sealapi.Encryptor(self._context, public)

    def classify(self, request: list[bytes], keys: tuple[Any, Any]) -> list[bytes]:
        """The encrypted logits, one ciphertext a class.

        Raises:
            PolyboundError: the request is not one of the plan's.
        """
        residues = self._residues(request)
        units = [self._product(self._factors(residues, unit), keys) for unit in range(self.plan.polynomial.rank)]
        return [self._exchange.to_bytes(logit) for logit in self._logits(units, keys)]

    def _residues(self, request: list[bytes]) -> npt.NDArray[np.int64]:
        """The residues of all factors' maps, without constants: (2, primes, degree * rank, ring)."""
        features = self.plan.polynomial.features
        if len(request) != features:
            raise PolyboundError(f"a batch has {features} ciphertexts, one a pixel; this one has {len(request)}")
        form, scale = self._format, 2.0**self.plan.parameters.pixels
        sums = np.zeros((2, len(form.moduli), len(self._weights), form.ring))
        some = np.empty((2, len(form.moduli), _PIXELS, form.ring))
        for first in range(0, features, _PIXELS):
            chosen = request[first : first + _PIXELS]
            for j, content in enumerate(chosen):
                (part,) = split(content, [form.words * 8 + 4096], "the request")
                some[:, :, j] = form.read(part, scale)
            # Exact: the plan keeps the l1 norms of the weights times the moduli below 2^53.
            sums += self._weights[:, first : first + _PIXELS] @ some[:, :, : len(chosen)]
        moduli = np.array(form.moduli)[:, None, None]
        residues: npt.NDArray[np.int64] = sums.astype(np.int64) % moduli
        return residues

    def _factors(self, rows: npt.NDArray[np.int64], unit: int) -> list[Any]:
        """The factors of one unit, constants included."""
        polynomial, p = self.plan.polynomial, self.plan.parameters
        scale, found = 2.0**p.pixels * 2.0**p.weights, []
        for i in range(polynomial.degree):
            content = self._format.write(rows[:, :, i * polynomial.rank + unit].astype(np.uint64), scale)
            factor = self._exchange.load_into(sealapi.Ciphertext(), self._context, content, "a factor")
            self._add_constant(factor, float(polynomial.b[i, unit]))
            found.append(factor)
        return found

    def _product(self, factors: list[Any], keys: tuple[Any, Any]) -> Any:
        """The product of the factors of one unit, as a tree; where a factor is missing, one stands for it."""
        nodes: list[Any] = [*factors, *[None] * (len(tree_groups(len(factors))[0]) - len(factors))]
        for drop in self.plan.parameters.drops:
            half = len(nodes) // 2
            nodes = [self._multiplied(nodes[i], nodes[i + half], drop, keys) for i in range(half)]
        return nodes[0]

    def _multiplied(self, left: Any, right: Any, drop: int, keys: tuple[Any, Any]) -> Any:
        evaluator = self._evaluator
        if right is None:
            evaluator.multiply_plain_inplace(left, self._constant(1.0, left.parms_id(), left.scale))
        else:
            evaluator.multiply_inplace(left, right)
            evaluator.relinearize_inplace(left, keys[0])
        for _ in range(drop):
            evaluator.rescale_to_next_inplace(left)
        return left

    def _logits(self, units: list[Any], keys: tuple[Any, Any]) -> Iterator[Any]:
        polynomial, scale = self.plan.polynomial, 2.0**self.plan.parameters.output
        for row, bias in zip(polynomial.C, polynomial.beta, strict=True):
            # A fresh zero under the client's key hides how the sum was computed.
            total = sealapi.Ciphertext()
            keys[1].encrypt_zero(units[0].parms_id(), total)
            total.scale = units[0].scale * scale
            for value, unit in zip(row, units, strict=True):
                # SEAL refuses products with zero, which tell that they are.
                if abs(value) * scale >= 0.5:
                    product = sealapi.Ciphertext()
                    self._evaluator.multiply_plain(unit, self._constant(float(value), unit.parms_id(), scale), product)
                    self._evaluator.add_inplace(total, product)
            self._add_constant(total, float(bias))
            yield total

    def _add_constant(self, value: Any, constant: float) -> None:
        plain = self._constant(constant, value.parms_id(), value.scale)
        self._evaluator.add_plain_inplace(value, plain)

    def _constant(self, value: float, parms_id: Any, scale: float) -> Any:
        plain = sealapi.Plaintext()
        self._encoder.encode(value, parms_id, scale, plain)
        return plain
