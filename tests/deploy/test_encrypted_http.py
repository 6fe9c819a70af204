"""Encrypted inference over sockets: what passes between two processes, hostile clients and servers, many clients."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from fuzz import encrypted_server as fuzz
from helpers import encrypted_mutants as mutants
from helpers.encrypted_networks import graph_network, images, network
from helpers.encrypted_server import Relay, ServerProcess
from polybound.deploy import Client, RemoteClassifier, plan_encryption
from polybound.deploy.encrypted.http import Service
from polybound.deploy.encrypted.plan import PLAN_HEADER
from polybound.deploy.encrypted.seal import sealapi, split
from polybound.errors import PolyboundError

IMAGE = images()[0]
MODELS = {"chain": network, "graph": graph_network}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def exact(model):
    """The logits of the plain network."""
    graph = model.graph().double()
    return lambda x: graph(torch.from_numpy(x)).numpy()


@pytest.fixture(scope="module")
def plan(model):
    return plan_encryption(model)


@pytest.fixture(scope="module")
def client(plan):
    return Client(plan.public)


@pytest.fixture(scope="module")
def keys(client):
    return client.keys()


def served(folder, **options):
    """A server that is alive, silent and has left no files when its tests are over."""
    with ServerProcess(folder, **options) as process:
        yield process
        assert process.alive() and "Traceback" not in process.log.read_text()
    assert not [path for path in process.files.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def server(tmp_path_factory, model):
    """By the command line."""
    yield from served(tmp_path_factory.mktemp("server"), clients=24, cli=True, model=model)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory, model, keys):
    """A server that waits for three seconds, for three uploads at once, and keeps two clients' keys."""
    limits = {"model": model, "clients": 2, "descriptors": 64, "seconds": 3.0, "in_flight": 3 * len(keys)}
    yield from served(tmp_path_factory.mktemp("impatient"), **limits)


def send(server, plan, path, body, digest=None):
    status, content = server.ask("POST", path, body, **{PLAN_HEADER: plan.public.digest if digest is None else digest})
    return status, json.loads(content) if status != 200 else content


@pytest.fixture(scope="module")
def path(server, plan, keys):
    """Where the client's requests go."""
    status, answer = send(server, plan, "/keys", keys)
    assert status == 201
    return f"/classify/{answer['keys']}"


