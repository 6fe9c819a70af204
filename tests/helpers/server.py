"""A file server on this machine, which can be told to misbehave."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest


class Server(ThreadingHTTPServer):
    """Serves what is in `files`; the first so many answers break off after `cut` bytes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = {}, []
        self.cuts, self.cut, self.status = 0, 0, 0
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        body = server.files.get(self.path)
        if body is None or server.status:
            self.send_error(server.status or 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: server.cut]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda _: None))  # between two attempts
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
