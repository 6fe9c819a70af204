"""The client: it alone has the secret key. It makes keys, packs and encrypts images, decrypts logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from polybound.deploy.encrypted.messages import Format
from polybound.deploy.encrypted.packing import pack
from polybound.deploy.encrypted.polynomial import Array
from polybound.deploy.encrypted.public import PublicPlan
from polybound.deploy.encrypted.seal import CONJUGATION, Exchange, galois_elements, make_context, sealapi
from polybound.errors import PolyboundError

__all__ = ["Client", "within"]


def within(pixels: Array, domain: tuple[float, float]) -> Array:
    """The pixels, cut to the domain where they are outside by rounding only.

    Raises:
        PolyboundError: they are further outside, or no numbers.
    """
    low, high = domain
    # Not below: NaN is outside as well.
    if not ((pixels >= low - 1e-6) & (pixels <= high + 1e-6)).all():
        raise PolyboundError(f"pixels must lie between {low:g} and {high:g}")
    return np.clip(pixels, low, high)


class Client:
    """One secret key for one plan.

    Args:
        plan: what the server published; it is checked again here.

    Attributes:
        plan: the plan.
    """

    def __init__(self, plan: PublicPlan) -> None:
        plan.check()
        self.plan = plan
        self._context = make_context(plan.ring, plan.bits)
        self._generator = sealapi.KeyGenerator(self._context)
        self._encryptor = sealapi.Encryptor(self._context, self._generator.secret_key())
        self._decryptor = sealapi.Decryptor(self._context, self._generator.secret_key())
        self._encoder = sealapi.CKKSEncoder(self._context)
        self._exchange = Exchange()
        # The server drops all primes but one.
        self._reply = Format(self._context, self._exchange).ciphertext(1, None, seeded=False)

    @property
    def reply_limit(self) -> int:
        """The largest size of a reply, in bytes."""
        return self._reply.limit

    def keys(self) -> bytes:
        """The public keys that a server needs: for products, for rotations, and to encrypt zeros. Sent once."""
        elements = galois_elements(self.plan.ring, [*self.plan.layout.steps, CONJUGATION])
        public = sealapi.PublicKey()
        self._generator.create_public_key(public)
        found = [self._generator.create_relin_keys(), self._generator.create_galois_keys(elements), public]
        return b"".join([self._exchange.to_bytes(key) for key in found])

    def encrypt(self, image: Any) -> bytes:
        """A request for one image of the plan's shape, its entries within the plan's domain.

        Raises:
            PolyboundError: it is something else.
        """
        pixels = self.pixels(image)
        return b"".join([self._exchange.to_bytes(self._encrypt(slots)) for slots in pack(self.plan.layout, pixels)])

    def pixels(self, image: Any) -> Array:
        """The pixels of an image as a flat array, checked."""
        values = np.asarray(image, dtype=np.float64)
        if values.size != self.plan.layout.features:
            raise PolyboundError(f"an image of shape {self.plan.shape} is wanted, got {values.shape}")
        return within(values.ravel(), self.plan.domain)

    def decrypt(self, reply: bytes) -> Array:
        """The logits (classes,) of a reply.

        Raises:
            PolyboundError: the reply is damaged, or of other parameters.
        """
        what = "the reply"
        result = self._exchange.load_into(sealapi.Ciphertext(), self._context, self._reply.read(reply, what), what)
        plain = sealapi.Plaintext()
        self._decryptor.decrypt(result, plain)
        first, classes = self.plan.layout.first, self.plan.layout.classes
        logits: Array = np.array(self._encoder.decode_double(plain)[first : first + classes])
        return logits

    def _encrypt(self, slots: Any) -> Any:
        plain = sealapi.Plaintext()
        try:
            self._encoder.encode(slots.tolist(), 2.0**self.plan.pixels, plain)
        except (RuntimeError, ValueError) as error:
            raise PolyboundError(f"the plan's scale has no room for its domain ({error})") from None
        # Symmetric and serializable: the second half is a seed, and the ciphertext half as large.
        return self._encryptor.encrypt_symmetric(plain)
