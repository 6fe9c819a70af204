"""The server over HTTP (tornado), on the loopback by default.

    GET  /plan                 the public plan, JSON
    GET  /progress/DIGEST      how many of the plan's blocks are computed of an image under these keys, JSON
    POST /keys                 a client's public keys, once; answers with their digest
    POST /classify/DIGEST      an encrypted image; answers with the encrypted logits

The header `Polybound-Plan` of a POST names the digest of the plan that it is for. Errors are JSON, `{"error": "..."}`:
400 for what cannot be read, 403 for a foreign `Host`, 404 for unknown or forgotten keys, 409 for another plan,
411 and 413 for sizes, 503 while there is no room.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import re
import signal
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from polybound.deploy.encrypted.plan import PLAN_HEADER, Plan
from polybound.deploy.encrypted.seal import Keys
from polybound.deploy.encrypted.server import Server
from polybound.errors import PolyboundError

_PIECE = 2**16


@dataclass(frozen=True)
class Limits:
    """What a server grants to clients that it does not know.

    Attributes:
        connections: the number that are open at once. A further one replaces the one that is idle the longest.
        in_flight: bytes of all unfinished uploads together; one message always fits.
        seconds: to send the headers of a request, again to send its body, and again to take the reply.
        keep: for this number of seconds after their last use, keys do not give way to new ones.
        keep_unused: the same for keys that were never used.
    """

    connections: int = 64
    in_flight: int = 2**26
    seconds: float = 60.0
    keep: float = 600.0
    keep_unused: float = 60.0


class NoRoomError(PolyboundError):
    """No room now; a later request may find some."""


class Service:
    """A server, the keys of its clients, and the bytes that are on their way to it.

    Args:
        plan: the plan of the network.
        clients: the number of clients whose keys are kept.
        limits: what else is granted to clients.
        clock: seconds, from any start.
        encoded: is called with the number of blocks whose weights are encoded.

    Attributes:
        progress: for keys under which an image is being computed, how many of the plan's blocks are done.
    """

    def __init__(
        self,
        plan: Plan,
        clients: int = 16,
        limits: Limits | None = None,
        clock: Callable[[], float] = monotonic,
        encoded: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.server = Server(plan, encoded)
        self.public = plan.public
        self.clients, self.limits = clients, limits or Limits()
        self._clock = clock
        self._keys: dict[str, Keys] = {}
        self._safe: dict[str, float] = {}
        self._in_flight = 0
        self.progress: dict[str, int] = {}
        self.worker = ThreadPoolExecutor(1, "polybound-worker")
        self._closed = False

    def close(self) -> None:
        """End what is being computed at its next block."""
        self._closed = True
        self.worker.shutdown(wait=False, cancel_futures=True)

    def next_to_go(self) -> str | None:
        """The digest of the keys that give way to new ones; None while there is room.

        Raises:
            NoRoomError: all were used recently.
        """
        if len(self._keys) < self.clients:
            return None
        oldest = min(self._safe, key=self._safe.__getitem__)
        left = self._safe[oldest] - self._clock()
        if left > 0:
            raise NoRoomError(f"the keys of {len(self._keys)} clients are in use: there may be room in {left:.0f} s")
        return oldest

    def read_keys(self, content: bytes) -> tuple[str, Keys | None]:
        """The digest of a client's keys, by which requests name them, and the keys, unless they are kept already.

        Raises:
            PolyboundError: they cannot be read.
        """
        digest = hashlib.sha256(content).hexdigest()
        return digest, None if self.knows(digest) else self.server.load_keys(content)

    def keep(self, digest: str, keys: Keys | None) -> str:
        """Keep what `read_keys` has found; the digest.

        Raises:
            PolyboundError: there is no room.
        """
        if keys is not None and digest not in self._keys:
            oldest = self.next_to_go()
            if oldest is not None:
                del self._keys[oldest], self._safe[oldest]
            self._keys[digest], self._safe[digest] = keys, self._clock() + self.limits.keep_unused
        return digest

    def knows(self, digest: str) -> bool:
        """Whether the keys of that digest are kept."""
        return digest in self._keys

    def classify(self, content: bytes, digest: str, wanted: Callable[[], bool] = lambda: True) -> bytes:
        """The reply to a request under the keys of that digest, which are safe for a while after it.

        Args:
            content: the request.
            digest: of the keys.
            wanted: whether somebody still waits for the reply.

        Raises:
            PolyboundError: the request cannot be read, or nobody waits.
        """

        def done(blocks: int) -> None:
            if self._closed or not wanted():
                raise PolyboundError("the client is gone")
            self.progress[digest] = blocks

        if not self.knows(digest):
            raise PolyboundError("the server does not have these keys any more: send them again")
        try:
            done(0)
            reply = self.server.classify(content, self._keys[digest], done)
        finally:
            self.progress.pop(digest, None)
        if self.knows(digest):
            self._safe[digest] = self._clock() + self.limits.keep
        return reply

    def reserve(self, size: int) -> None:
        """Count the bytes of an upload that begins.

        Raises:
            NoRoomError: there are too many on their way.
        """
        if self._in_flight and self._in_flight + size > self.limits.in_flight:
            raise NoRoomError(f"unfinished uploads already take {self._in_flight} bytes: send it later")
        self._in_flight += size

    def release(self, size: int) -> None:
        """Count them no longer."""
        self._in_flight -= size


class _Doorkeeper(HTTPServer):
    """Tornado's server with a limited number of connections, each with a limited time for a request."""

    def open(self, limits: Limits, most: int) -> None:
        self._seconds, self._most = limits.seconds, most
        # The connections that wait for a request, longest first, and those that have one, with the end of its time.
        self._idle: OrderedDict[IOStream, None] = OrderedDict()
        self._busy: dict[IOStream, asyncio.TimerHandle] = {}

    async def accept(self, listener: Any) -> None:
        """Take connections, until cancelled."""
        while True:
            try:
                connection, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:  # Out of descriptors, or the other side is gone: without a pause this would be a loop.
                self._dismiss()
                await asyncio.sleep(0.1)
                continue
            if len(self._idle) + len(self._busy) >= self._most and not self._dismiss():
                connection.close()
                continue
            stream = IOStream(connection, max_buffer_size=16 * _PIECE)
            self._idle[stream] = None
            self.handle_stream(stream, address)

    def _dismiss(self) -> bool:
        """Close the connection that is idle the longest; whether there was one."""
        if not self._idle:
            return False
        stream, _ = self._idle.popitem(last=False)
        stream.close()
        return True

    def start_request(self, server_conn: Any, request_conn: Any) -> Any:
        """The connection waits for its next request."""
        stream = server_conn.stream
        if stream in self._busy:
            self._busy.pop(stream).cancel()
            self._idle[stream] = None
        return super().start_request(server_conn, request_conn)

    def begin(self, stream: IOStream) -> None:
        """A request has begun: its headers are there. Tornado itself limits the time of headers and body only."""
        if stream in self._idle:
            del self._idle[stream]
            self._busy[stream] = asyncio.get_running_loop().call_later(2 * self._seconds, stream.close)

    def pause(self, stream: IOStream) -> None:
        """The time that this program itself takes is not the client's."""
        if stream in self._busy:
            self._busy[stream].cancel()

    def resume(self, stream: IOStream) -> None:
        """The client has its time to take the reply."""
        if stream in self._busy:
            self._busy[stream] = asyncio.get_running_loop().call_later(self._seconds, stream.close)

    def on_close(self, server_conn: Any) -> None:
        stream = server_conn.stream
        self._idle.pop(stream, None)
        if stream in self._busy:
            self._busy.pop(stream).cancel()
        super().on_close(server_conn)


