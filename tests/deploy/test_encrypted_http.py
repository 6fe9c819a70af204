"""Encrypted inference over a socket: two real processes, captured traffic, hostile requests, many clients."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest
import zstandard

from helpers.encrypted_networks import images, network
from polybound.deploy import Client, RemoteClassifier, Server, plan_encryption
from polybound.deploy.encrypted.plan import PLAN_HEADER
from polybound.deploy.encrypted.seal import HEADER, sealapi, split
from polybound.errors import PolyboundError

MODEL = network(2, 4, 12)


class Process:
    """`polybound encrypt serve` in a process of its own, its temporary files in a folder of the test's."""

    def __init__(self, folder, *options):
        self.files = folder / "tmp"
        self.files.mkdir()
        path = folder / "model.safetensors"
        MODEL.save(path)
        command = [sys.executable, "-m", "polybound", "encrypt", "serve", str(path), "--port", "0", *options]
        environment = {**os.environ, "TMPDIR": str(self.files), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        line = self.process.stdout.readline()
        assert " on http://127.0.0.1:" in line, self.process.stderr.read()
        self.url = re.search(r"http://[\d.:]+", line)[0]

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        self.process.terminate()
        _, error = self.process.communicate()
        return error


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = Process(tmp_path_factory.mktemp("server"), "--clients", "24")
    yield process
    assert process.alive()
    assert "Traceback" not in process.stop()
    assert not list(process.files.iterdir())  # its temporary files are gone with it


@pytest.fixture(scope="module")
def plan():
    return plan_encryption(MODEL)


def post(url, path, body, digest, **headers):
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("POST", path, body, {PLAN_HEADER: digest, **headers})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


class Wire(threading.Thread):
    """A relay in front of a server that keeps what goes to it and what comes back."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.target = urlsplit(url)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sent, self.received = bytearray(), bytearray()
        self.start()

    def run(self):
        near, _ = self.listener.accept()
        far = socket.create_connection((self.target.hostname, self.target.port))
        back = threading.Thread(target=self.relay, args=(far, near, self.received), daemon=True)
        back.start()
        self.relay(near, far, self.sent)
        back.join()
        for end in (near, far, self.listener):
            end.close()

    @staticmethod
    def relay(source, target, kept):
        while chunk := source.recv(65536):
            kept += chunk
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


def bodies_of(traffic):
    """The bodies of the POSTs of a connection."""
    found = []
    while traffic:
        head, _, rest = traffic.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        size = int(length[1]) if length else 0
        if head.startswith(b"POST"):
            found.append(rest[:size])
        traffic = rest[size:]
    return found


def test_two_processes_and_what_passes_between_them(server, plan):
    wire = Wire(server.url)
    x = images()
    with RemoteClassifier(wire.url) as remote:
        assert remote.plan == plan.public
        for image, exact in zip(x, plan.polynomial(x), strict=True):
            answer = remote.classify(image)
            assert np.abs(answer.logits - exact).max() <= plan.error and answer.name == str(exact.argmax())
            assert answer.sent > 1000 and answer.received > 1000 and answer.seconds > 0
    wire.join(10)
    sent = bytes(wire.sent)
    # The secret key is not in what the server received, packed or not, nor in its files.
    client = remote.client
    secret = client.key.scheme.to_bytes(client.key._generator.secret_key())
    words = zstandard.ZstdDecompressor().decompressobj().decompress(secret[HEADER.size :])
    assert secret[64:128] not in sent
    bodies = bodies_of(sent)
    assert len(bodies) == 1 + len(x)  # keys once, then requests
    found = 0
    for body in bodies:
        while len(body) > HEADER.size and body[:2] == b"\x5e\xa1":
            size = HEADER.unpack(body[: HEADER.size])[-1]
            plain = zstandard.ZstdDecompressor().decompressobj().decompress(body[HEADER.size : size])
            assert all(words[at : at + 64] not in plain for at in range(1024, len(words) - 64, len(words) // 40))
            body, found = body[size:], found + 1
    assert found == 3 + len(x) * plan.layout.uploads
    assert not [path for path in server.files.rglob("*") if path.is_file()]
    # What was captured decrypts to nothing without the key.
    part = split(bodies[1], Server(plan).request_forms, "it")[0]
    values = []
    for owner in (client, Client(plan.public)):
        result = sealapi.Plaintext()
        owner.key._decryptor.decrypt(owner.key.scheme.load(sealapi.Ciphertext(), part, "it"), result)
        values.append(np.abs(np.array(owner.key.scheme.encoder.decode_complex(result))))
    assert values[0].max() < 2 and values[1].min() > 1e6


@pytest.fixture(scope="module")
def known(server, plan):
    """A client whose keys the server has, their digest, and a good request."""
    client = Client(plan.public)
    status, content = post(server.url, "/keys", client.keys(), plan.public.digest)
    assert status == 201
    return client, json.loads(content)["keys"], client.encrypt(images()[0])


def damaged(request):
    changed = bytearray(request)
    changed[20:200] = bytes(180)
    return bytes(changed)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (damaged, 400, "cannot be decompressed"),
        (lambda request: request[:-1], 400, "truncated"),
        (lambda request: request[:10], 400, "ends before"),
        (lambda request: b"", 400, "ends before"),
        (lambda request: b"%s%d" * 1000, 400, "not in SEAL's format"),
        (lambda request: request + request, 413, "bytes are more than"),
        (lambda request: request + b"x", 400, "goes on"),
    ],
)
def test_bad_requests_get_a_clear_answer(server, plan, known, change, status, message):
    client, digest, request = known
    found, content = post(server.url, f"/classify/{digest}", change(request * 1), plan.public.digest)
    # Two ciphertexts where one is wanted may also be within the limit of the sizes.
    assert found in (status, 400) and (message in json.loads(content)["error"] or found != status)
    good, reply = post(server.url, f"/classify/{digest}", request, plan.public.digest)
    assert good == 200 and np.abs(client.decrypt(reply) - plan.polynomial(images()[:1])[0]).max() <= plan.error


def test_requests_of_other_parameters_get_a_clear_answer(server, plan, known):
    _, digest, request = known
    other = replace(plan.public, pixels=plan.public.pixels - 1)
    assert post(server.url, f"/classify/{digest}", request, other.digest)[0] == 409
    assert post(server.url, f"/classify/{digest}", request, "")[0] == 409
    status, content = post(server.url, f"/classify/{digest}", Client(other).encrypt(images()[0]), plan.public.digest)
    assert status == 400 and "other parameters" in json.loads(content)["error"]
    status, content = post(
        server.url, "/keys", Client(replace(other, bits=(58, *other.bits[1:]))).keys(), plan.public.digest
    )
    assert status in (400, 413)
    assert post(server.url, f"/classify/{'0' * 64}", request, plan.public.digest)[0] == 404
    assert post(server.url, "/classify/../../etc/passwd", b"x", plan.public.digest)[0] == 404
    assert post(server.url, "/elsewhere", b"", plan.public.digest)[0] == 404
    assert post(server.url, "/plan", b"", plan.public.digest)[0] == 405
    # Another client's keys: an answer that only garbage comes out of.
    stranger = Client(plan.public)
    status, reply = post(server.url, f"/classify/{digest}", stranger.encrypt(images()[0]), plan.public.digest)
    assert status == 200 and np.abs(stranger.decrypt(reply) - plan.polynomial(images()[:1])[0]).max() > 1


def test_oversized_bodies_are_refused_before_they_are_read(server, plan, known):
    _, digest, _ = known
    for path in ("/keys", f"/classify/{digest}"):
        for headers, expected in (
            ({"Content-Length": str(2**40)}, b" 413 "),
            ({"Transfer-Encoding": "chunked"}, b" 411 "),
        ):
            parts = urlsplit(server.url)
            with socket.create_connection((parts.hostname, parts.port), timeout=60) as wire:
                lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"{PLAN_HEADER}: {plan.public.digest}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                wire.sendall("\r\n".join([*lines, "", ""]).encode())
                assert expected in wire.recv(4096).split(b"\r\n")[0] + b" "
    assert server.alive()


def test_a_client_that_hangs_up_does_no_harm(server, plan, known):
    _, digest, request = known
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port)) as wire:
        head = f"POST /classify/{digest} HTTP/1.1\r\nHost: localhost\r\n{PLAN_HEADER}: {plan.public.digest}\r\n"
        wire.sendall(f"{head}Content-Length: {len(request)}\r\n\r\n".encode() + request[:1000])
    assert post(server.url, f"/classify/{digest}", request, plan.public.digest)[0] == 200


@pytest.mark.slow
def test_four_clients_at_once(server, plan):
    x = images(count=5, seed=5)
    exact = plan.polynomial(x)

    def ask(_):
        with RemoteClassifier(server.url) as remote:
            return np.array([remote.classify(image).logits for image in x])

    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(ask, range(4)):
            assert np.abs(logits - exact).max() <= plan.error


def test_classify_on_the_command_line(server, plan, cli, tmp_path):
    x = images(count=3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", X=x[:1], y=np.zeros(1))
    records = cli("encrypt", "classify", "--server", server.url, tmp_path / "x.npy", tmp_path / "x.npz", "--json").json
    assert [record["class"] for record in records] == [str(i) for i in plan.polynomial(x[[0, 1, 2, 0]]).argmax(1)]
    shown = cli("encrypt", "classify", "--server", server.url, tmp_path / "x.npy")
    assert shown.code == 0 and "x.npy:2" in shown.out and "sent once" in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.npy"], "no such file"),
        (["digits:0"], r"digits: .* is wanted"),
        (["digits:9999"], "test split has images 0 to 359"),
        (["bad.npy"], "not an array"),
        (["big.npy"], "between -1 and 1"),
        (["text.npy"], "is wanted"),
    ],
)
def test_bad_images_are_refused(server, refused, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    np.save(tmp_path / "big.npy", np.full(12, 7.0))
    np.save(tmp_path / "text.npy", np.array(["a"] * 12))
    assert re.search(message, refused("encrypt", "classify", "--server", server.url, *words))


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:99999", "http://"])
def test_servers_that_are_none(refused, url):
    assert "polybound: error" in refused("encrypt", "classify", "--server", url, "digits:0")


def test_a_server_that_offers_unsafe_parameters_is_refused(plan):
    """A malicious server: the client leaves before it has made a key."""
    content = json.dumps(json.loads(plan.public.to_json()) | {"bits": [60, 60, 60, 60]}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PolyboundError, match="128-bit security"):
            RemoteClassifier(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_without_the_extra_each_command_says_which():
    code = """
import sys
sys.modules["tenseal"] = None
from polybound.cli import main
for words in (["serve", "pn-4"], ["classify", "digits:0"], ["demo"], ["plan", "pn-4"]):
    sys.argv = ["polybound", "encrypt", *words]
    try:
        main()
    except SystemExit as stop:
        print(stop.code)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["2"] * 4
    assert result.stderr.count("pip install 'polybound[encrypted]'") == 4 and "Traceback" not in result.stderr


def test_networks_that_do_not_fit_are_not_served(refused, tmp_path):
    network(4, 4, 12, scale=1e6).save(tmp_path / "large.safetensors")
    message = refused("encrypt", "serve", tmp_path / "large.safetensors", "--port", "0")
    assert "does not fit" in message and "reach" in message


@pytest.mark.slow
def test_the_demo(tmp_path):
    command = [sys.executable, "-m", "polybound", "encrypt", "demo", "--data-dir", str(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "POLYBOUND_DATA": str(tmp_path)}
    )
    assert result.returncode == 0, result.stderr
    assert "never decrypted on the way" in result.stdout and "label:" in result.stdout
