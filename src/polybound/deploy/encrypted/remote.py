"""A client of a server over HTTP: fetches the plan and checks it, sends the keys once, classifies images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import perf_counter
from typing import Any, Self
from urllib.parse import urlsplit

from polybound.deploy.encrypted.client import Client
from polybound.deploy.encrypted.polynomial import Array
from polybound.deploy.encrypted.public import PLAN_HEADER, PublicPlan
from polybound.errors import PolyboundError

__all__ = ["Answer", "RemoteClassifier"]

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

    def classify_all(self, images: Iterable[Any]) -> list[Answer]:
        """The answers for several images, one after the other."""
        return [self.classify(image) for image in images]

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
