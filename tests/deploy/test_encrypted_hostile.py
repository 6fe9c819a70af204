"""Hostile clients and servers, over real sockets: the serving process lives, its memory stays, others are served."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from fuzz import encrypted_server as fuzz
from helpers import encrypted_mutants as mutants
from helpers.encrypted_networks import images, network
from helpers.encrypted_server import ServerProcess
from polybound.deploy import BatchClient, BatchServer, Client, RemoteClassifier, Server, plan_batches, plan_encryption
from polybound.deploy.encrypted.http import Service
from polybound.deploy.encrypted.plan import PLAN_HEADER
from polybound.errors import PolyboundError

MODEL = network(2, 4, 12)


@pytest.fixture(scope="module")
def plan():
    return plan_encryption(MODEL)


@pytest.fixture(scope="module")
def client(plan):
    return Client(plan.public)


@pytest.fixture(scope="module")
def keys(client):
    return client.keys()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("server"), clients=3, descriptors=64) as process:
        yield process
        assert process.alive() and "Traceback" not in process.log.read_text()


def send(server, plan, path, body):
    status, content = server.ask("POST", path, body, **{PLAN_HEADER: plan.public.digest})
    return status, json.loads(content) if status != 200 else content


@pytest.fixture(scope="module")
def path(server, plan, keys):
    """Where the client's requests go."""
    status, answer = send(server, plan, "/keys", keys)
    assert status == 201
    return f"/classify/{answer['keys']}"


HOSTILE = {
    "fewer parts of the key for products": lambda keys: mutants.replaced(keys, 0, mutants.fewer_parts),
    "fewer parts of a key for rotations": lambda keys: mutants.replaced(
        keys, 1, mutants.fewer_parts_of_the_first_rotation
    ),
    "no header before a seed": lambda keys: mutants.replaced(keys, 0, mutants.damaged_seed),
    "gigabytes of zeros": lambda keys: mutants.huge(keys, 0, 2**30),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_keys_are_refused(server, plan, client, keys, path, name):
    before = server.memory("VmHWM")
    bad = HOSTILE[name](keys)
    status, answer = send(server, plan, "/keys", bad)
    if status == 201:  # the next request would end a server that believes them
        send(server, plan, f"/classify/{answer['keys']}", client.encrypt(images()[0]))
    assert status == 400 and "the keys" in answer["error"] and server.alive()
    assert server.memory("VmHWM") - before < 2**27
    assert send(server, plan, path, client.encrypt(images()[0]))[0] == 200


@pytest.mark.parametrize(
    "change",
    [
        lambda request: mutants.replaced(request, 0, mutants.damaged_seed),
        mutants.all_zero,
        lambda request: mutants.huge(request, 0, 2**28),
        lambda request: request[:73],
    ],
)
def test_hostile_requests_are_refused(server, plan, client, path, change):
    status, answer = send(server, plan, path, change(client.encrypt(images()[0])))
    assert status == 400 and "the request" in answer["error"] and server.alive()


def test_a_hostile_reply_does_not_end_the_client(plan, client, keys):
    """The client loads nothing that SEAL could stumble over, in a process that SEAL would end."""
    server = Server(plan)
    request = client.encrypt(images()[0])
    reply = server.classify(request, server.load_keys(keys))
    assert np.isfinite(client.decrypt(reply)).all()
    seeded = mutants.replaced(request, 0, mutants.damaged_seed)
    for bad in (seeded, request, mutants.huge(reply, 0, 2**28), mutants.all_zero(reply), reply + b"x", reply[:80]):
        with pytest.raises(PolyboundError, match="the reply"):
            client.decrypt(bad)
    for scale in (0.0, -1.0, np.inf, np.nan, 1e-300, 1e300):
        bad = mutants.replaced(reply, 0, lambda body, s=scale: body[:57] + np.float64(s).tobytes() + body[65:])
        with pytest.raises(PolyboundError, match="scale"):
            client.decrypt(bad)


def test_hostile_batches_are_refused():
    plan = plan_batches(network(2, 2, 2))
    server, client = BatchServer(plan), BatchClient(plan.parameters, 2)
    content = client.keys()
    for name in ("fewer parts of the key for products", "no header before a seed", "gigabytes of zeros"):
        with pytest.raises(PolyboundError, match="the keys"):
            server.load_keys(HOSTILE[name](content))
    keys, good = server.load_keys(content), client.encrypt(images(2, 3))
    for bad in (
        mutants.huge(good[0], 0, 2**28),
        mutants.replaced(good[0], 0, lambda body: body[:97] + bytes(len(body) - 97)),
    ):
        with pytest.raises(PolyboundError, match="the request"):
            server.classify([bad, good[1]], keys)
    reply = server.classify(good, keys)
    with pytest.raises(PolyboundError, match="the reply"):
        client.decrypt([mutants.huge(reply[0], 0, 2**28), *reply[1:]], 3)


@pytest.mark.parametrize("domain", [(-1.0, 1.0), (0.0, 1.0)])
def test_a_batch_client_encrypts_pixels_of_the_domain_only(domain):
    plan = plan_batches(network(2, 2, 3), domain)
    client = BatchClient(plan.parameters, 3)
    for bad in (np.full((2, 3), 255.0), np.full((2, 3), -1.1), np.array([[0.5, np.nan, 0.5]])):
        with pytest.raises(PolyboundError, match="pixels must lie between"):
            client.encrypt(bad)


def head(plan, path="/keys", length="10", host="127.0.0.1", **headers):
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"{PLAN_HEADER}: {plan.public.digest}",
        f"Content-Length: {length}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin1")