class _Handler(RequestHandler):
    """Errors as JSON; no answer to a foreign name."""

    def initialize(self, service: Service, host: str, door: Callable[[], _Doorkeeper]) -> None:
        self.service, self.host, self.door = service, host, door

    def prepare(self) -> None:
        self.connection = cast(HTTP1Connection, self.request.connection)
        self.door().begin(self.connection.stream)
        # A page of another site may reach a local server under that site's name (DNS rebinding), not under an address.
        if not _is_own(self.request.headers.get("Host", ""), self.host):
            raise HTTPError(403, "the request's Host is not a name of this server")

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


def _is_own(header: str, bound: str) -> bool:
    """Whether a header `Host` names the loopback, the host that is bound, or any address if all are bound."""
    try:
        parts = urlsplit(f"//{header}")
        name = (parts.hostname or "").rstrip(".")
        _ = parts.port  # raises ValueError if it is not a number
        if parts.netloc != header or "@" in header:
            return False
        if name in {"127.0.0.1", "localhost", "::1", bound.lower()}:
            return True
        return bound in ("", "0.0.0.0", "::") and bool(ipaddress.ip_address(name))  # noqa: S104
    except ValueError:
        return False


class _GetProgress(_Handler):
    """How much of an image is computed; whoever asks has the digest of its keys."""

    def get(self, digest: str) -> None:
        done = self.service.progress.get(digest)
        if done is None:
            raise HTTPError(404, "nothing is computed under these keys now")
        self.finish(json.dumps({"done": done}))


class _GetPlan(_Handler):
    def get(self) -> None:
        self.finish(self.service.public.to_json())


