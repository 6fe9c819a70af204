"""The encrypted server in a process of its own, with limits and descriptors of the test's choice."""

import json
import socket
import subprocess
import sys
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
options = {"limits": http.Limits(**given["limits"])} if given["limits"] and hasattr(http, "Limits") else {}
plan = plan_encryption(pb.load(given["model"]))
http.serve(plan, 0, given["host"], given["clients"], lambda port: print(port, flush=True), **options)
"""


class ServerProcess:
    """A small network, served until the end of the `with` block.

    Attributes:
        port: where it listens.
        start: its memory in bytes when it began to listen.
    """

    def __init__(self, folder, clients=16, descriptors=0, host="127.0.0.1", model=None, **limits):
        path = Path(folder) / "model.safetensors"
        (model or network(2, 4, 12)).save(path)
        self.log = Path(folder) / "stderr"
        given = {"model": str(path), "clients": clients, "descriptors": descriptors, "host": host, "limits": limits}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, json.dumps(given)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        line = self.process.stdout.readline()
        assert line.strip().isdigit(), self.log.read_text()
        self.port = int(line)
        self.start = self.memory()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
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
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as wire:
            try:
                wire.sendall(content)
                wire.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            found = b""
            try:
                while chunk := wire.recv(2**20):
                    found += chunk
            except OSError:
                pass
            return found