def first_line(server, content):
    """The status line for bytes after which the client waits."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as wire:
        wire.sendall(content)
        return wire.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("length", ["²", "-1", "1e3", "9" * 5000, "0x10", ""])
def test_lengths_that_are_no_numbers(server, plan, length):
    assert b" 400 " in first_line(server, head(plan, length=length))


def test_a_foreign_host_is_not_served(server):
    port = server.port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        f"127.0.0.1@evil:{port}",
        "10.0.0.1",
    ):
        assert server.ask("GET", "/plan", Host=host)[0] in (400, 403)
    for host in (f"127.0.0.1:{port}", "localhost", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert server.ask("GET", "/plan", Host=host)[0] == 200


def test_headers_are_judged_before_the_body(server, plan, path):
    """A client that waits for the decision has it before it sends anything."""
    wait = {"Expect": "100-continue"}
    assert b" 100 " in first_line(server, head(plan, path, **wait))
    assert b" 404 " in first_line(server, head(plan, "/classify/" + "0" * 64, **wait))
    assert b" 413 " in first_line(server, head(plan, length=10**12))
    other = head(plan, path, **wait).replace(plan.public.digest.encode(), b"0" * 64)
    assert b" 409 " in first_line(server, other)
    # No path takes a body that is not limited.
    assert b" 400 " in first_line(server, head(plan, "/elsewhere", length=10**9))


def test_idle_connections_do_not_keep_others_out(server, plan, client, path):
    with ExitStack() as idle:
        for _ in range(90):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        assert server.ask("GET", "/plan")[0] == 200
        assert send(server, plan, path, client.encrypt(images()[0]))[0] == 200
        assert server.log.stat().st_size < 1000


@pytest.fixture(scope="module")
def impatient(tmp_path_factory, keys):
    """A server that waits for three seconds, for three uploads at once, and keeps two clients' keys."""
    folder = tmp_path_factory.mktemp("impatient")
    with ServerProcess(folder, clients=2, seconds=3.0, in_flight=3 * len(keys)) as process:
        yield process
        assert process.alive() and "Traceback" not in process.log.read_text()


