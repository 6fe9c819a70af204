"""Encrypted inference in one process: right answers, estimates that hold, and nothing but logits in a reply."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers import encrypted_mutants as mutants
from helpers.encrypted_networks import images, network
from helpers.profiles import examples
from polybound.deploy import BatchClient, BatchServer, Client, Server, plan_batches, plan_encryption
from polybound.deploy.encrypted.client import SecretKey
from polybound.deploy.encrypted.noise import peaks, switch_variance
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


def some_zero():
    model = network(3, 4, 12)
    model.V.data[:, 1:, 3:] = 0.0
    model.C.data[1] = 0.0
    return model


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda: network(1, 3, 7, 2), {}),
        (lambda: network(2, 4, 12), {"uploads": 1}),
        (lambda: network(3, 5, 64, 10), {}),
        (lambda: network(4, 2, 30, 5), {"uploads": 4}),
        (lambda: network(2, 1, 1, 1), {"uploads": 1}),
        (lambda: network(8, 3, 12), {}),
        (lambda: network(4, 4, 12), {"tolerance": 1e-6}),
        (lambda: network(2, 4, 12), {"domain": (-1.0, 2.0)}),
        (lambda: pb.NCP(12, 4, 3, degree=2, seed=1), {}),
        (lambda: network(3, 4, 12, form="product"), {}),
        (some_zero, {}),
        (lambda: pb.example("pn-4"), {}),
    ],
)
def test_logits_are_those_of_the_network(model, options):
    model = model()
    pair, x = Pair(model, **options), images(model.features, 2)
    exact = model.double()(torch.from_numpy(x)).detach().numpy()
    for image, logits in zip(x, exact, strict=True):
        off = np.abs(pair.logits(image) - logits).max()
        assert off <= pair.plan.error_at(image[None]) <= pair.plan.error <= options.get("tolerance", 1.0)
    assert "tolerance" not in options or pair.plan.ring == 16384


@pytest.mark.parametrize("part", ["V", "C"])
def test_networks_that_are_constant_are_refused(part):
    model = network(2, 4, 12)
    getattr(model, part).data.zero_()
    with pytest.raises(PolyboundError, match="constant"):
        Server(plan_encryption(model))


def test_a_plan_without_room_for_its_domain(pair):
    with pytest.raises(PolyboundError, match="no room"):
        Client(replace(pair.plan.public, domain=(-1e40, 1e40))).encrypt(np.full(12, 1e40))


@pytest.mark.parametrize("image", [np.zeros(11), np.full(12, 1.1), np.full(12, np.nan), np.full(12, np.inf)])
def test_a_client_encrypts_images_of_the_plan_only(pair, image):
    with pytest.raises(PolyboundError, match=r"must have shape|between -1 and 1"):
        pair.client.encrypt(image)


def test_keys_and_requests_are_seeded(pair):
    ring, primes = pair.plan.ring, len(pair.plan.bits)
    rotations = len(pair.plan.layout.steps) + 1
    whole = 2 * primes * (primes - 1) * ring * 8
    assert len(pair.content) < 0.55 * whole * (rotations + 1) + 2 * primes * ring * 8
    assert len(pair.client.encrypt(images()[0])) < 0.55 * 2 * (primes - 1) * ring * 8 * pair.plan.layout.uploads


def test_a_reply_holds_the_logits_and_random_values(pair):
    """The slots besides the logits differ from reply to reply, spread over the range of the logits."""
    request, client = pair.client.encrypt(images()[0]), pair.client
    replies = [pair.server.classify(request, pair.keys) for _ in range(2)]
    assert replies[0] != replies[1]
    found = [client.key.decrypt(reply, client.reply) for reply in replies]
    used, reach = list(pair.plan.places), pair.plan.reach
    np.testing.assert_allclose(found[0][used], found[1][used], atol=2 * pair.plan.error)
    masks = np.delete(np.array(found), used, axis=1)
    assert abs(np.corrcoef(masks)[0, 1]) < 0.1
    assert (masks.std(1) > reach / 2).all()


DAMAGED = Pair(network(2, 2, 4))
DAMAGED_REQUEST = DAMAGED.client.encrypt(images(4)[0])


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


@pytest.mark.parametrize("bits", [(60, 40, 40, 60), (46, 56, 56, 60), (54, 53, 53, 58)])
def test_key_switches_err_as_the_estimates_count_them(bits):
    """In slots far from the first, a digit of each prime adds a quarter of its variance, whatever the primes' order."""
    ring, x = 8192, images(4096, 1)[0]
    key, rotations = SecretKey(ring, bits, (-1.0, 1.0)), sealapi.GaloisKeys()
    scheme = key.scheme
    path = str(scheme.folder / "keys")
    key._generator.create_galois_keys(scheme.rotations([1])).save(path)
    rotations.load(scheme.context, path)
    encrypted, turned, found = sealapi.Ciphertext(), sealapi.Ciphertext(), []
    key._encryptor.encrypt_symmetric(scheme.plain(x, 2.0**40), encrypted)
    sealapi.Evaluator(scheme.context).rotate_vector(encrypted, 1, rotations, turned)
    for one in (encrypted, turned):
        plain = sealapi.Plaintext()
        key._decryptor.decrypt(one, plain)
        found.append(np.array(scheme.encoder.decode_double(plain)))
    calm = peaks(ring // 2) < 1
    measured = 2 * ((found[1] - np.roll(found[0], -1))[calm] * 2.0**40).var()
    assert measured <= switch_variance(ring, bits[:-1], bits[-1]) <= 5 * measured


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100, 5000, -1])
def test_truncated_messages_are_refused(length):
    reply = DAMAGED.server.classify(DAMAGED_REQUEST, DAMAGED.keys)
    for content, read in (
        (DAMAGED_REQUEST, lambda request: DAMAGED.server.classify(request, DAMAGED.keys)),
        (DAMAGED.content, DAMAGED.server.load_keys),
        (reply, DAMAGED.client.decrypt),
    ):
        with pytest.raises(PolyboundError):
            read(content[:length])


