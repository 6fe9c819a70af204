"""Encrypted inference in one process: right answers, estimates that hold, and nothing but logits in a reply."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.encrypted_networks import images, network
from helpers.profiles import examples
from polybound.deploy import BatchClient, BatchServer, Client, Server, plan_batches, plan_encryption
from polybound.deploy.encrypted.polynomial import read_polynomial
from polybound.deploy.encrypted.seal import HEADER, Scheme, sealapi, split
from polybound.errors import PolyboundError


class Pair:
    """A client and a server of one plan, and the client's keys on the server."""

    def __init__(self, model, **options):
        self.plan = plan_encryption(model, **options)
        self.server, self.client = Server(self.plan), Client(self.plan.public)
        self.content = self.client.keys()
        self.keys = self.server.load_keys(self.content)

    def logits(self, image):
        return self.client.decrypt(self.server.classify(self.client.encrypt(image), self.keys))


@pytest.fixture(scope="module")
def pair():
    return Pair(network(2, 4, 12))


@pytest.mark.parametrize(
    ("degree", "rank", "features", "classes", "uploads"),
    [(1, 3, 7, 2, 2), (2, 4, 12, 3, 1), (3, 5, 64, 10, 2), (4, 2, 30, 5, 4), (2, 1, 1, 1, 1), (2, 3, 5, 9, 2)],
)
def test_logits_are_those_of_the_network(degree, rank, features, classes, uploads):
    x = images(features, 3)
    pair = Pair(network(degree, rank, features, classes), uploads=uploads)
    for image, exact in zip(x, pair.plan.polynomial(x), strict=True):
        assert np.abs(pair.logits(image) - exact).max() <= pair.plan.error_at(image[None]) <= pair.plan.error


@pytest.mark.parametrize("degree", [5, 8])
def test_higher_degrees(degree):
    x = images(12, 2)
    pair = Pair(network(degree, 3, 12))
    for image, exact in zip(x, pair.plan.polynomial(x), strict=True):
        assert np.abs(pair.logits(image) - exact).max() <= pair.plan.error_at(image[None])


def test_a_smaller_tolerance_takes_the_larger_ring():
    pair, x = Pair(network(4, 4, 12), tolerance=1e-6), images()
    assert pair.plan.parameters.ring == 16384
    for image, exact in zip(x[:2], pair.plan.polynomial(x), strict=False):
        assert np.abs(pair.logits(image) - exact).max() <= pair.plan.error_at(image[None]) <= 1e-6


def test_an_ncp_of_degree_two_and_the_product_form():
    for model in (pb.NCP(12, 4, 3, degree=2, seed=1), network(3, 4, 12, form="product")):
        pair, image = Pair(model), images(12, 1)[0]
        exact = model.double()(pb_tensor(image)).detach().numpy()[0]
        assert np.abs(pair.logits(image) - exact).max() <= pair.plan.error


def pb_tensor(image):
    import torch

    return torch.from_numpy(image)[None]


def test_the_example_network_gives_the_class_of_the_plain_one():
    pair = Pair(pb.example("pn-4"))
    x = images(784, 2)
    exact = pair.plan.polynomial(x)
    for image, logits in zip(x, exact, strict=True):
        found = pair.logits(image)
        assert np.abs(found - logits).max() <= pair.plan.error_at(image[None])


@pytest.mark.parametrize("part", ["V", "C"])
def test_networks_that_are_constant_are_refused(part):
    model = network(2, 4, 12)
    getattr(model, part).data.zero_()
    with pytest.raises(PolyboundError, match="constant"):
        Server(plan_encryption(model))


def test_some_weights_may_be_zero():
    model = network(3, 4, 12)
    model.V.data[:, 1:, 3:] = 0.0
    model.C.data[1] = 0.0
    pair, image = Pair(model), images()[0]
    assert np.abs(pair.logits(image) - pair.plan.polynomial(image[None])[0]).max() <= pair.plan.error


def test_a_plan_without_room_for_its_domain(pair):
    with pytest.raises(PolyboundError, match="no room"):
        Client(replace(pair.plan.public, domain=(-1e40, 1e40))).encrypt(np.full(12, 1e40))


@pytest.mark.parametrize("degree", [1, 2])
def test_another_domain(degree):
    model = network(degree, 4, 12)
    pair = Pair(model, domain=(0.0, 3.0))
    image = images(12, 1)[0] + 1.5
    assert np.abs(pair.logits(image) - pair.plan.polynomial(image[None])[0]).max() <= pair.plan.error
    with pytest.raises(PolyboundError, match="between 0 and 3"):
        pair.client.encrypt(image - 2)


@pytest.mark.parametrize("image", [np.zeros(11), np.full(12, 1.1), np.full(12, np.nan), np.full(12, np.inf)])
def test_a_client_encrypts_images_of_the_plan_only(pair, image):
    with pytest.raises(PolyboundError, match=r"must have shape|between"):
        pair.client.encrypt(image)


