"""The server: it has the network and clients' public keys, and cannot decrypt anything."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polybound.deploy.encrypted.chain.plan import plan_chain
from polybound.deploy.encrypted.chain.polynomial import Array, Polynomial, check_finite, is_one_product
from polybound.deploy.encrypted.engine import Engine
from polybound.deploy.encrypted.graph.plan import plan_graph
from polybound.deploy.encrypted.plan import Done, Plan
from polybound.deploy.encrypted.seal import Keys, Scheme, sealapi
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork


def plan_encryption(
    model: PolynomialNetwork | Polynomial,
    domain: tuple[float, float] = (-1.0, 1.0),
    class_names: Sequence[str] | None = None,
    tolerance: float = 1.0,
    uploads: int = 2,
    images: Array | None = None,
) -> Plan:
    """The fastest plan whose error is within the tolerance, at 128-bit security.

    CCPs of degree up to 8 and NCPs of degree 2 have a plan for the whole domain; all other networks one for their
    graph (see `plan_graph`), which states what its ranges and its error rest on.

    Args:
        model: any polynomial network.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class; numbers by default.
        tolerance: the largest error of a logit that is accepted.
        uploads: the number of ciphertexts of one image of a chain; more take less of the server's time.
        images: (images, ...), at which the errors of a graph are estimated; by default random ones of the domain.

    Raises:
        PolyboundError: the model does not fit; the message names the value that is too large, and the bound of the
            rows' l1 norms that would make it fit.
    """
    if isinstance(model, Polynomial) or is_one_product(model):
        return plan_chain(model, domain, class_names, tolerance, uploads)
    flat = None if images is None else np.asarray(images, dtype=np.float64).reshape(len(images), -1)
    return plan_graph(model.graph(), check_finite(domain), class_names, tolerance, flat)


class Server:
    """A network on ciphertexts: checks what clients send, evaluates, and masks what it replies.

    Args:
        plan: the plan; its weights are encoded once.
        encoded: is called with the number of blocks whose weights are encoded.

    Attributes:
        scheme: SEAL with the plan's parameters.
        key_forms: what a client's keys must be: for products, for rotations, and its public key.
        request_forms: what the ciphertexts of an image must be.
    """

    def __init__(self, plan: Plan, encoded: Done = lambda _: None) -> None:
        self.plan, self.scheme = plan, Scheme(plan.ring, plan.bits)
        self.key_forms = self.scheme.key_forms(self.scheme.rotations(plan.steps))
        form = self.scheme.ciphertext(self.scheme.primes, 2.0**plan.pixels, seeded=True)
        self.request_forms = [form] * plan.packing.count
        self._evaluation = plan.evaluation(Engine(self.scheme), encoded)

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
        engine = Engine(self.scheme, keys)
        try:
            [logits] = self._evaluation(engine, pixels, done)
            return self.scheme.to_bytes(self._masked(logits, engine))
        except (RuntimeError, ValueError) as error:
            # SEAL refuses results that would not be encrypted, which related ciphertexts can lead to.
            raise PolyboundError(f"the request cannot be evaluated: {error}") from None

    def _masked(self, logits: Any, engine: Engine) -> Any:
        """The logits alone: random values in all other slots, and a fresh zero under the client's public key.

        The slots hold whole logits only, no partial sums. The random values hide their copies, whose errors differ; the
        zero hides how the ciphertext was computed.
        """
        # A coefficient is at most the mean of all slots: the logits' own, and of the random values some hundredths.
        # The client sees these numbers, so they come from the system's generator, which cannot be predicted.
        words = np.frombuffer(secrets.token_bytes(4 * self.plan.ring), np.uint64)
        slots = (words / 2.0**63 - 1) * self.plan.reach
        slots[list(self.plan.places)] = self.plan.constants
        return engine.add(engine.shift(logits, slots), engine.nothing(1, logits.scale))
