"""The server over HTTP (tornado), on the loopback by default.

    GET  /plan                 the public plan, JSON
    POST /keys                 a client's public keys, once; answers with their digest
    POST /classify/DIGEST      an encrypted image; answers with the encrypted logits

The header `Polybound-Plan` of a POST names the digest of the plan that it is for. Errors are JSON, `{"error": "..."}`:
400 for what cannot be read, 404 for keys that are not known (any more), 409 for another plan, 411 and 413 for sizes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from polybound.deploy.encrypted.plan import Plan
from polybound.deploy.encrypted.public import PLAN_HEADER
from polybound.deploy.encrypted.server import Keys, Server
from polybound.errors import PolyboundError

__all__ = ["Service", "serve"]


class Service:
    """A server and the keys of its clients, of which it keeps the last so many.

    Args:
        plan: the plan of the network.
        clients: how many clients' keys are kept; the one that was used least recently goes first.
    """

    def __init__(self, plan: Plan, clients: int = 16) -> None:
        self.server = Server(plan)
        self.public = plan.public
        self.clients = clients
        self._keys: OrderedDict[str, Keys] = OrderedDict()

    def add_keys(self, content: bytes) -> str:
        """Keep a client's keys; their digest, by which requests name them."""
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._keys:
            self._keys[digest] = self.server.load_keys(content)
        self._keys.move_to_end(digest)
        while len(self._keys) > self.clients:
            self._keys.popitem(last=False)
        return digest

    def keys(self, digest: str) -> Keys | None:
        """The keys of that digest, if they are known."""
        if digest in self._keys:
            self._keys.move_to_end(digest)
        return self._keys.get(digest)


class _Handler(RequestHandler):
    """Errors as JSON."""

    def initialize(self, service: Service) -> None:
        self.service = service

    def write_error(self, status_code: int, **kwargs: Any) -> None:  # noqa: ARG002
        error = kwargs.get("exc_info", (None, None, None))[1]
        # Tornado keeps messages as format strings.
        reason = (error.log_message or "").replace("%%", "%") if isinstance(error, HTTPError) else ""
        self.finish(json.dumps({"error": reason or self._reason}))

    def log_exception(self, *error: Any) -> None:
        """Refusals are told to the client; only what is a fault of this program is logged."""
        if not isinstance(error[1], HTTPError):
            super().log_exception(*error)

    def set_default_headers(self) -> None:
        self.set_header("Server", "polybound")
        self.set_header("Content-Type", "application/json")


class _Plan(_Handler):
    def get(self) -> None:
        self.finish(self.service.public.to_json())


@stream_request_body
class _Upload(_Handler):
    """A body of limited size, for the plan of this server."""

    def initialize(self, service: Service) -> None:
        super().initialize(service)
        self.body = bytearray()

    def prepare(self) -> None:
        length = self.request.headers.get("Content-Length", "")
        if not length.isdigit():
            raise HTTPError(411, "a Content-Length is needed")
        if int(length) > self.size_limit():
            raise HTTPError(413, f"{length} bytes are more than the {self.size_limit()} of this plan")

    def size_limit(self) -> int:
        """The largest body, in bytes."""
        raise NotImplementedError

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk
        if len(self.body) > self.size_limit():
            raise HTTPError(413, "the body is too large")

    def checked(self, work: Callable[[bytes], Any]) -> Any:
        """What `work` makes of the body, if it is for this plan.

        That is looked at after the body has been read: a client that is still sending would not see the answer.
        """
        content = bytes(self.body)
        self.body.clear()
        if self.request.headers.get(PLAN_HEADER) != self.service.public.digest:
            raise HTTPError(409, f"the request is for another plan than this server's, or names none in {PLAN_HEADER}")
        try:
            return work(content)
        except PolyboundError as error:
            raise HTTPError(400, str(error)) from None


class _Keys(_Upload):
    def size_limit(self) -> int:
        return sum(self.service.server.key_limits)

    def post(self) -> None:
        digest = self.checked(self.service.add_keys)
        self.set_status(201)
        self.finish(json.dumps({"keys": digest}))


class _Classify(_Upload):
    def size_limit(self) -> int:
        return sum(self.service.server.request_limits)

    def post(self, digest: str) -> None:
        reply = self.checked(lambda content: self._classify(content, digest))
        self.set_header("Content-Type", "application/octet-stream")
        self.finish(reply)

    def _classify(self, content: bytes, digest: str) -> bytes:
        keys = self.service.keys(digest)
        if keys is None:
            raise HTTPError(404, "these keys are not known here, or not any more: send them again")
        return self.service.server.classify(content, keys)


class _Nothing(_Handler):
    def prepare(self) -> None:
        raise HTTPError(404, "there is /plan, /keys and /classify/DIGEST")


def _application(service: Service) -> Application:
    given = {"service": service}
    routes: list[Any] = [
        (r"/plan", _Plan, given),
        (r"/keys", _Keys, given),
        (r"/classify/([0-9a-f]{64})", _Classify, given),
    ]
    return Application(routes, default_handler_class=_Nothing, default_handler_args=given, log_function=lambda _: None)


def serve(
    plan: Plan,
    port: int = 0,
    host: str = "127.0.0.1",
    clients: int = 16,
    ready: Callable[[int], None] = lambda _: None,
) -> None:
    """Answer requests until the process is interrupted or told to end.

    Args:
        plan: the plan of the network.
        port: 0 takes a free one.
        host: the address to listen on.
        clients: how many clients' keys are kept.
        ready: is called with the port once the server listens.
    """
    service = Service(plan, clients)

    async def run() -> None:
        # Bodies are read piece by piece, and limited by what they are for.
        server = HTTPServer(_application(service), max_body_size=2**40, idle_connection_timeout=300, body_timeout=300)
        sockets = bind_sockets(port, host)
        server.add_sockets(sockets)
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not everywhere, and in the main thread only.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        ready(sockets[0].getsockname()[1])
        await stopped.wait()
        server.stop()
        await server.close_all_connections()

    try:
        asyncio.run(run())
    finally:
        service.server.exchange.close()