def test_keys_and_requests_are_seeded(pair):
    ring, primes = pair.plan.public.ring, len(pair.plan.public.bits)
    rotations = len(pair.plan.layout.steps) + 1
    whole = 2 * primes * (primes - 1) * ring * 8
    assert len(pair.content) < 0.55 * whole * (rotations + 1) + 2 * primes * ring * 8
    assert len(pair.client.encrypt(images()[0])) < 0.55 * 2 * (primes - 1) * ring * 8 * pair.plan.layout.uploads


def test_a_reply_holds_the_logits_and_random_values(pair):
    """The slots besides the logits differ from reply to reply, spread over the range of the logits."""
    request, client = pair.client.encrypt(images()[0]), pair.client
    found = [client.key.decrypt(pair.server.classify(request, pair.keys), client._reply) for _ in range(2)]
    first, classes, reach = pair.plan.layout.first, pair.plan.layout.classes, pair.plan.ranges.logits.max()
    used = np.arange(first, first + classes)
    np.testing.assert_allclose(found[0][used], found[1][used], atol=2 * pair.plan.error)
    masks = np.delete(np.array(found), used, axis=1)
    assert abs(np.corrcoef(masks)[0, 1]) < 0.1
    assert (masks.std(1) > reach / 2).all()


def test_the_same_request_gets_another_ciphertext(pair):
    request = pair.client.encrypt(images()[0])
    first, second = (pair.server.classify(request, pair.keys) for _ in range(2))
    assert first != second
    np.testing.assert_allclose(pair.client.decrypt(first), pair.client.decrypt(second), atol=2 * pair.plan.error)


def test_without_the_key_a_request_is_noise(pair):
    request = pair.client.encrypt(images()[0])
    (part, *_) = split(request, pair.server.request_forms, "it")
    stranger = Client(pair.plan.public)
    values = []
    for client in (pair.client, stranger):
        plain = sealapi.Plaintext()
        client.key._decryptor.decrypt(client.key.scheme.load(sealapi.Ciphertext(), part, "it"), plain)
        values.append(np.array(client.key.scheme.encoder.decode_complex(plain)))
    pixels = images()[0]
    np.testing.assert_allclose(values[0][:6], pixels[:6] + 1j * pixels[6:], atol=1e-3)
    assert np.abs(values[1]).min() > 1e6


def test_keys_are_public_ones(pair):
    """None of what is sent can be loaded as a secret key, nor holds one."""
    import zstandard

    limits, key = pair.server.key_forms, pair.client.key
    for part in split(pair.content, limits, "it"):
        with pytest.raises(PolyboundError):
            key.scheme.load(sealapi.SecretKey(), part, "it")
    secret = key.scheme.to_bytes(key._generator.secret_key())
    words = zstandard.ZstdDecompressor().decompressobj().decompress(secret[HEADER.size :])[-1024:]
    request = split(pair.client.encrypt(images()[0]), pair.server.request_forms, "it")
    sent = [*split(pair.content, limits, "it"), *request]
    for part in sent:
        assert words not in zstandard.ZstdDecompressor().decompressobj().decompress(bytes(part[HEADER.size :]))


@settings(max_examples=examples(40))
@given(st.integers(0, 399), st.binary(min_size=1, max_size=8), st.booleans())
def test_damaged_requests_are_refused(place, change, late):
    """Whatever bytes: a refusal, or a ciphertext of the plan's parameters; no other error, no crash."""
    request = bytearray(DAMAGED_REQUEST)
    where = len(request) // 2 + place if late else place
    request[where : where + len(change)] = change
    try:
        reply = DAMAGED.server.classify(bytes(request), DAMAGED.keys)
    except PolyboundError:
        return
    assert np.isfinite(DAMAGED.client.decrypt(reply)).all()


DAMAGED = Pair(network(2, 2, 4))
DAMAGED_REQUEST = DAMAGED.client.encrypt(images(4)[0])


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100, 5000, -1])
def test_truncated_messages_are_refused(pair, length):
    request, reply = pair.client.encrypt(images()[0]), pair.server.classify(pair.client.encrypt(images()[0]), pair.keys)
    with pytest.raises(PolyboundError):
        pair.server.classify(request[:length], pair.keys)
    with pytest.raises(PolyboundError):
        pair.server.load_keys(pair.content[:length])
    with pytest.raises(PolyboundError):
        pair.client.decrypt(reply[:length])


def test_messages_with_more_than_is_wanted_are_refused(pair):
    request = pair.client.encrypt(images()[0])
    for content in (request + b"x", request + request, b"x" * 1000, HEADER.pack(0xA15E, 16, 4, 1, 2, 0, 2**60) + b"x"):
        with pytest.raises(PolyboundError):
            pair.server.classify(content, pair.keys)
    with pytest.raises(PolyboundError, match="more than"):
        split(request, [replace(form, pieces=()) for form in pair.server.request_forms], "it")