@stream_request_body
class _Upload(_Handler):
    """A client's keys, or an image for the keys of a digest: a body of limited size, for the plan of this server.

    The headers alone decide whether a body is kept. A client that does not wait for the decision (`Expect:
    100-continue`) sees it after its body, which is read and thrown away: it would not see the answer before.
    """

    def initialize(self, *args: Any, **given: Any) -> None:
        super().initialize(*args, **given)
        self._body, self._reserved, self._gone = bytearray(), 0, False
        self._refusal: HTTPError | None = None

    def prepare(self) -> None:
        super().prepare()
        if self.request.method != "POST":
            raise HTTPError(405)
        length = self.request.headers.get("Content-Length")
        if length is None:
            raise HTTPError(411, "a Content-Length is needed")
        if not re.fullmatch("[0-9]{1,18}", length):
            raise HTTPError(400, "the Content-Length is not a number")
        size, server = int(length), self.service.server
        most = sum(form.limit for form in (server.request_forms if self.path_args else server.key_forms))
        if size > most:
            raise HTTPError(413, f"{size} bytes are more than the {most} of this plan")
        try:
            if self.request.headers.get(PLAN_HEADER) != self.service.public.digest:
                raise HTTPError(
                    409, f"the request is for another plan than this server's, or names none in {PLAN_HEADER}"
                )
            self._judge()
            self._asked(lambda: self.service.reserve(size))
            self._reserved = size
        except HTTPError as error:
            if self.request.headers.get("Expect", "").lower() == "100-continue":
                raise
            self._refusal = error
        self.connection.set_max_body_size(size)

    def _judge(self) -> None:
        """Refuse what needs no body to be refused."""
        if not self.path_args:
            self._asked(self.service.next_to_go)
        elif not self.service.knows(self.path_args[0]):
            raise HTTPError(404, "the server does not have these keys: send them again")

    def data_received(self, chunk: bytes) -> None:
        if self._refusal is None:
            self._body += chunk

    async def post(self, digest: str = "") -> None:
        if self._refusal is not None:
            raise self._refusal
        content = bytes(self._body)
        self._body.clear()
        self._judge()  # again: other clients' keys may have come while this body was on its way
        if digest:
            reply = await self._worked(lambda: self.service.classify(content, digest, lambda: not self._gone))
            self.set_header("Content-Type", "application/octet-stream")
            answer: bytes | str = reply
        else:
            name, keys = await self._worked(lambda: self.service.read_keys(content))
            self._asked(lambda: self.service.keep(name, keys))
            self.set_status(201)
            answer = json.dumps({"keys": name})
        if not self._gone:
            self.finish(answer)

    async def _worked(self, work: Callable[[], Any]) -> Any:
        """What takes time, in the one thread that works; meanwhile others get their plans and their progress."""
        door, stream = self.door(), self.connection.stream
        door.pause(stream)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.service.worker, self._asked, work)
        finally:
            door.resume(stream)

    def _asked(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except NoRoomError as error:
            raise HTTPError(503, str(error)) from None
        except PolyboundError as error:
            raise HTTPError(400, str(error)) from None
        except OSError as error:
            raise HTTPError(503, f"the server has no room ({error.strerror})") from None

    def on_finish(self) -> None:
        self.service.release(self._reserved)
        self._reserved = 0
        self._body = bytearray()

    def on_connection_close(self) -> None:
        self._gone = True  # ends an evaluation at its next block
        self.on_finish()


class _NotFound(_Handler):
    def prepare(self) -> None:
        super().prepare()
        raise HTTPError(404, "no such path: the paths are /plan, /keys, /classify/DIGEST and /progress/DIGEST")


def _descriptors() -> int:
    """How many more files and sockets this process may open, some of them left for files."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:
        return 256
    try:
        used = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        used = 32
    return max(1, limit - used - 12) if limit != resource.RLIM_INFINITY else 2**20


def serve(
    plan: Plan,
    port: int = 0,
    host: str = "127.0.0.1",
    clients: int = 16,
    ready: Callable[[int], None] = lambda _: None,
    limits: Limits | None = None,
    encoded: Callable[[int], None] = lambda _: None,
) -> None:
    """Answer requests until the process is interrupted or told to end.

    Args:
        plan: the plan of the network.
        port: 0 takes a free one.
        host: the address to listen on; requests must name it, or the loopback, as their `Host`.
        clients: the number of clients whose keys are kept.
        ready: is called with the port once the server listens.
        limits: what else is granted to clients.
        encoded: is called with the number of blocks whose weights are encoded.
    """
    limits = limits or Limits()
    service = Service(plan, clients, limits, encoded=encoded)

    async def run() -> None:
        server: _Doorkeeper
        sockets = bind_sockets(port, host)
        given = {"service": service, "host": host, "door": lambda: server}
        paths = {
            "/plan": _GetPlan,
            "/keys": _Upload,
            "/classify/([0-9a-f]{64})": _Upload,
            "/progress/([0-9a-f]{64})": _GetProgress,
        }
        routes: list[Any] = [(path, handler, given) for path, handler in paths.items()]
        application = Application(
            routes, default_handler_class=_NotFound, default_handler_args=given, log_function=lambda _: None
        )
        # Uploads are read piece by piece, and have limits of their own.
        server = _Doorkeeper(
            application,
            chunk_size=_PIECE,
            max_body_size=_PIECE,
            idle_connection_timeout=limits.seconds,
            body_timeout=limits.seconds,
        )
        server.open(limits, min(limits.connections, _descriptors()))
        accepting = [asyncio.create_task(server.accept(socket)) for socket in sockets]
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not everywhere, and in the main thread only.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        ready(sockets[0].getsockname()[1])
        await stopped.wait()
        service.close()
        for task in accepting:
            task.cancel()
        for socket in sockets:
            socket.close()
        await server.close_all_connections()

    try:
        asyncio.run(run())
    finally:
        service.close()
        service.server.scheme.close()
