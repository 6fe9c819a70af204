"""The client, which alone has the secret key, and the same over HTTP."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import perf_counter
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np

from polybound.deploy.encrypted.messages import Format
from polybound.deploy.encrypted.packing import pack
from polybound.deploy.encrypted.plan import PLAN_HEADER, PublicPlan
from polybound.deploy.encrypted.polynomial import Array
from polybound.deploy.encrypted.seal import CONJUGATION, Exchange, galois_elements, make_context, sealapi
from polybound.errors import PolyboundError

__all__ = ["Answer", "Client", "RemoteClassifier", "within"]


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


# A client of a server over HTTP: fetches the plan and checks it, sends the keys once, classifies images.


_PLAN_LIMIT = 2**20


@dataclass(frozen=True, eq=False)
class Answer:
    """What came back for one image.

    Attributes:
        logits: (classes,).
        name: the name of the largest.
        sent: size of the request in bytes.
        received: size of the reply in bytes.
        seconds: from the image to its logits.
    """

    logits: Array
    name: str
    sent: int
    received: int
    seconds: float


class RemoteClassifier:
    """A client with a secret key of its own, connected to a server; `with` closes the connection.

    Args:
        url: `http://127.0.0.1:8731`; https where something in front of the server speaks it.
        timeout: seconds to wait for an answer.

    Attributes:
        plan: the server's plan, checked.
        client: the client that holds the secret key.
        key_bytes: size of the public keys that were sent.
    """

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PolyboundError(f"the server's address must look like http://127.0.0.1:8731, got {url!r}")
        self._url, self._base = url, parts.path.rstrip("/")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        try:
            self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        except ValueError as error:
            raise PolyboundError(f"{url}: {error}") from None
        self.key_bytes = 0
        self._keys = ""
        try:
            self.plan = PublicPlan.from_json(self._ask("GET", "/plan", b"", _PLAN_LIMIT)[1])
            self.client = Client(self.plan)
        except PolyboundError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def classify(self, image: Any) -> Answer:
        """The answer for one image of the plan's shape and domain."""
        start = perf_counter()
        request = self.client.encrypt(image)
        if not self._keys:
            self._send_keys()
        limit = self.client.reply_limit
        status, reply = self._ask("POST", f"/classify/{self._keys}", request, limit, may_forget=True)
        if status == 404:
            self._send_keys()
            _, reply = self._ask("POST", f"/classify/{self._keys}", request, limit)
        logits = self.client.decrypt(reply)
        name = self.plan.class_names[int(logits.argmax())]
        return Answer(logits, name, len(request), len(reply), perf_counter() - start)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _send_keys(self) -> None:
        keys = self.client.keys()
        self._ask("POST", "/keys", keys, _PLAN_LIMIT)
        self.key_bytes, self._keys = len(keys), hashlib.sha256(keys).hexdigest()

    def _ask(self, method: str, path: str, body: bytes, limit: int, may_forget: bool = False) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/octet-stream"}
        if method == "POST":
            headers[PLAN_HEADER] = self.plan.digest
        while True:
            open_before = self._connection.sock is not None
            try:
                try:
                    self._connection.request(method, self._base + path, body or None, headers)
                except (BrokenPipeError, ConnectionResetError):
                    if self._connection.sock is None:
                        raise
                    # A server that refuses the headers may answer before it has read the body.
                response = self._connection.getresponse()
                content = response.read(limit + 1)
                break
            except (OSError, HTTPException) as error:
                self._connection.close()
                # Servers close connections that are idle; a new one is tried, once.
                if not (open_before and isinstance(error, ConnectionError)):
                    raise PolyboundError(f"{self._url}: no answer ({error or type(error).__name__})") from None
        if len(content) > limit:
            self._connection.close()
            raise PolyboundError(f"{self._url}: the answer is larger than {limit} bytes")
        if response.status >= 400 and not (may_forget and response.status == 404):
            raise PolyboundError(f"{self._url}: {response.status}, {_reason(content)}")
        return response.status, content


def _reason(content: bytes) -> str:
    """The server's own words, shortened, and without what a terminal would take for commands."""
    try:
        return "".join(c for c in str(json.loads(content)["error"])[:300] if c.isprintable())
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no reason given"
