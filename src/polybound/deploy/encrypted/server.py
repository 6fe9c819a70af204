"""The server: it has the network and clients' public keys, and cannot decrypt anything."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from polybound.deploy.encrypted import packing
from polybound.deploy.encrypted.messages import Format, split
from polybound.deploy.encrypted.plan import Plan
from polybound.deploy.encrypted.polynomial import Array
from polybound.deploy.encrypted.seal import CONJUGATION, Exchange, galois_elements, make_context, sealapi
from polybound.errors import PolyboundError

__all__ = ["Keys", "Server"]


@dataclass(frozen=True, eq=False)
class Keys:
    """A client's public keys, loaded and checked.

    Attributes:
        relinearisation: for products.
        rotations: Galois keys, for rotations and the conjugation.
        encryptor: encrypts zeros under the client's public key.
    """

    relinearisation: Any
    rotations: Any
    encryptor: Any


class Server:
    """The network of a plan, ready to be evaluated on ciphertexts; its weights are encoded once.

    Args:
        plan: the plan.

    Attributes:
        key_forms: what a client's keys must be: for products, for rotations, and its public key.
        request_forms: what the ciphertexts of an image must be.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        public = plan.public
        self._context = make_context(public.ring, public.bits)
        self._evaluator = sealapi.Evaluator(self._context)
        self._encoder = sealapi.CKKSEncoder(self._context)
        self.exchange = Exchange()
        form = Format(self._context, self.exchange)
        elements = galois_elements(public.ring, [*plan.layout.steps, CONJUGATION])
        self.key_forms = [form.relinearisation_keys(), form.rotation_keys(elements), form.public_key()]
        one = form.ciphertext(form.primes, 2.0**public.pixels, seeded=True)
        self.request_forms = [one] * plan.layout.uploads
        layout, polynomial, scales = plan.layout, plan.polynomial, plan.parameters
        first = self._context.first_parms_id()
        self._weights = [
            [[self._encode(slots, scales.weights, first) for slots in row] for row in partial]
            for partial in packing.factor_diagonals(layout, polynomial)
        ]
        last = self._parms_id(layout.depth)
        self._output = [
            [self._encode(slots, scales.output, last) for slots in partial]
            for partial in packing.output_diagonals(layout, polynomial)
        ]
        self._constants = packing.constants(layout, polynomial)
        self._biases = packing.output_constants(layout, polynomial)
        self._constant_plain: Any = None
        if not any(_present(self._weights)) or not any(_present(self._output)):
            raise PolyboundError("the network's weights are zero, or too small to count: it is constant")

    @property
    def key_limit(self) -> int:
        """The largest size of a client's keys, in bytes."""
        return sum(form.limit for form in self.key_forms)

    @property
    def request_limit(self) -> int:
        """The largest size of a request, in bytes."""
        return sum(form.limit for form in self.request_forms)

    def load_keys(self, content: bytes) -> Keys:
        """A client's public keys.

        Raises:
            PolyboundError: they are damaged, incomplete or of other parameters.
        """
        what, kinds = "the keys", (sealapi.RelinKeys(), sealapi.GaloisKeys(), sealapi.PublicKey())
        relinearisation, rotations, public = (
            self.exchange.load_into(kind, self._context, form.read(part, what), what)
            for kind, form, part in zip(kinds, self.key_forms, split(content, self.key_forms, what), strict=True)
        )
        return Keys(relinearisation, rotations, sealapi.Encryptor(self._context, public))

    def load_request(self, content: bytes) -> list[Any]:
        """The ciphertexts of an image.

        Raises:
            PolyboundError: they are damaged, or of other parameters than the plan's.
        """
        what, forms = "the request", self.request_forms
        return [
            self.exchange.load_into(sealapi.Ciphertext(), self._context, form.read(part, what), what)
            for form, part in zip(forms, split(content, forms, what), strict=True)
        ]

    def classify(self, request: bytes, keys: Keys) -> bytes:
        """The reply to a request: the encrypted logits.

        Raises:
            PolyboundError: the request is not one of the plan's.
        """
        pixels = self.load_request(request)
        try:
            logits = self.evaluate(pixels, keys)
        except (RuntimeError, ValueError) as error:
            # SEAL refuses results that would not be encrypted, which related ciphertexts can lead to.
            raise PolyboundError(f"the request cannot be evaluated: {error}") from None
        return self.exchange.to_bytes(logits)

    def evaluate(self, pixels: list[Any], keys: Keys) -> Any:
        """The encrypted logits of an image, masked."""
        values = self._products(self._factors(pixels, keys), keys)
        logits = self._logits(values, keys)
        self._mask(logits, keys)
        return logits

    def _factors(self, pixels: list[Any], keys: Keys) -> Any:
        """All factors `W_i x + b_i`, row i M + r in the slots `s = i M + r mod R`."""
        layout, evaluator = self.plan.layout, self._evaluator
        turned = [pixels]
        for _ in range(layout.baby - 1):
            turned.append([self._rotated(one, layout.uploads, keys) for one in turned[-1]])
        total = None
        # Horner's rule: one key serves all giant steps.
        for partial in reversed(self._weights):
            if total is not None:
                evaluator.rotate_vector_inplace(total, layout.uploads * layout.baby, keys.rotations)
            for ciphertexts, row in zip(turned, partial, strict=True):
                total = self._add_products(total, ciphertexts, row)
        self._fold(total, layout.folds, keys)
        mirrored = sealapi.Ciphertext()
        evaluator.complex_conjugate(total, keys.rotations, mirrored)
        evaluator.add_inplace(total, mirrored)
        if self._constant_plain is None:
            self._constant_plain = self._encode_at(self._constants, total)
        evaluator.add_plain_inplace(total, self._constant_plain)
        return total

    def _products(self, values: Any, keys: Keys) -> Any:
        """The product of all factors of each unit, r in the slots `s = r mod M`."""
        for step in self.plan.layout.tree:
            self._evaluator.multiply_inplace(values, self._rotated(values, step, keys))
            self._evaluator.relinearize_inplace(values, keys.relinearisation)
            self._evaluator.rescale_to_next_inplace(values)
        return values

    def _logits(self, values: Any, keys: Keys) -> Any:
        """The logits, that of class o in the slots `s = o mod T`."""
        layout, evaluator = self.plan.layout, self._evaluator
        turned = [values]
        for _ in range(layout.out_baby - 1):
            turned.append(self._rotated(turned[-1], 1, keys))
        total = None
        for partial in reversed(self._output):
            if total is not None:
                evaluator.rotate_vector_inplace(total, layout.out_baby, keys.rotations)
            total = self._add_products(total, turned, partial)
        self._fold(total, layout.out_folds, keys)
        for _ in range(len(self.plan.public.bits) - 2 - layout.depth):
            evaluator.rescale_to_next_inplace(total)
        return total

    def _mask(self, logits: Any, keys: Keys) -> None:
        """Add the output map's constants, random values to all slots but one of each class, and a fresh zero.

        The slots hold whole logits only, no partial sums. The random values hide their copies, whose errors differ; the
        zero, encrypted under the client's public key, hides how the ciphertext was computed.
        """
        layout = self.plan.layout
        # A coefficient is at most the mean of all slots: the logits' own, and of the random values some hundredths.
        reach = float(self.plan.ranges.logits.max())
        # The client sees these numbers, so they come from the system's generator, which cannot be predicted.
        words = np.frombuffer(secrets.token_bytes(8 * layout.slots), np.uint64)
        slots = (words / 2.0**63 - 1) * reach
        used = slice(layout.first, layout.first + layout.classes)
        slots[used] = self._biases[used]
        self._evaluator.add_plain_inplace(logits, self._encode_at(slots, logits))
        zero = sealapi.Ciphertext()
        keys.encryptor.encrypt_zero(logits.parms_id(), zero)
        zero.scale = logits.scale
        self._evaluator.add_inplace(logits, zero)

    def _add_products(self, total: Any, ciphertexts: list[Any], weights: list[Any]) -> Any:
        for ciphertext, weight in zip(ciphertexts, weights, strict=True):
            if weight is None:
                continue
            product = sealapi.Ciphertext()
            self._evaluator.multiply_plain(ciphertext, weight, product)
            if total is None:
                total = product
            else:
                self._evaluator.add_inplace(total, product)
        return total

    def _fold(self, values: Any, steps: list[int], keys: Keys) -> None:
        for step in steps:
            self._evaluator.add_inplace(values, self._rotated(values, step, keys))

    def _rotated(self, values: Any, step: int, keys: Keys) -> Any:
        turned = sealapi.Ciphertext()
        self._evaluator.rotate_vector(values, step, keys.rotations, turned)
        return turned

    def _encode(self, slots: Any, scale: float, parms_id: Any) -> Any:
        plain = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), parms_id, 2.0**scale, plain)
        return None if plain.is_zero() else plain

    def _encode_at(self, slots: Array, like: Any) -> Any:
        plain = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), like.parms_id(), like.scale, plain)
        return plain

    def _parms_id(self, dropped: int) -> Any:
        """The parameters after so many primes have been dropped."""
        data = self._context.first_context_data()
        for _ in range(dropped):
            data = data.next_context_data()
        return data.parms_id()


def _present(weights: Any) -> Iterator[Any]:
    """Whether there is a plaintext, for every place of nested lists."""
    for one in weights:
        if isinstance(one, list):
            yield from _present(one)
        else:
            yield one is not None