def test_unfinished_uploads_are_limited_and_end(impatient, plan, keys):
    """A fourth upload finds no room; the three are ended by the server, and leave room and memory."""
    whole = head(plan, length=len(keys))
    asking = head(plan, length=len(keys), Expect="100-continue")
    with ExitStack() as held:
        wires = [socket.create_connection(("127.0.0.1", impatient.port), timeout=60) for _ in range(3)]
        for wire in wires:
            held.enter_context(wire)
            wire.sendall(asking)
            assert b" 100 " in wire.recv(100)
        assert b" 503 " in first_line(impatient, asking)
        for wire in wires:
            assert wire.recv(10) == b""
        assert b" 100 " in first_line(impatient, asking)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as wire:
            wire.sendall(whole + keys[:-1])
            wire.shutdown(socket.SHUT_WR)
            assert wire.recv(10) == b""
    assert impatient.memory() < impatient.start + 10 * len(keys)


def test_an_idle_client_connects_again(impatient, plan):
    with RemoteClassifier(f"http://127.0.0.1:{impatient.port}") as remote:
        first = remote.classify(images()[0]).logits
        remote._connection.sock.settimeout(60)
        assert remote._connection.sock.recv(1) == b""  # the server has closed it
        assert np.abs(remote.classify(images()[0]).logits - first).max() <= 2 * plan.error


def test_new_clients_do_not_push_out_those_at_work(impatient, plan):
    with RemoteClassifier(f"http://127.0.0.1:{impatient.port}") as first:
        exact, taken = plan.polynomial(images()[:1])[0], 0
        for _ in range(3):
            try:
                assert np.abs(first.classify(images()[0]).logits - exact).max() <= plan.error
            except PolyboundError as error:  # other tests' clients were there before
                assert "in use" in str(error)  # noqa: PT017
            else:
                taken += 1
            status, answer = send(impatient, plan, "/keys", Client(plan.public).keys())
        assert status == 503 and "in use" in answer["error"] and taken in (0, 3)


def test_keys_that_were_forgotten_are_sent_again(tmp_path, plan):
    with (
        ServerProcess(tmp_path, clients=1, keep=0.0, keep_unused=0.0) as server,
        RemoteClassifier(f"http://127.0.0.1:{server.port}") as first,
    ):
        logits = first.classify(images()[0]).logits
        assert send(server, plan, "/keys", Client(plan.public).keys())[0] == 201
        assert np.abs(first.classify(images()[0]).logits - logits).max() <= 2 * plan.error


def test_keys_that_are_not_used_give_way(plan, client, keys):
    """Unused ones after a minute, used ones after ten, the oldest first."""
    now = 0.0
    service = Service(plan, clients=2, clock=lambda: now)
    first = service.add_keys(keys)
    service.classify(client.encrypt(images()[0]), first)
    second = service.add_keys(Client(plan.public).keys())
    third = Client(plan.public).keys()
    now = 59.0
    with pytest.raises(PolyboundError, match="there may be room in 1 s"):
        service.add_keys(third)
    now = 61.0
    assert service.add_keys(third) and service.knows(first) and not service.knows(second)
    now = 601.0
    assert service.add_keys(Client(plan.public).keys()) and service.knows(first)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"version": 1, "error": 1' + b"0" * 400 + b"}", b"null", b"\xff\xfe", b"{}", b'{"version": 2}'],
)
def test_plans_that_are_none(content):
    from polybound.deploy import PublicPlan

    with pytest.raises(PolyboundError, match="the server's plan"):
        PublicPlan.from_json(content)


def test_a_short_campaign(capfd):
    """Some mutants; `tests/fuzz/encrypted_server.py --count 10000` is the long one."""
    fuzz.attack_server(np.random.default_rng(1), 40)
    # A process of its own: what is wrong at these ends would end it.
    command = [sys.executable, fuzz.__file__, "--part", "ends", "--count", "20", "--seed", "1"]
    assert subprocess.run(command).returncode == 0, capfd.readouterr()
