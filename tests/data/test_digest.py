"""Digests: equal for equal content of a whole data set, whatever is loaded of it; never those of other content."""

import copy
import gzip
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import data as on_disk
from helpers.errors import refuses
from polybound.data import Dataset, Directories, Identity, MissingDataError, digest_of, load, load_digits, missing
from polybound.data import names as data_names
from polybound.data.catalogue import SOURCES
from polybound.errors import FileFormatError

# So that runs of different versions can be compared. Whoever changes one of these changes what old runs refer to.
DIGESTS = {
    "digits": "18c6a77d8ac37462",
    "fashion-mnist": "50d665350645637f",
    "mnist": "ff45a286cf7d286d",
    "kmnist": "cbae0c5301727f8c",
    "emnist-letters": "1e70db662bdb5276",
    "emnist-byclass": "f01c7c41346a2449",
    "cifar10": "9c6992887abd1e30",
    "nsynth": "067eade9bfa23bcb",
}


def made(x=None, y=None, names=("no", "yes"), domain=(-1.0, 1.0), **options):
    x = torch.linspace(-1, 1, 24).reshape(8, 3) if x is None else x
    return Dataset("made", "train", x, torch.arange(8) % 2 if y is None else y, names, domain, **options)


# Of the catalogue


@pytest.mark.parametrize("name", DIGESTS)
def test_digests_are_known_without_the_data(root, name):
    assert digest_of(name) == digest_of(name, root) == DIGESTS[name]
    assert set(DIGESTS) == set(data_names()) and len(set(DIGESTS.values())) == len(DIGESTS)


def test_all_of_a_data_set_has_one_digest(root, monkeypatch):
    _, contents, _ = on_disk.tiny_mnist(monkeypatch)
    on_disk.put_mnist(root, contents)
    options = {"data_dir": root, "download": False}
    before = digest_of("tiny", root)
    loaded = [load("tiny", split, **options) for split in ("train", "test")]
    loaded += on_disk.splits_of("tiny", validation=0.25, **options)
    assert {data.digest for data in loaded} == {before} and len(before) == 16 and int(before, 16)
    # The files themselves are not looked into: loading does that.
    shutil.rmtree(root / "tiny")
    assert digest_of("tiny", root) == before


def test_packed_or_plain_is_the_same_content(root, tmp_path, monkeypatch):
    for digests in (True, False):
        _, contents, _ = on_disk.tiny_mnist(monkeypatch, digests=digests)
        on_disk.put_mnist(root, contents, packed=True)
        on_disk.put_mnist(tmp_path / "plain", contents, packed=False)
        assert digest_of("tiny", root) == digest_of("tiny", tmp_path / "plain") == load("tiny", data_dir=root).digest


def test_files_without_known_checksums_are_read(root, monkeypatch):
    _, contents, _ = on_disk.tiny_mnist(monkeypatch)
    known = digest_of("tiny", root)
    on_disk.tiny_mnist(monkeypatch, digests=False)
    refuses(r"put train-images-idx3-ubyte\.gz into", digest_of, "tiny", root, error=MissingDataError)
    on_disk.put_mnist(root, contents)
    assert digest_of("tiny", root) == known
    label = contents["t10k-labels-idx1-ubyte"]
    on_disk.put_mnist(root, contents | {"t10k-labels-idx1-ubyte": label[:-1] + bytes([(label[-1] + 1) % 10])})
    assert load("tiny", "train", data_dir=root).digest == digest_of("tiny", root) != known


def test_parts_of_emnist_and_files_taken_out_of_it_are_told_apart(root, monkeypatch):
    content, _, members = on_disk.tiny_emnist(monkeypatch)
    archive = on_disk.write(root / "emnist" / "gzip.zip", content)
    letters = load("emnist-letters", data_dir=root, download=False).digest
    assert letters == digest_of("emnist-letters", root)
    source = SOURCES.entries["emnist-letters"]
    assert letters != replace(source, part="byclass").digest(Directories(root, download=False))
    archive.unlink()
    assert digest_of("emnist-letters", root) == letters  # of what a download would bring
    for name, member in members.items():
        on_disk.write(root / "emnist" / name, member)
    loose = load("emnist-letters", "train", data_dir=root, download=False).digest
    assert loose == load("emnist-letters", "test", data_dir=root, download=False).digest != letters
    labels = root / "emnist" / "gzip" / "emnist-letters-test-labels-idx1-ubyte.gz"
    changed = bytearray(gzip.decompress(labels.read_bytes()))
    changed[-1] = 4 - changed[-1] if changed[-1] != 2 else 1
    labels.write_bytes(gzip.compress(bytes(changed)))
    assert digest_of("emnist-letters", root) != loose


