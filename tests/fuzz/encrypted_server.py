"""Mutated keys, requests and headers against an encrypted server, and mutated replies and plans against a client.

    python tests/fuzz/encrypted_server.py --count 10000 --seed 7

The server runs in a process of its own, behind real sockets. It must be alive after each mutant, never answer with
an error of its own (500), serve an honest client in between, and stay within 1.5 times the memory of its start. The
client, and both ends of batches, run in processes of their own: any end but an answer or a refusal is a finding.
"""

import json
import math
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.campaigns import asked, numbers
from helpers.encrypted_mutants import head, mutant
from helpers.encrypted_networks import images, network
from helpers.encrypted_server import ServerProcess
from polybound.deploy import BatchClient, BatchServer, Client, RemoteClassifier, Server, plan_batches, plan_encryption
from polybound.deploy.encrypted.plan import PLAN_HEADER
from polybound.errors import PolyboundError

MODEL = network(2, 4, 12)
SHARE = {"server": 0.7, "ends": 0.3}


def report(part, seen):
    """Print how often each kind had each outcome; status 0 is a connection that was closed without an answer."""
    for (kind, outcome), times in sorted(seen.items()):
        print(f"  {part}, {kind}: {times} times {outcome}")


def attack_server(rng, count, seconds=math.inf):
    """All kinds of mutants against a server."""
    plan = plan_encryption(MODEL)
    client = Client(plan.public)
    keys, request, exact = client.keys(), client.encrypt(images()[0]), plan.polynomial(images()[:1])[0]
    digest, seen = {PLAN_HEADER: plan.public.digest}, Counter()
    # Keys give way at once: mutants that can be read do not fill the server.
    with tempfile.TemporaryDirectory() as folder, ServerProcess(folder, clients=2, keep=0.0, keep_unused=0.0) as server:

        def known():
            status, content = server.ask("POST", "/keys", keys, **digest)
            assert status == 201, (status, content)
            return f"/classify/{json.loads(content)['keys']}"

        path = known()
        for number in numbers(count, seconds):
            kind = str(rng.choice(["keys", "request", "head"], p=[0.35, 0.35, 0.3]))
            if kind == "keys":
                status, content = server.ask("POST", "/keys", mutant(rng, keys), **digest)
                if status == 201:
                    theirs = f"/classify/{json.loads(content)['keys']}"
                    assert server.ask("POST", theirs, request, **digest)[0] in (200, 400), number
            elif kind == "request":
                status, _ = server.ask("POST", path, mutant(rng, request), **digest)
                if status == 404:  # other keys have come since
                    path = known()
            else:
                target = "/keys" if rng.random() < 0.5 else path
                body = rng.bytes(int(rng.integers(2000)))
                given = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **digest}
                found = server.raw(head(rng, "POST", target, given) + body)
                status = int(found.split()[1]) if found.startswith(b"HTTP/") else 0
            seen[kind, status] += 1
            assert server.alive(), f"mutant {number} ({kind}) ended the server: {server.log.read_text()[-2000:]}"
            assert status < 500, f"mutant {number} ({kind}) is answered by {status}"
            if number % 100 == 99:
                status, reply = server.ask("POST", known(), request, **digest)
                assert status == 200 and np.abs(client.decrypt(reply) - exact).max() <= plan.error
        log, most = server.log.read_text(), server.memory("VmHWM") / server.start if server.start else 0.0
        assert "Traceback" not in log, log[-2000:]
        assert most <= 1.5, f"the server has grown to {most:.2f} times its start"
    report("server", seen)
    print(f"  memory: {server.start / 1e6:.0f} MB at the start, at most {most:.2f} times that")


