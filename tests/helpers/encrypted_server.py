"""The encrypted server in a process of its own, with limits and descriptors of the test's choice."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

from helpers.encrypted_networks import network

CODE = """
import json, sys
given = json.loads(sys.argv[1])
if given["descriptors"] and sys.platform != "win32":
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (given["descriptors"],) * 2)
import polybound as pb
from polybound.deploy import plan_encryption
from polybound.deploy.encrypted import http
plan, limits = plan_encryption(pb.load(given["model"])), http.Limits(**given["limits"])
http.serve(plan, 0, "127.0.0.1", given["clients"], lambda port: print(port, flush=True), limits)
"""


class ServerProcess:
    """A small network, served until the end of the `with` block; by `polybound encrypt serve` if `cli` is true.

    Args:
        folder: for the model and all temporary files.
        clients: see `Limits`, as all other options.
        descriptors: how many files the process may open; 0 sets no limit.
        cli: whether the command line starts it.
        model: the network; a small chain by default.

    Attributes:
        port: where it listens.
        url: its address.
        files: its folder for temporary files.
        start: its memory in bytes when it began to listen.
    """

    def __init__(self, folder, clients=16, descriptors=0, cli=False, model=None, **limits):
        path, self.log, self.files = (Path(folder) / name for name in ("model.safetensors", "stderr", "tmp"))
        (model or network(2, 4, 12)).save(path)
        self.files.mkdir()
        given = {"model": str(path), "clients": clients, "descriptors": descriptors, "limits": limits}
        words = ["-m", "polybound", "encrypt", "serve", str(path), "--port", "0", "--clients", str(clients)]
        command = [sys.executable, *(words if cli else ["-c", CODE, json.dumps(given)])]
        environment = {**os.environ, "TMPDIR": str(self.files), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        found = re.search(r"(?:http://127\.0\.0\.1:|^)(\d+)", self.process.stdout.readline())
        assert found, self.log.read_text()
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.start = self.memory()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(300)
        self.process.stdout.close()

    def alive(self):
        return self.process.poll() is None

    def memory(self, field="VmRSS"):
        """Resident memory now, or by "VmHWM" the most there was; in bytes."""
        status = Path(f"/proc/{self.process.pid}/status")
        if not status.exists():
            return 0
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field)) * 1024

    def ask(self, method, path, body=None, **headers):
        """Status and content of an answer; 0 if the server hangs up on a body that it does not want."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionResetError:
            return 0, b"{}"
        finally:
            connection.close()

    def raw(self, content, timeout=60):
        """What comes back for these bytes until the server closes, has answered, or says nothing."""
        found = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as wire:
            with suppress(OSError):
                wire.sendall(content)
                wire.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                while chunk := wire.recv(2**20):
                    found += chunk
        return found


class Relay:
    """A listener between a client and a server on this machine: it hands on all that passes, and keeps a copy.

    Args:
        port: of the server.

    Attributes:
        url: where it listens.
        sent: all bytes from clients, one connection after the other.
        received: all bytes from the server.
    """

    def __init__(self, port):
        self.port, self.sent, self.received = port, bytearray(), bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _run(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, socket.create_connection(("127.0.0.1", self.port)) as server:
                    back = threading.Thread(target=self._pass, args=(server, client, self.received))
                    back.start()
                    self._pass(client, server, self.sent)
                    back.join()

    @staticmethod
    def _pass(source, target, copy):
        with suppress(OSError):
            while chunk := source.recv(2**20):
                copy += chunk
                target.sendall(chunk)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