def test_what_passes_between_two_processes(server, plan, exact):
    """A relay between both sees no secret key and no pixels, and can load nothing as a key."""
    x = images()
    with Relay(server.port) as relay, RemoteClassifier(relay.url) as remote:
        assert remote.plan == plan.public
        for image, logits in zip(x, exact(x), strict=True):
            answer = remote.classify(image)
            assert np.abs(answer.logits - logits).max() <= plan.error and answer.name == str(logits.argmax())
            assert answer.sent > 1000 and answer.received > 1000 and answer.seconds > 0
    sent, received = (bytes(part) for part in (relay.sent, relay.received))
    bodies = mutants.bodies(sent)
    key, parts = remote.client.key, [part for body in bodies for part in mutants.objects(body)]
    uploads = len(plan.pack(x[0]))
    assert len(bodies) == 1 + len(x) and len(parts) == 3 + len(x) * uploads  # keys once, then requests
    # The secret key is not in what passed, packed or not, nor can any of it be loaded as one.
    secret = key.scheme.to_bytes(key._generator.secret_key())
    words = mutants.unpacked(secret)
    assert secret[64:128] not in sent + received
    replies = [part for body in mutants.bodies(received)[-len(x) :] for part in mutants.objects(body)]
    assert len(replies) == len(x)
    for part in parts + replies:
        plain = mutants.unpacked(part)
        assert all(words[at : at + 64] not in plain for at in range(1024, len(words) - 64, len(words) // 40))
    for part in parts[:3]:
        with pytest.raises(PolyboundError):
            key.scheme.load(sealapi.SecretKey(), part, "it")
    # Nor are the pixels, as numbers or encoded; nor does the server keep files.
    for image in x:
        assert not any(image.astype(kind).tobytes() in sent for kind in ("<f4", "<f8", ">f4", ">f8"))
        assert not any(repr(float(pixel)).encode() in sent for pixel in image)
    assert not [path for path in server.files.rglob("*") if path.is_file()]
    # What was captured decrypts to the pixels with the key, and to nothing with another one.
    part = split(bodies[1], Service(plan).server.request_forms, "it")[0]
    values = []
    for owner in (key, Client(plan.public).key):
        result = sealapi.Plaintext()
        owner._decryptor.decrypt(owner.scheme.load(sealapi.Ciphertext(), part, "it"), result)
        values.append(np.array(owner.scheme.encoder.decode_complex(result)))
    np.testing.assert_allclose(values[0], plan.pack(x[0])[0], atol=1e-3)
    assert np.median(np.abs(values[1])) > 1e3


def changed(place, change):
    return lambda message: mutants.replaced(message, place, change)


@pytest.mark.parametrize(
    "change",
    [
        changed(0, mutants.fewer_parts),
        changed(1, mutants.fewer_parts),
        changed(0, mutants.damaged_seed),
        lambda keys: mutants.huge(keys, 0, 2**30),
    ],
)
def test_hostile_keys_are_refused(server, plan, client, keys, path, change):
    before = server.memory("VmHWM")
    status, answer = send(server, plan, "/keys", change(keys))
    if status == 201:  # the next request would end a server that believes them
        send(server, plan, f"/classify/{answer['keys']}", client.encrypt(IMAGE))
    assert status == 400 and "the keys" in answer["error"] and server.alive()
    assert server.memory("VmHWM") - before < 2**27
    assert send(server, plan, path, client.encrypt(IMAGE))[0] == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(0, mutants.damaged_seed), "the request"),
        (mutants.all_zero, "the request"),
        (lambda request: mutants.huge(request, 0, 2**28), "the request"),
        (lambda request: request[:20] + bytes(180) + request[200:], "cannot be decompressed"),
        (lambda request: request[:-1], "truncated"),
        (lambda request: request[:10], "ends before"),
        (lambda request: b"", "ends before"),
        (lambda request: b"%s%d" * 1000, "not in SEAL's format"),
        (lambda request: request + request, "bytes are more than|goes on"),
        (lambda request: request + b"x", "goes on"),
    ],
)
def test_bad_requests_get_a_clear_answer(server, plan, exact, client, path, change, message):
    request = client.encrypt(IMAGE)
    status, answer = send(server, plan, path, change(request))
    assert status in (400, 413) and re.search(message, answer["error"]) and server.alive()
    good, reply = send(server, plan, path, request)
    assert good == 200 and np.abs(client.decrypt(reply) - exact(IMAGE[None])[0]).max() <= plan.error


def test_requests_of_other_parameters_get_a_clear_answer(server, plan, exact, client, path):
    request = client.encrypt(IMAGE)
    other = replace(plan.public, pixels=plan.public.pixels - 1)
    for digest in (other.digest, ""):
        assert send(server, plan, path, request, digest)[0] == 409
    status, answer = send(server, plan, path, Client(other).encrypt(IMAGE))
    assert status == 400 and "other parameters" in answer["error"]
    assert send(server, plan, "/keys", Client(replace(other, bits=(other.bits[0] - 1, *other.bits[1:]))).keys())[0] in (
        400,
        413,
    )
    assert server.ask("GET", path.replace("classify", "progress"))[0] == 404
    for unknown in (f"/classify/{'0' * 64}", "/classify/../../etc/passwd", "/elsewhere"):
        assert send(server, plan, unknown, request[:99])[0] == 404
    assert send(server, plan, "/plan", b"")[0] == 405
    # Another client's keys: an answer that only garbage comes out of.
    stranger = Client(plan.public)
    status, reply = send(server, plan, path, stranger.encrypt(IMAGE))
    assert status == 200 and np.abs(stranger.decrypt(reply) - exact(IMAGE[None])[0]).max() > 1