class Liar(threading.Thread):
    """A server that answers with whatever it is given for the path."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.answers = {}
        self.start()

    def run(self):
        while True:
            wire, _ = self.listener.accept()
            with wire:
                content = b""
                while b"\r\n\r\n" not in content:
                    content += wire.recv(2**16)
                top, _, body = content.partition(b"\r\n\r\n")
                length = next((int(x.split()[1]) for x in top.split(b"\r\n") if x.lower().startswith(b"content-l")), 0)
                while len(body) < length:
                    body += wire.recv(2**20)
                path = top.split()[1].decode().split("/")[1]
                try:
                    wire.sendall(self.answers[path])
                except OSError:
                    continue


def response(content, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


def bad_response(rng, content):
    """A whole answer, changed in its head or cut."""
    whole = bytearray(response(content))
    choice = rng.integers(5)
    if choice == 0:
        whole[rng.integers(80)] = int(rng.integers(256))
    elif choice == 1:
        del whole[rng.integers(len(whole)) :]
    elif choice == 2:
        whole = bytearray(response(content, f"{rng.integers(1000)} x"))
    elif choice == 3:
        size = str(rng.choice(["-1", "1e9", str(2**70), "0", "²"]))
        whole = bytearray(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + content[:1000])
    else:
        whole = bytearray(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + rng.bytes(50) + b"\r\n" + content)
    return bytes(whole)


ODD = [None, True, -1, 0, 1, 2**20, 2**64, 10**400, 1e308, math.nan, math.inf]
ODD += ["", "x", "\x1b[2J", [], {}, [[]], [1] * 99]


def bad_plan(rng, plan):
    """The plan with one value changed, anywhere in it, or with its bytes changed."""
    if rng.random() < 0.2:
        content = bytearray(json.dumps(plan).encode())
        content[rng.integers(len(content))] = int(rng.integers(256))
        return bytes(content)
    plan = json.loads(json.dumps(plan))
    place, inner = plan, plan
    while isinstance(inner, dict | list) and inner:
        place = inner
        key = list(place)[rng.integers(len(place))] if isinstance(place, dict) else int(rng.integers(len(place)))
        inner = place[key]
    place[key] = (
        ODD[rng.integers(len(ODD))]
        if rng.random() < 0.7 or not isinstance(inner, int)
        else inner + int(rng.integers(-3, 4))
    )
    return json.dumps(plan).encode()


def attack_client(rng, count, seconds=math.inf):
    """A client against a lying server."""
    plan = plan_encryption(MODEL)
    server, honest = Server(plan), Client(plan.public)
    reply = server.classify(honest.encrypt(images()[0]), server.load_keys(honest.keys()))
    liar, seen = Liar(), Counter()
    good = json.loads(plan.public.to_json())
    liar.answers = {"plan": response(json.dumps(good).encode()), "keys": response(b'{"keys": ""}', "201 Created")}
    remote = RemoteClassifier(liar.url, timeout=10)
    for _ in numbers(count, seconds):
        kind = str(rng.choice(["reply", "head", "plan"], p=[0.6, 0.2, 0.2]))
        try:
            if kind == "plan":
                liar.answers["plan"] = response(bad_plan(rng, good))
                RemoteClassifier(liar.url, timeout=10).close()
            else:
                liar.answers["classify"] = response(mutant(rng, reply)) if kind == "reply" else bad_response(rng, reply)
                assert np.isfinite(remote.classify(images()[0]).logits).all()
            seen[kind, "taken"] += 1
        except PolyboundError:
            seen[kind, "refused"] += 1
    report("client", seen)


def attack_batch(rng, count, seconds=math.inf):
    """Both ends of batches."""
    plan = plan_batches(network(2, 2, 2))
    server, client = BatchServer(plan), BatchClient(plan.parameters, 2)
    content, request = client.keys(), client.encrypt(images(2, 3))
    keys = server.load_keys(content)
    reply, seen = server.classify(request, keys), Counter()
    for _ in numbers(count, seconds):
        kind = str(rng.choice(["keys", "request", "reply"]))
        try:
            if kind == "keys":
                server.classify(request, server.load_keys(mutant(rng, content)))
            elif kind == "request":
                server.classify([mutant(rng, request[0]), request[1]], keys)
            else:
                assert np.isfinite(client.decrypt([mutant(rng, reply[0]), *reply[1:]], 3)).all()
            seen[kind, "taken"] += 1
        except PolyboundError:
            seen[kind, "refused"] += 1
    report("batch", seen)


def main():
    given = asked(__doc__, 10_000, part={"choices": SHARE, "help": "only this one, with all of the mutants"})
    if given.part:
        rng = np.random.default_rng(given.seed)
        if given.part == "server":
            attack_server(rng, given.count, given.seconds)
        else:
            attack_client(rng, given.count // 2, given.seconds / 2)
            attack_batch(rng, given.count - given.count // 2, given.seconds / 2)
        return 0
    failed = 0
    for part, share in SHARE.items():
        count, start = int(given.count * share), time.monotonic()
        print(f"{part}: up to {count} mutants", flush=True)
        words = f"--part {part} --count {count} --seed {given.seed} --seconds {given.seconds * share}"
        code = subprocess.run([sys.executable, __file__, *words.split()]).returncode
        ended = f"ended with code {code}" if code else "nothing found"
        print(f"{part}: {ended}, {time.monotonic() - start:.0f} s", flush=True)
        failed += code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