def test_cifar_unpacked_or_not_is_the_same_content(root, tmp_path, monkeypatch):
    batches, _, _ = on_disk.tiny_cifar(monkeypatch)
    on_disk.put_cifar(root / "cifar10", batches, archived=True)
    on_disk.put_cifar(tmp_path / "other" / "cifar10", batches)
    digests = {load("cifar10", data_dir=place, download=False).digest for place in (root, tmp_path / "other")}
    assert digests == {digest_of("cifar10", tmp_path / "nowhere")}


def test_nsynth_tells_its_versions_apart(root, monkeypatch):
    official, cut = (
        on_disk.tarred(on_disk.nsynth_members("test")),
        on_disk.tarred(on_disk.nsynth_members("test", rate=16000)),
    )
    train = on_disk.tarred(on_disk.nsynth_members("train", ((0, 4), (1, 4), (2, 4)), first=20))
    on_disk.tiny_nsynth(monkeypatch, {"train": train, "validation": b"not there", "test": official})
    archives = dict(SOURCES.entries["nsynth"].archives)
    archives["test"] = replace(archives["test"], sha256=(on_disk.sha(official), on_disk.sha(cut)))
    monkeypatch.setitem(SOURCES.entries, "nsynth", replace(SOURCES.entries["nsynth"], archives=archives))
    promised = digest_of("nsynth", root)
    path = on_disk.write(root / "nsynth" / "nsynth-test.jsonwav.tar.gz", official)
    assert load("nsynth", data_dir=root, download=False).digest == digest_of("nsynth", root) == promised
    path.write_bytes(cut)
    shortened = load("nsynth", "test", data_dir=root, download=False).digest
    assert shortened == digest_of("nsynth", root) != promised
    on_disk.write(root / "nsynth" / "nsynth-train.jsonwav.tar.gz", train)
    whole = load("nsynth", "train", data_dir=root, download=False).digest
    assert whole == digest_of("nsynth", root) and whole not in (promised, shortened)
    path.write_bytes(b"neither")
    refuses("damaged or swapped", digest_of, "nsynth", root, error=FileFormatError)


# Of a user's own files


def test_npz_files_are_identified_by_their_bytes(root):
    path, y = root / "data.npz", np.arange(20) % 2
    name = f"folder:{path}"
    np.savez(path, X=on_disk.random_bytes(20, 6, 4), y=y)
    first = load(name)
    assert first.digest == load(name, "test").digest == digest_of(name) == on_disk.sha(path.read_bytes())[:16]
    np.savez(path, X=on_disk.random_bytes(20, 6, 4, seed=1), y=y)
    assert load(name).digest == digest_of(name) == on_disk.sha(path.read_bytes())[:16] != first.digest


@pytest.mark.parametrize("layout", ["", "train"])
def test_folders_are_identified_by_names_and_bytes(root, tmp_path, layout):
    on_disk.put_images(root / layout, count=5)
    name = f"folder:{root}"
    first = digest_of(name)
    assert {load(name, split).digest for split in ("train", "test")} == {first}
    on_disk.write(root / ".hidden", b"x")
    on_disk.write(root / layout / "cat" / ".hidden", b"x")
    assert digest_of(name) == first
    shutil.copytree(root, tmp_path / "copy")
    assert digest_of(f"folder:{tmp_path}/copy") == first  # wherever it lies
    images = root / layout / "dog"
    (images / "04.png").rename(images / "05.png")
    renamed = digest_of(name)
    (images / "05.png").rename(images / "04.png")
    assert renamed != first == digest_of(name)
    shutil.copyfile(images / "03.png", images / "04.png")
    assert load(name).digest == digest_of(name) != first


def test_every_split_of_a_folder_counts(root):
    on_disk.put_images(root / "train")
    on_disk.put_images(root / "test", seed=1)
    first = load(f"folder:{root}").digest
    on_disk.write(root / "extra" / "notes.txt", b"of no split")
    assert digest_of(f"folder:{root}") == first
    on_disk.put_images(root / "test", seed=2)
    second = load(f"folder:{root}").digest
    on_disk.put_images(root / "validation", seed=3)
    assert len({first, second, load(f"folder:{root}").digest}) == 3


# Of arrays


