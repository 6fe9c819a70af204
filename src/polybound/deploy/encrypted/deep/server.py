"""The server of a graph: it has the network and clients' public keys, and cannot decrypt anything."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from polybound.deploy.encrypted.deep.ciphertexts import Ciphertexts
from polybound.deploy.encrypted.deep.execute import Evaluation
from polybound.deploy.encrypted.deep.plan import GraphPlan
from polybound.deploy.encrypted.seal import Keys, Scheme, sealapi
from polybound.errors import PolyboundError


class GraphServer:
    """The network of a plan, ready to be evaluated on ciphertexts; its weights are encoded once.

    Args:
        plan: the plan.
        done: is called with the number of values whose weights are encoded.

    Attributes:
        scheme: SEAL with the plan's parameters.
        key_forms: what a client's keys must be: for products, for rotations, and its public key.
        request_forms: what the ciphertexts of an image must be.
    """

    def __init__(self, plan: GraphPlan, done: Callable[[int], None] = lambda _: None) -> None:
        self.plan = plan
        self.scheme = scheme = Scheme(plan.ring, plan.bits)
        self.key_forms = scheme.key_forms(scheme.rotations(plan.steps))
        one = scheme.ciphertext(scheme.primes, 2.0**plan.pixels, seeded=True)
        self.request_forms = [one] * (1 << len(plan.high))
        levels = plan.chain.levels(scheme.moduli)
        self._evaluation = Evaluation(plan.circuit, levels, Ciphertexts(scheme), done)

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
            done: is called with the number of values that are computed; an error that it raises ends the evaluation.

        Raises:
            PolyboundError: the request is damaged, or of other parameters than the plan's.
        """
        kinds = [sealapi.Ciphertext() for _ in self.request_forms]
        pixels = self.scheme.load_all(kinds, self.request_forms, request, "the request")
        try:
            logits = self._evaluation(Ciphertexts(self.scheme, keys), pixels, done)[0]
            return self.scheme.to_bytes(self._masked(logits, keys))
        except (RuntimeError, ValueError) as error:
            # SEAL refuses results that would not be encrypted, which related ciphertexts can lead to.
            raise PolyboundError(f"the request cannot be evaluated: {error}") from None

    def _masked(self, logits: Any, keys: Keys) -> Any:
        """The logits alone: random values in all other slots, and a fresh zero under the client's public key.

        The zero hides how the ciphertext was computed, the random values what the other slots hold: copies of the
        logits, whose errors differ.
        """
        engine, plan = Ciphertexts(self.scheme, keys), self.plan
        # The client sees these numbers, so they come from the system's generator, which cannot be predicted.
        words = np.frombuffer(secrets.token_bytes(8 * (plan.ring // 2)), np.uint64)
        slots = (words / 2.0**63 - 1) * plan.ranges.forms[-1][0]
        slots[list(plan.places)] = 0.0
        if logits is None:
            logits = engine.nothing(1, 2.0**plan.chain.output)
        masked = engine.shift(logits, slots)
        return engine.add(masked, engine.nothing(1, masked.scale))