def test_messages_with_more_than_is_wanted_are_refused(pair):
    request = pair.client.encrypt(images()[0])
    for content in (request + b"x", request + request, b"x" * 1000, HEADER.pack(0xA15E, 16, 4, 1, 2, 0, 2**60) + b"x"):
        with pytest.raises(PolyboundError):
            pair.server.classify(content, pair.keys)
    with pytest.raises(PolyboundError, match="more than"):
        split(request, [replace(form, pieces=()) for form in pair.server.request_forms], "it")


def test_messages_of_other_parameters_are_refused(pair):
    public, key = pair.plan.public, pair.client.key
    for other in (replace(public, pixels=public.pixels + 1), replace(public, bits=(58, *public.bits[1:]))):
        with pytest.raises(PolyboundError, match=r"other parameters|cannot be read"):
            pair.server.classify(Client(other).encrypt(images()[0]), pair.keys)
    with pytest.raises(PolyboundError):
        pair.server.load_keys(Client(replace(public, bits=(58, *public.bits[1:]))).keys())
    parts = [bytes(part) for part in split(pair.content, pair.server.key_forms, "it")]
    for steps in ([1], range(5, 5 + len(pair.plan.layout.steps))):
        other = key._generator.create_galois_keys(key.scheme.rotations(steps))
        with pytest.raises(PolyboundError, match=r"bytes instead of|other parameters"):
            pair.server.load_keys(b"".join([parts[0], key.scheme.to_bytes(other), parts[2]]))