def test_equal_arrays_have_equal_digests():
    first = made()
    assert first.digest == made().digest and len(first.digest) == 16
    shuffled = first.x.t().contiguous().t()  # the same numbers, in another order in memory
    assert made(x=shuffled).digest == first.digest and made(domain=(-1, 1)).digest == first.digest
    others = [
        made(x=first.x + 1),
        made(x=first.x.double()),
        made(x=first.x.reshape(8, 1, 3)),
        made(x=first.x.bfloat16()),
        made(y=1 - first.y),
        made(names=("yes", "no")),
        made(domain=(0.0, 1.0)),
        made(x=first.x[:0], y=first.y[:0]),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 9


@pytest.mark.parametrize("name", ["x", "y"])
def test_arrays_that_were_written_into_are_other_content(name):
    for data in (load_digits("test"), made()):
        before = data.digest
        getattr(data, name)[0] = 1 - getattr(data, name)[0]
        after = data.digest
        assert after != before and data.subset(3).digest == after
        assert data.identity.content == after
        assert pickle.loads(pickle.dumps(data)).digest == after
        getattr(data, name)[1] = 1 - getattr(data, name)[1]
        assert pickle.loads(pickle.dumps(data)).digest == data.digest not in (before, after)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_digests_survive_copies(again):
    for data in (load_digits("test"), load_digits("test").subset(7), made()):
        other = again(data)
        assert other.digest == data.digest and torch.equal(other.x, data.x)
        assert again(other).digest == data.digest


def test_inference_mode_is_no_obstacle():
    expected = load_digits("test").digest
    with torch.inference_mode():
        data = load_digits("test")
        assert data.digest == data.subset(5).digest == expected
    assert data.digest == expected


# Subsets and held-out shares


def test_a_subset_is_a_fixed_choice():
    data = load("digits", validation=0.1)
    part = data.subset(50)
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:50]
    assert torch.equal(part.x, data.x[chosen]) and torch.equal(part.y, data.y[chosen])
    assert part.digest == data.digest and (part.held_out, part.split, part.name) == (0.1, "train", "digits")
    assert part.subset(5).digest != data.subset(5).digest == data.digest and len(part.subset(5)) == 5
    for samples in (0, len(data), len(data) + 1):
        assert data.subset(samples) is data
    own = made()
    assert own.subset(3).digest == own.digest != made(x=own.subset(3).x, y=own.subset(3).y).digest


def test_an_identity_says_which_samples_these_are():
    content = digest_of("digits")
    train, validation, test = on_disk.splits_of("digits", validation=0.25, seed=5)
    assert train.identity == Identity(content, "train", 0.25, 5) == replace(validation.identity, split="train")
    assert test.identity == Identity(content, "test") and load("digits", seed=5).identity == Identity(content, "train")
    twice = train.subset(50).subset(5)
    assert twice.identity == Identity(content, "train", 0.25, 5, (50, 5)) and twice.subset(9) is twice
    assert str(twice.identity) == f"train of {content}, 0.25 held out by seed 5, a subset of 50, a subset of 5"
    assert pickle.loads(pickle.dumps(twice)).identity == replace(twice, name="mine").identity == twice.identity
    # Other samples than split, share and number tell have another digest, in scores too.
    assert len({content, train.digest, twice.digest, load("digits").subset(50).subset(5).digest}) == 4
    assert train.digest == validation.digest == train.subset(50).digest and test.digest == content


@pytest.mark.parametrize("changed", [{"split": "test"}, {"class_names": tuple("abcdefghij")}, {"domain": (0.0, 1.0)}])
def test_an_identity_is_that_of_the_samples_alone(changed):
    train = load("digits", validation=0.25).subset(5)
    other = replace(train, **changed)
    assert (
        other.identity != train.identity == replace(other, **{name: getattr(train, name) for name in changed}).identity
    )
    train.x.numpy()[0, 0, 3, 3] += 0.25
    assert train.identity == Identity(train.digest, "train") and train.digest != digest_of("digits")


# What is missing


def test_missing(root, monkeypatch):
    _, contents, _ = on_disk.tiny_mnist(monkeypatch, bases=["http://127.0.0.1:9/closed"])
    assert missing("tiny") and missing("tiny", root)
    on_disk.put_mnist(root, {name: content for name, content in contents.items() if "labels" in name})
    assert missing("tiny", root)
    on_disk.put_mnist(root, contents)
    assert not missing("tiny", root) and missing("tiny")
    assert not missing("digits") and not missing(f"folder:{root}") and missing(f"folder:{root}/nothing")
    assert missing("nsynth", root) and missing("cifar10", root) and not (root / "nsynth").exists()


def test_neither_asks_the_network(root, server, monkeypatch):
    on_disk.serve_mnist(server, monkeypatch)
    promised = digest_of("tiny", root)
    assert missing("tiny", root) and not server.requests and not list(root.iterdir())
    assert load("tiny", data_dir=root).digest == promised and server.requests
