"""The server: it has the network and clients' public keys, and cannot decrypt anything."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polybound.deploy.encrypted import packing
from polybound.deploy.encrypted.deep.plan import GraphPublicPlan
from polybound.deploy.encrypted.plan import Plan, PublicPlan
from polybound.deploy.encrypted.polynomial import Array
from polybound.deploy.encrypted.seal import Keys, Scheme, sealapi
from polybound.errors import PolyboundError


class NetworkServer(ABC):
    """A network on ciphertexts: checks what clients send, evaluates, and masks what it replies.

    Args:
        plan: the plan.
        uploads: the number of ciphertexts of an image.
        reach: how large logits can be.
        places: the slots of the logits.

    Attributes:
        scheme: SEAL with the plan's parameters.
        key_forms: what a client's keys must be: for products, for rotations, and its public key.
        request_forms: what the ciphertexts of an image must be.
    """

    def __init__(self, plan: PublicPlan | GraphPublicPlan, uploads: int, reach: float, places: Sequence[int]) -> None:
        self.scheme = scheme = Scheme(plan.ring, plan.bits)
        self.key_forms = scheme.key_forms(scheme.rotations(plan.steps))
        self.request_forms = [scheme.ciphertext(scheme.primes, 2.0**plan.pixels, seeded=True)] * uploads
        self._evaluator = sealapi.Evaluator(scheme.context)
        self._reach, self._places, self._slots = reach, list(places), plan.ring // 2

    def load_keys(self, content: bytes) -> Keys:
        """A client's public keys.

        Raises:
            PolyboundError: they are damaged, incomplete or of other parameters.
        """
        return self.scheme.load_keys(content, self.key_forms)

    def classify(self, request: bytes, keys: Keys, done: Callable[[int], None] = lambda _: None) -> bytes:
        """The reply to a request: the encrypted logits, masked.

        Args:
            request: the ciphertexts of an image.
            keys: the client's keys.
            done: is called with the number of blocks that are computed; an error that it raises ends the evaluation.

        Raises:
            PolyboundError: the request is damaged, or of other parameters than the plan's.
        """
        kinds = [sealapi.Ciphertext() for _ in self.request_forms]
        pixels = self.scheme.load_all(kinds, self.request_forms, request, "the request")
        try:
            logits, constants = self._logits(pixels, keys, done)
            return self.scheme.to_bytes(self._masked(logits, constants, keys))
        except (RuntimeError, ValueError) as error:
            # SEAL refuses results that would not be encrypted, which related ciphertexts can lead to.
            raise PolyboundError(f"the request cannot be evaluated: {error}") from None

    @abstractmethod
    def _logits(self, pixels: list[Any], keys: Keys, done: Callable[[int], None]) -> tuple[Any, Array | float]:
        """The encrypted logits of an image, and what has yet to be added to them."""

    def _masked(self, logits: Any, constants: Array | float, keys: Keys) -> Any:
        """The logits alone: random values in all other slots, and a fresh zero under the client's public key.

        The slots hold whole logits only, no partial sums. The random values hide their copies, whose errors differ; the
        zero hides how the ciphertext was computed.
        """
        # A coefficient is at most the mean of all slots: the logits' own, and of the random values some hundredths.
        # The client sees these numbers, so they come from the system's generator, which cannot be predicted.
        words = np.frombuffer(secrets.token_bytes(8 * self._slots), np.uint64)
        slots = (words / 2.0**63 - 1) * self._reach
        slots[self._places] = constants
        self._evaluator.add_plain_inplace(logits, self.scheme.plain(slots, logits.scale, logits.parms_id()))
        zero = sealapi.Ciphertext()
        keys.encryptor.encrypt_zero(logits.parms_id(), zero)
        zero.scale = logits.scale
        self._evaluator.add_inplace(logits, zero)
        return logits


class Server(NetworkServer):
    """The network of a chain's plan, ready to be evaluated on ciphertexts; its weights are encoded once.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan) -> None:
        layout, polynomial = plan.layout, plan.polynomial
        self._used = slice(layout.first, layout.first + layout.classes)
        places = range(layout.slots)[self._used]
        super().__init__(plan, layout.uploads, float(plan.ranges.logits.max()), places)
        self.plan, scheme = plan, self.scheme

        def encoded(slots: Any, scale: float, parms_id: Any) -> Any:
            plain = scheme.plain(slots, 2.0**scale, parms_id)
            return None if plain.is_zero() else plain

        level = scheme.context.first_context_data()
        self._weights = [
            [[encoded(slots, plan.weights, level.parms_id()) for slots in row] for row in partial]
            for partial in packing.factor_diagonals(layout, polynomial)
        ]
        for _ in range(layout.depth):
            level = level.next_context_data()
        self._output = [
            [encoded(slots, plan.output, level.parms_id()) for slots in partial]
            for partial in packing.output_diagonals(layout, polynomial)
        ]
        self._constants = packing.constants(layout, polynomial)
        self._biases = packing.output_constants(layout, polynomial)
        self._constant_plain: Any = None
        weights = [plain for partial in self._weights for row in partial for plain in row]
        output = [plain for partial in self._output for plain in partial]
        if any(all(plain is None for plain in plains) for plains in (weights, output)):
            raise PolyboundError("the network's weights are zero, or too small to count: it is constant")

    def _logits(self, pixels: list[Any], keys: Keys, done: Callable[[int], None]) -> tuple[Any, Array]:
        layout, evaluator, scheme = self.plan.layout, self._evaluator, self.scheme

        # All factors `W_i x + b_i`, row i M + r in the slots `s = i M + r mod R`.
        turned: list[Any] = [pixels]
        for _ in range(layout.baby - 1):
            turned.append([self._rotated(one, layout.uploads, keys) for one in turned[-1]])
        values: Any = None
        # Horner's rule: one key serves all giant steps.
        for partial in reversed(self._weights):
            if values is not None:
                evaluator.rotate_vector_inplace(values, layout.uploads * layout.baby, keys.rotations)
            for ciphertexts, row in zip(turned, partial, strict=True):
                values = self._add_products(values, ciphertexts, row)
        self._fold(values, layout.folds, keys)
        mirrored = sealapi.Ciphertext()
        evaluator.complex_conjugate(values, keys.rotations, mirrored)
        evaluator.add_inplace(values, mirrored)
        if self._constant_plain is None:
            self._constant_plain = scheme.plain(self._constants, values.scale, values.parms_id())
        evaluator.add_plain_inplace(values, self._constant_plain)

        # The product of all factors of each unit, r in the slots `s = r mod M`.
        for step in layout.tree:
            evaluator.multiply_inplace(values, self._rotated(values, step, keys))
            evaluator.relinearize_inplace(values, keys.relinearisation)
            evaluator.rescale_to_next_inplace(values)

        # The logits, that of class o in the slots `s = o mod T`.
        turned = [values]
        for _ in range(layout.out_baby - 1):
            turned.append(self._rotated(turned[-1], 1, keys))
        logits: Any = None
        for partial in reversed(self._output):
            if logits is not None:
                evaluator.rotate_vector_inplace(logits, layout.out_baby, keys.rotations)
            logits = self._add_products(logits, turned, partial)
        self._fold(logits, layout.out_folds, keys)
        for _ in range(len(self.plan.bits) - 2 - layout.depth):
            evaluator.rescale_to_next_inplace(logits)

        done(1)
        return logits, self._biases[self._used]

    def _add_products(self, total: Any, ciphertexts: list[Any], weights: list[Any]) -> Any:
        """The total, None if there is none yet, plus ciphertexts times weights; a weight None is zero."""
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
