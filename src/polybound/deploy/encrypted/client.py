"""The client, which alone has the secret key, and the same over HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Event, Thread
from time import perf_counter
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np

from polybound.deploy.encrypted.chain.polynomial import Array
from polybound.deploy.encrypted.plan import PLAN_HEADER, PublicPlan
from polybound.deploy.encrypted.seal import Form, Scheme, sealapi
from polybound.errors import PolyboundError


class SecretKey:
    """A secret key, which never leaves this object: what it encrypts and decrypts.

    Args:
        ring: dimension N.
        bits: sizes of the primes in bits, the special prime last.
        domain: the smallest and the largest value of a pixel.

    Attributes:
        scheme: SEAL with these parameters.
    """

    def __init__(self, ring: int, bits: Sequence[int], domain: tuple[float, float]) -> None:
        self.scheme = Scheme(ring, bits)
        self._domain = domain
        self._generator = sealapi.KeyGenerator(self.scheme.context)
        self._encryptor = sealapi.Encryptor(self.scheme.context, self._generator.secret_key())
        self._decryptor = sealapi.Decryptor(self.scheme.context, self._generator.secret_key())

    def public_keys(self, elements: Sequence[int] = ()) -> bytes:
        """The public keys that a server needs: for products, for these Galois elements, and to encrypt zeros."""
        found = [self._generator.create_relin_keys()]
        if elements:
            found.append(self._generator.create_galois_keys(elements))
        public = sealapi.PublicKey()
        self._generator.create_public_key(public)
        return b"".join([self.scheme.to_bytes(key) for key in (*found, public)])

    def pixels(self, values: Array) -> Array:
        """The pixels, cut to the domain where they are outside by rounding only.

        Raises:
            PolyboundError: they are further outside, or no numbers.
        """
        low, high = self._domain
        # Not below: NaN is outside as well.
        if not ((values >= low - 1e-6) & (values <= high + 1e-6)).all():
            raise PolyboundError(f"pixels must lie between {low:g} and {high:g}")
        return np.clip(values, low, high)

    def encrypt(self, slots: Any, scale: float, *, seeded: bool) -> bytes:
        """A ciphertext in SEAL's format; seeded, its second half is a seed, and it is half as large.

        Raises:
            PolyboundError: the scale has no room for the values.
        """
        try:
            plain = self.scheme.plain(slots, scale)
        except (RuntimeError, ValueError) as error:
            raise PolyboundError(f"the plan's scale has no room for its domain ({error})") from None
        if seeded:
            return self.scheme.to_bytes(self._encryptor.encrypt_symmetric(plain))
        result = sealapi.Ciphertext()
        self._encryptor.encrypt_symmetric(plain, result)
        return self.scheme.to_bytes(result)

    def decrypt(self, reply: bytes, form: Form) -> Array:
        """The slots of a ciphertext of this form.

        Raises:
            PolyboundError: it is damaged, or of other parameters.
        """
        result = self.scheme.load(sealapi.Ciphertext(), form.read(reply, "the reply"), "the reply")
        plain = sealapi.Plaintext()
        self._decryptor.decrypt(result, plain)
        return np.asarray(self.scheme.encoder.decode_double(plain))


class Client:
    """One secret key for one plan.

    Args:
        plan: what the server published.

    Attributes:
        plan: the plan.
        key: the secret key.
        reply: what a reply must be.
    """

    def __init__(self, plan: PublicPlan) -> None:
        self.plan = plan
        self.key = SecretKey(plan.ring, plan.bits, plan.domain)
        # The server drops all primes but one.
        self.reply = self.key.scheme.ciphertext(1, None, seeded=False)

    def keys(self) -> bytes:
        """The public keys that a server needs: for products, for rotations, and to encrypt zeros. Sent once."""
        return self.key.public_keys(self.key.scheme.rotations(self.plan.steps))

    def encrypt(self, image: Any) -> bytes:
        """A request for one image of the plan's shape, its entries within the plan's domain.

        Raises:
            PolyboundError: it is something else.
        """
        values = np.asarray(image, dtype=np.float64)
        if values.size != self.plan.features:
            raise PolyboundError(f"an image must have shape {self.plan.shape}, got {values.shape}")
        pixels, scale = self.key.pixels(values.ravel()), 2.0**self.plan.pixels
        return b"".join([self.key.encrypt(slots, scale, seeded=True) for slots in self.plan.pack(pixels)])

    def decrypt(self, reply: bytes) -> Array:
        """The logits (classes,) of a reply.

        Raises:
            PolyboundError: the reply is damaged, or of other parameters.
        """
        return self.plan.logits(self.key.decrypt(reply, self.reply))


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
        self._kind = kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        try:
            self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        except ValueError as error:
            raise PolyboundError(f"{url}: {error}") from None
        self.key_bytes = 0
        self._keys = ""
        try:
            self.plan = PublicPlan.from_json(self._ask("GET", "/plan", b"", _PLAN_LIMIT)[1])
            self.client = Client(self.plan)
            # Further answers may take as long as an evaluation does.
            self._connection.timeout = max(timeout, 60.0 + 30.0 * self.plan.seconds)
            if self._connection.sock is not None:
                self._connection.sock.settimeout(self._connection.timeout)
        except PolyboundError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def classify(self, image: Any, done: Callable[[int], None] | None = None) -> Answer:
        """The answer for one image of the plan's shape and domain.

        Args:
            image: the image.
            done: is called with the number of the plan's blocks that are computed, about twice a second.
        """
        start = perf_counter()
        request = self.client.encrypt(image)
        if not self._keys:
            self._send_keys()
        limit = self.client.reply.limit
        with self._watched(done):
            status, reply = self._ask("POST", f"/classify/{self._keys}", request, limit, may_forget=True)
        if status == 404:
            self._send_keys()
            with self._watched(done):
                _, reply = self._ask("POST", f"/classify/{self._keys}", request, limit)
        logits = self.client.decrypt(reply)
        name = self.plan.class_names[int(logits.argmax())]
        return Answer(logits, name, len(request), len(reply), perf_counter() - start)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def _watched(self, done: Callable[[int], None] | None) -> Iterator[None]:
        """Ask for the progress meanwhile, over a connection of its own; an answer that is late or wrong is left out."""
        if done is None or self.plan.blocks < 2:
            yield
            return
        ended, parts = Event(), urlsplit(self._url)

        def watch() -> None:
            while not ended.wait(0.5):
                other = self._kind(parts.hostname or "", parts.port, timeout=5.0)
                with suppress(OSError, HTTPException, ValueError, KeyError, TypeError):
                    other.request("GET", f"{self._base}/progress/{self._keys}")
                    done(min(self.plan.blocks, int(json.loads(other.getresponse().read(1000))["done"])))
                other.close()

        thread = Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

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
            try:
                # The server's own words, shortened, and without what a terminal would take for commands.
                why = "".join(c for c in str(json.loads(content)["error"])[:300] if c.isprintable())
            except (ValueError, KeyError, TypeError, RecursionError):
                why = "no reason given"
            raise PolyboundError(f"{self._url}: {response.status}, {why}")
        return response.status, content