def connected(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def head(plan, path="/keys", host="127.0.0.1", **headers):
    given = {"Host": host, PLAN_HEADER: plan.public.digest, "Content-Length": "10"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode("latin1")


def first_line(server, content):
    """The status line for bytes after which the client waits."""
    with connected(server) as wire:
        wire.sendall(content)
        return wire.recv(4096).split(b"\r\n")[0] + b" "


@pytest.mark.parametrize("length", ["²", "-1", "1e3", "9" * 5000, "0x10", ""])
def test_lengths_that_are_no_numbers(server, plan, length):
    assert b" 400 " in first_line(server, head(plan, Content_Length=length))


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
    for target in (path, "/keys"):
        assert b" 413 " in first_line(server, head(plan, target, Content_Length=2**40))
        chunked = head(plan, target, Content_Length=None, Transfer_Encoding="chunked")
        assert b" 411 " in first_line(server, chunked)
    other = head(plan, path, **wait).replace(plan.public.digest.encode(), b"0" * 64)
    assert b" 409 " in first_line(server, other)
    # No path takes a body that is not limited.
    assert b" 400 " in first_line(server, head(plan, "/elsewhere", Content_Length=10**9))


def test_a_client_that_hangs_up_does_no_harm(server, plan, client, path):
    request = client.encrypt(IMAGE)
    with connected(server) as wire:
        wire.sendall(head(plan, path, Content_Length=len(request)) + request[:1000])
    assert send(server, plan, path, request)[0] == 200


def test_idle_connections_do_not_keep_others_out(impatient, plan):
    with ExitStack() as idle:
        for _ in range(90):
            idle.enter_context(connected(impatient))
        assert impatient.ask("GET", "/plan")[0] == 200
        assert impatient.log.stat().st_size < 1000


def test_unfinished_uploads_are_limited_and_end(impatient, plan, keys):
    """A fourth upload finds no room; the three are ended by the server, and leave room and memory."""
    whole = head(plan, Content_Length=len(keys))
    asking = head(plan, Content_Length=len(keys), Expect="100-continue")
    with ExitStack() as held:
        wires = [held.enter_context(connected(impatient)) for _ in range(3)]
        for wire in wires:
            wire.sendall(asking)
            assert b" 100 " in wire.recv(100)
        assert b" 503 " in first_line(impatient, asking)
        for wire in wires:
            assert wire.recv(10) == b""
        assert b" 100 " in first_line(impatient, asking)
    for _ in range(20):
        with connected(impatient) as wire:
            wire.sendall(whole + keys[:-1])
            wire.shutdown(socket.SHUT_WR)
            assert wire.recv(10) == b""
    assert impatient.memory() < impatient.start + 10 * len(keys)


def test_new_clients_do_not_push_out_those_at_work(impatient, plan, exact):
    logits, taken = exact(IMAGE[None])[0], 0
    with RemoteClassifier(impatient.url) as first:
        for _ in range(3):
            try:
                assert np.abs(first.classify(IMAGE).logits - logits).max() <= plan.error
            except PolyboundError as error:  # other tests' clients were there before
                assert "in use" in str(error)  # noqa: PT017
            else:
                taken += 1
            status, answer = send(impatient, plan, "/keys", Client(plan.public).keys())
        assert status == 503 and "in use" in answer["error"] and taken in (0, 3)


def test_forgotten_keys_are_sent_again_and_idle_clients_connect_again(tmp_path, model, plan):
    forgetful = ServerProcess(tmp_path, model=model, clients=1, keep=0.0, keep_unused=0.0, seconds=3.0)
    with forgetful as server, RemoteClassifier(server.url) as first:
        logits = first.classify(IMAGE).logits
        assert send(server, plan, "/keys", Client(plan.public).keys())[0] == 201
        assert np.abs(first.classify(IMAGE).logits - logits).max() <= 2 * plan.error
        first._connection.sock.settimeout(60)
        assert first._connection.sock.recv(1) == b""  # the server has closed it
        assert np.abs(first.classify(IMAGE).logits - logits).max() <= 2 * plan.error


def test_keys_that_are_not_used_give_way(plan, client, keys):
    """Unused ones after a minute, used ones after ten, the oldest first."""
    now = 0.0
    service = Service(plan, clients=2, clock=lambda: now)
    first = service.keep(*service.read_keys(keys))
    service.classify(client.encrypt(IMAGE), first)
    second = service.keep(*service.read_keys(Client(plan.public).keys()))
    third = Client(plan.public).keys()
    now = 59.0
    with pytest.raises(PolyboundError, match="there may be room in 1 s"):
        service.keep(*service.read_keys(third))
    now = 61.0
    assert service.keep(*service.read_keys(third)) and service.knows(first) and not service.knows(second)
    now = 601.0
    assert service.keep(*service.read_keys(Client(plan.public).keys())) and service.knows(first)


def test_four_clients_at_once_get_their_own_answers(server, plan, exact):
    x = images(count=4, seed=5)

    def ask(image):
        with RemoteClassifier(server.url) as remote:
            assert remote.plan == plan.public
            return [remote.classify(image, lambda _: None).logits for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        for logits, found in zip(exact(x), pool.map(ask, x), strict=True):
            assert np.abs(np.array(found) - logits).max() <= plan.error


def test_classify_on_the_command_line(server, exact, cli, tmp_path):
    x = images(count=3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", X=x[:1], y=np.zeros(1))
    records = cli("encrypt", "classify", "--server", server.url, tmp_path / "x.npy", tmp_path / "x.npz", "--json").json
    assert [record["class"] for record in records] == [str(i) for i in exact(x[[0, 1, 2, 0]]).argmax(1)]
    shown = cli("encrypt", "classify", "--server", server.url, tmp_path / "x.npy")
    assert shown.code == 0 and "x.npy:2" in shown.out and "sent once" in shown.out


class Terminal:
    """`polybound encrypt ...` with a terminal for its standard error."""

    def __init__(self, *words):
        self.screen, terminal = os.openpty()
        command = [sys.executable, "-m", "polybound", "encrypt", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True)
        os.close(terminal)
        self.shown, self.thread = b"", threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        with suppress(OSError), os.fdopen(self.screen, "rb", buffering=0) as source:
            while chunk := source.read(2**16):
                self.shown += chunk

    def end(self):
        """What it has shown, once it has ended."""
        self.process.terminate()
        self.process.communicate()
        self.thread.join()
        return self.shown


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal is a pty")
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_bars_are_shown_on_a_terminal_unless_quiet(tmp_path, quiet):
    network().save(tmp_path / "m.safetensors")
    np.save(tmp_path / "x.npy", IMAGE)
    server = Terminal("serve", tmp_path / "m.safetensors", "--port", "0", *quiet)
    url = re.search(r"http://[\w.:]+", server.process.stdout.readline())[0]
    client = Terminal("classify", "--server", url, tmp_path / "x.npy", *quiet)
    assert "x.npy" in client.process.stdout.read()
    for process in (client, server):
        assert (process.end() == b"") is bool(quiet)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits:0"], r"digits: .* is wanted"),
        (["digits:9999"], "test split has images 0 to 359"),
        (["big.npy"], "between -1 and 1"),
    ],
)
def test_bad_images_are_refused(server, refused, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "big.npy", np.full(12, 7.0))
    assert re.search(message, refused("encrypt", "classify", "--server", server.url, *words))


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:99999", "http://"])
def test_servers_that_are_none(refused, url):
    assert "polybound: error" in refused("encrypt", "classify", "--server", url, "digits:0")


def test_a_server_that_offers_unsafe_parameters_is_refused(plan):
    """A malicious server: the client leaves before it has made a key."""
    liar = fuzz.Liar()
    content = json.loads(plan.public.to_json()) | {"bits": [60, 60, 60, 60]}
    liar.answers["plan"] = fuzz.response(json.dumps(content).encode())
    with pytest.raises(PolyboundError, match="128-bit security"):
        RemoteClassifier(liar.url)


def test_without_the_extra_each_command_that_encrypts_says_which():
    code = """
import sys
sys.modules["tenseal"] = None
from polybound.cli import main
for words in (["serve", "pn-4"], ["classify", "digits:0"], ["demo"]):
    sys.argv = ["polybound", "encrypt", *words]
    try:
        main()
    except SystemExit as stop:
        print(stop.code)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["2"] * 3
    assert result.stderr.count("pip install 'polybound[encrypted]'") == 3 and "Traceback" not in result.stderr


def test_networks_that_do_not_fit_are_not_served(refused, tmp_path):
    network(4, 4, 12, scale=1e6).save(tmp_path / "large.safetensors")
    message = refused("encrypt", "serve", tmp_path / "large.safetensors", "--port", "0")
    assert "does not fit" in message and "reach" in message


@pytest.mark.slow
def test_the_demo(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYBOUND_DATA", str(tmp_path))
    command = [sys.executable, "-m", "polybound", "encrypt", "demo", "--data-dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "never decrypted on the way" in result.stdout and "label:" in result.stdout


def test_a_short_campaign(capfd):
    """Some mutants; `tests/fuzz/encrypted_server.py --count 10000` is the long one."""
    fuzz.attack_server(np.random.default_rng(1), 40)
    # A process of its own: what is wrong at these ends would end it.
    command = [sys.executable, fuzz.__file__, "--part", "ends", "--count", "20", "--seed", "1"]
    assert subprocess.run(command).returncode == 0, capfd.readouterr()