def test_a_hostile_reply_does_not_end_the_client(pair):
    """The client loads nothing that SEAL could stumble over, in a process that SEAL would end."""
    request, client = pair.client.encrypt(images()[0]), pair.client
    reply = pair.server.classify(request, pair.keys)
    seeded = mutants.replaced(request, 0, mutants.damaged_seed)
    for bad in (seeded, request, mutants.huge(reply, 0, 2**28), mutants.all_zero(reply), reply + b"x", reply[:80]):
        with pytest.raises(PolyboundError, match="the reply"):
            client.decrypt(bad)
    for scale in (0.0, -1.0, np.inf, np.nan, 1e-300, 1e300):
        bad = mutants.replaced(reply, 0, lambda body, s=scale: body[:57] + np.float64(s).tobytes() + body[65:])
        with pytest.raises(PolyboundError, match="scale"):
            client.decrypt(bad)


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
    model = network(degree, 3, 6)
    model.C.data[0] = 0.0
    plan = plan_batches(model)
    server, client = BatchServer(plan), BatchClient(plan.parameters, 6)
    keys, x = server.load_keys(client.keys()), images(6, 50)
    logits = client.decrypt(server.classify(client.encrypt(x, compressed), keys), 50)
    assert np.abs(logits - plan.polynomial(x)).max() <= plan.error_at(x) <= plan.error


@pytest.mark.parametrize("degree", [1, 3])
def test_what_masks_a_reply_is_in_the_estimate(degree):
    """Networks of tiny values err by nothing else."""
    model, x = network(degree, 3, 6), images(6, 50)
    for weights in (model.V, model.C):
        weights.data *= 1e-6
    plan = plan_batches(model)
    server, client = BatchServer(plan), BatchClient(plan.parameters, 6)
    logits = client.decrypt(server.classify(client.encrypt(x), server.load_keys(client.keys())), 50)
    assert np.abs(logits - plan.polynomial(x)).max() <= plan.error_at(x) <= plan.error < 1e-4


def test_damaged_batches_are_refused():
    plan = plan_batches(network(2, 3, 3))
    server, client = BatchServer(plan), BatchClient(plan.parameters, 3)
    content = client.keys()
    for change in (mutants.fewer_parts, mutants.damaged_seed):
        with pytest.raises(PolyboundError, match="the keys"):
            server.load_keys(mutants.replaced(content, 0, change))
    with pytest.raises(PolyboundError, match="the keys"):
        server.load_keys(mutants.huge(content, 0, 2**28))
    keys = server.load_keys(content)
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
        zero = mutants.replaced(good[0], 0, lambda body: body[:97] + bytes(len(body) - 97))
        largest = mutants.replaced(good[0], 0, lambda body: body[:-8] + b"\xff" * 8)
        for first in (good[0][:-1], b"", mutants.huge(good[0], 0, 2**28), zero, largest):
            with pytest.raises(PolyboundError, match="the request"):
                server.classify([first, *good[1:]], keys)
        for request in (good[:2], [*good, good[0]]):
            with pytest.raises(PolyboundError, match="3 ciphertexts"):
                server.classify(request, keys)
    reply = server.classify(good, keys)
    with pytest.raises(PolyboundError, match="the reply"):
        client.decrypt([mutants.huge(reply[0], 0, 2**28), *reply[1:]], 5)


@pytest.mark.parametrize("x", [np.zeros((5000, 3)), np.zeros((0, 3)), np.zeros((5, 4))])
def test_batches_that_do_not_fit_are_refused(x):
    client = BatchClient(plan_batches(network(2, 3, 3)).parameters, 3)
    with pytest.raises(PolyboundError, match="images of 3 pixels"):
        client.encrypt(x)


@pytest.mark.parametrize("domain", [(-1.0, 1.0), (0.0, 1.0)])
def test_a_batch_client_encrypts_pixels_of_the_domain_only(domain):
    client = BatchClient(plan_batches(network(2, 2, 3), domain).parameters, 3)
    for bad in (np.full((2, 3), 255.0), np.full((2, 3), -1.1), np.array([[0.5, np.nan, 0.5]])):
        with pytest.raises(PolyboundError, match="pixels must lie between"):
            client.encrypt(bad)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pn-4", "pn-4-bound-1"])
def test_the_estimate_is_never_exceeded(name):
    pair = Pair(pb.example(name))
    x = images(784, 24, seed=3)
    x[::2] = np.sign(x[::2])
    errors = [
        np.abs(pair.logits(image) - logits).max() for image, logits in zip(x, pair.plan.polynomial(x), strict=True)
    ]
    bounds = [pair.plan.error_at(image[None]) for image in x]
    assert (np.array(errors) <= np.array(bounds)).all() and max(bounds) <= pair.plan.error