def test_requests_of_other_parameters_are_refused(pair):
    public = pair.plan.public
    for other in (replace(public, pixels=public.pixels + 1), replace(public, bits=(58, *public.bits[1:]))):
        with pytest.raises(PolyboundError, match=r"other parameters|cannot be read"):
            pair.server.classify(Client(other).encrypt(images()[0]), pair.keys)
    with pytest.raises(PolyboundError):
        pair.server.load_keys(Client(replace(public, bits=(58, *public.bits[1:]))).keys())


def test_keys_for_other_rotations_are_refused(pair):
    key, parts = pair.client.key, [bytes(part) for part in split(pair.content, pair.server.key_forms, "it")]
    for steps in ([1], range(5, 5 + len(pair.plan.layout.steps))):
        other = key._generator.create_galois_keys(key.scheme.rotations(steps))
        with pytest.raises(PolyboundError, match=r"bytes instead of|other parameters"):
            pair.server.load_keys(b"".join([parts[0], key.scheme.to_bytes(other), parts[2]]))


def test_seal_itself_refuses_what_is_not_secure():
    with pytest.raises(PolyboundError, match="refuses"):
        Scheme(8192, [60, 60, 60, 60])


def test_files_are_private_and_gone(pair):
    folder = pair.server.scheme.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    pair.logits(images()[0])
    assert not list(folder.iterdir())
    other = Scheme(8192, [60, 60])
    other.close()
    assert not other.folder.exists()


@pytest.mark.parametrize(("degree", "compressed"), [(1, False), (2, True), (3, False), (4, False)])
def test_batches(degree, compressed):
    plan = plan_batches(network(degree, 3, 6))
    server, client = BatchServer(plan), BatchClient(plan.parameters, 6)
    keys = server.load_keys(client.keys())
    x = images(6, 50)
    logits = client.decrypt(server.classify(client.encrypt(x, compressed), keys), 50)
    exact = plan.polynomial(x)
    assert np.abs(logits - exact).max() <= plan.error_at(x) <= plan.error


def test_weights_of_a_batch_that_are_zero():
    model = network(2, 3, 6)
    model.C.data[0] = 0.0
    plan = plan_batches(model)
    server, client = BatchServer(plan), BatchClient(plan.parameters, 6)
    logits = client.decrypt(server.classify(client.encrypt(images(6, 5)), server.load_keys(client.keys())), 5)
    assert np.abs(logits[:, 0]).max() <= plan.error


def test_damaged_batches_are_refused():
    plan = plan_batches(network(2, 3, 3))
    server, client = BatchServer(plan), BatchClient(plan.parameters, 3)
    keys = server.load_keys(client.keys())
    for compressed in (False, True):
        good = client.encrypt(images(3, 5), compressed)
        for place in [0, 2, 4, 5, 8, 16, 20, 48, 49, 57, 65, 73, 81, 100, 120, 1000]:
            bad = bytearray(good[1])
            bad[place] ^= 0xFF
            try:
                server.classify([good[0], bytes(bad), good[2]], keys)
            except PolyboundError:
                continue
            # Only residues may change, within their moduli; the checksum-less words are the client's own.
            assert place >= 16 + 97 or compressed
        for request in (good[:2], [*good, good[0]], [good[0][:-1], *good[1:]], [b"", *good[1:]]):
            with pytest.raises(PolyboundError):
                server.classify(request, keys)
    largest = bytearray(client.encrypt(images(3, 5))[0])
    largest[-8:] = b"\xff" * 8
    with pytest.raises(PolyboundError, match="residues"):
        server.classify([bytes(largest), *good[1:]], keys)


@pytest.mark.parametrize("x", [np.zeros((5000, 3)), np.zeros((0, 3)), np.zeros((5, 4))])
def test_batches_that_do_not_fit_are_refused(x):
    client = BatchClient(plan_batches(network(2, 3, 3)).parameters, 3)
    with pytest.raises(PolyboundError, match="images of 3 pixels"):
        client.encrypt(x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pn-4", "pn-4-bound-1"])
def test_the_estimate_is_never_exceeded(name):
    pair = Pair(pb.example(name))
    x = images(784, 24, seed=3)
    x[::2] = np.sign(x[::2])
    exact = read_polynomial(pb.example(name))(x)
    errors = [np.abs(pair.logits(image) - logits).max() for image, logits in zip(x, exact, strict=True)]
    bounds = [pair.plan.error_at(image[None]) for image in x]
    assert (np.array(errors) <= np.array(bounds)).all() and max(bounds) <= pair.plan.error
