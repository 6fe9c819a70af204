"""Official formats: read as written, packed or not; every damage is refused in one line that names the file."""

import gzip
import os
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import data as on_disk
from helpers.data import (
    idx,
    put_cifar,
    put_mnist,
    random_bytes,
    refused,
    sha,
    tiny_cifar,
    tiny_emnist,
    tiny_mnist,
    write,
    zipped,
)
from helpers.errors import refuses
from polybound.data import MissingDataError, load
from polybound.data.catalogue import SOURCES
from polybound.data.sources import idx_size, parse_idx


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
def test_reads_what_was_written(root, monkeypatch, split, packed):
    _, contents, arrays = tiny_mnist(monkeypatch)
    put_mnist(root, contents, packed)
    data = load("tiny", split, data_dir=root, download=False)
    images, labels = arrays[split]
    assert data.shape == (1, 5, 3) and data.classes == 10 and data.domain == (-1.0, 1.0) and data.split == split
    assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64 and data.note == ""
    assert np.array_equal(data.x[:, 0].numpy(), (images / np.float32(127.5) - np.float32(1)).astype(np.float32))
    assert data.y.tolist() == labels.tolist()
    data.x[0] = 0  # writable, and warns of nothing


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_idx_round_trip(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    content = idx(array)
    assert len(content) == idx_size(tuple(shape))
    assert np.array_equal(parse_idx(content, "here", tuple(shape)), array)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture
def images(root, monkeypatch):
    """The gzipped images of train; their data set is whole, and its checksums are known."""
    _, contents, _ = tiny_mnist(monkeypatch)
    put_mnist(root, contents)
    return root / "tiny" / f"{IMAGES}.gz"


def header(*dims, kind=8, rank=None):
    return bytes([0, 0, kind, len(dims) if rank is None else rank]) + struct.pack(f">{len(dims)}I", *dims)


BODY = bytes(600)

# Damage of the unpacked bytes, which their structure alone must show; and a word of the line that refuses them.
STRUCTURE = {
    "empty": (IMAGES, b"", "empty"),
    "three bytes": (IMAGES, b"\0\0\x08", "its idx header is"),
    "wrong magic": (IMAGES, b"\0\1" + header(40, 5, 3)[2:] + BODY, "its idx header is"),
    "labels for images": (IMAGES, header(40) + BODY[:40], "its idx header is"),
    "too many images": (IMAGES, header(41, 5, 3) + BODY, "its idx header is"),
    "overflowing": (IMAGES, header(2**31 - 1, 2**31 - 1, 2**31 - 1) + BODY, "its idx header is"),
    "one byte short": (IMAGES, header(40, 5, 3) + BODY[:-1], "599 there"),
    "one byte long": (IMAGES, header(40, 5, 3) + BODY + b"x", "longer than"),
    "label out of range": (LABELS, header(40) + bytes([0] * 20 + [10] + [0] * 19), "label 10 of sample 20"),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "content", "word"), STRUCTURE.values(), ids=STRUCTURE)
def test_wrong_structure_is_refused(root, monkeypatch, name, content, word, packed):
    _, contents, _ = tiny_mnist(monkeypatch, digests=False)
    put_mnist(root, contents | {name: content}, packed)
    path = root / "tiny" / (f"{name}.gz" if packed else name)
    assert word in refused("tiny", path, data_dir=root)


def test_changed_swapped_and_longer_images_are_refused(root, images):
    whole = images.read_bytes()
    content = gzip.decompress(whole)
    images.write_bytes(gzip.compress(content[:-1] + bytes([content[-1] ^ 1])))
    text = refused("tiny", images, data_dir=root)
    assert "SHA-256" in text and sha(content)[:12] in text and "damaged or swapped" in text
    images.write_bytes((root / "tiny" / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert "swapped" in refused("tiny", images, data_dir=root)
    images.write_bytes(gzip.compress(bytes(200_000_000), compresslevel=1))  # which is not unpacked
    assert "longer than" in refused("tiny", images, data_dir=root)
    for garbage in (b"garbage", gzip.compress(b"more"), whole):
        images.write_bytes(whole + garbage)
        refused("tiny", images, data_dir=root)


def test_what_is_no_file_is_refused(root, images):
    images.unlink()
    images.mkdir()
    assert "folder" in refused("tiny", images, data_dir=root)
    images.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(images)
        assert "not a regular file" in refused("tiny", images, data_dir=root)
        images.unlink()
    images.symlink_to("nowhere")
    refused("tiny", images, data_dir=root)


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_are_read_as_written(root, monkeypatch, split, archived):
    batches, arrays, _ = tiny_cifar(monkeypatch)
    put_cifar(root / "cifar10", batches, archived)
    data = load("cifar10", split, data_dir=root, download=False)
    images, labels = arrays[split]
    assert data.shape == (3, 4, 4) and data.y.tolist() == labels.tolist() and data.class_names[6] == "frog"
    assert np.allclose(data.x.numpy(), images / 127.5 - 1, atol=1e-6)


def test_the_folder_may_lie_in_the_data_directory_itself(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch)
    put_cifar(root, batches)
    assert len(load("cifar10", data_dir=root, download=False)) == 20


@pytest.mark.parametrize("python", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_with_only_the_python_version_the_binary_one_is_asked_for(root, monkeypatch, tmp_path, python):
    batches, _, _ = tiny_cifar(monkeypatch)
    path = write(root / "cifar10" / python, b"cos\nsystem\n(S'false'\ntR.")
    for download in (False, True):
        text = refuses("", load, "cifar10", error=MissingDataError, data_dir=root, download=download)
        assert "\n" not in text and text.endswith(f"put cifar-10-binary.tar.gz into {root}/cifar10")
    # It does not stand in the way of a binary version elsewhere.
    put_cifar(tmp_path / "system" / "cifar10", batches)
    assert path.exists() and len(load("cifar10", data_dir=root, download=False)) == 20


def test_damaged_and_swapped_batches_are_refused(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch)
    name = "data_batch_3.bin"
    whole, other = batches[name], batches["data_batch_4.bin"]
    flipped = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
    for changed in (flipped, whole[:-1], whole + b"x", b"", other):
        path = put_cifar(root / "cifar10", batches | {name: changed})
        text = refused("cifar10", path, data_dir=root)
        assert name in text


def test_every_other_archive_than_the_official_one_is_refused_unread(root, monkeypatch):
    _, _, source = tiny_cifar(monkeypatch)
    monkeypatch.setattr("polybound.data.files.tar_members", lambda *_, **__: pytest.fail("opened"))
    path = write(root / "cifar10" / "cifar-10-binary.tar.gz", b"anything")
    assert "no checksum of this archive is known" in refused("cifar10", path, data_dir=root)
    known = replace(source.archive, sha256=(sha(b"something else"),))
    monkeypatch.setitem(SOURCES.entries, "cifar10", replace(source, archive=known))
    assert sha(b"anything")[:12] in refused("cifar10", path, data_dir=root)


def test_checksums_are_compared_before_anything_is_parsed(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch)
    monkeypatch.setattr("polybound.data.sources.CifarSource.parse", lambda *_: pytest.fail("parsed"))
    path = put_cifar(root / "cifar10", batches | {"data_batch_1.bin": batches["data_batch_2.bin"]})
    assert sha(batches["data_batch_2.bin"])[:12] in refused("cifar10", path, data_dir=root)


def test_missing_batches_are_asked_for(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch)
    del batches["data_batch_5.bin"]
    put_cifar(root / "cifar10", batches)
    refuses(r"put data_batch_5\.bin into", load, "cifar10", error=MissingDataError, data_dir=root, download=False)
    assert len(load("cifar10", "test", data_dir=root, download=False)) == 4


def test_a_folder_in_the_place_of_the_archive_is_refused(root, monkeypatch):
    tiny_cifar(monkeypatch)
    path = root / "cifar10" / "cifar-10-binary.tar.gz"
    path.mkdir(parents=True)
    refused("cifar10", path, data_dir=root)


LETTERS = "gzip/emnist-letters-train-images-idx3-ubyte.gz"
OF_LETTERS = "gzip/emnist-letters-train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize("folder", ["emnist", "emnist-letters"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_letters_come_upright_and_from_zero(root, monkeypatch, split, folder):
    content, arrays, _ = tiny_emnist(monkeypatch)
    write(root / folder / "gzip.zip", content)
    data = load("emnist-letters", split, data_dir=root, download=False)
    images, labels = arrays[split]
    assert data.class_names == ("A", "B", "C") and data.shape == (1, 28, 28) and data.note == ""
    assert data.y.tolist() == (labels - 1).tolist() and data.y.min() == 0
    assert np.allclose(data.x[:, 0].numpy(), images.transpose(0, 2, 1) / 127.5 - 1, atol=1e-6)


def test_by_class_counts_from_zero_already(root, monkeypatch):
    content, arrays, _ = tiny_emnist(monkeypatch, "byclass")
    write(root / "emnist" / "gzip.zip", content)
    data = load("emnist-byclass", data_dir=root, download=False)
    assert data.class_names == ("0", "1", "a") and data.y.tolist() == arrays["train"][1].tolist()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["emnist", "emnist/gzip", "emnist-letters"])
def test_files_taken_out_of_the_zip_file_are_read_with_a_note(root, monkeypatch, folder, packed):
    _, arrays, members = tiny_emnist(monkeypatch)
    for name, packed_content in members.items():
        if name.endswith(".gz"):
            target = root / folder / name.removeprefix("gzip/")
            if packed:
                write(target, packed_content)
            else:
                write(target.with_suffix(""), gzip.decompress(packed_content))
    data = load("emnist-letters", data_dir=root, download=False)
    assert data.y.tolist() == (arrays["train"][1] - 1).tolist() and "only their structure" in data.note


def test_every_other_zip_file_than_the_official_one_is_refused(root, monkeypatch):
    content, _, members = tiny_emnist(monkeypatch)
    path = root / "emnist" / "gzip.zip"
    for changed in (content + b"x", zipped(members | {"new": b""})):
        write(path, changed)
        refused("emnist-letters", path, data_dir=root)


FILES = {
    "labels from zero": ({OF_LETTERS: gzip.compress(idx(np.zeros(12, np.uint8)))}, OF_LETTERS, "label -1"),
    "images not gzipped": ({LETTERS: idx(random_bytes(12, 28, 28))}, LETTERS, "damaged"),
    "images cut": ({LETTERS: gzip.compress(idx(random_bytes(12, 28, 28)))[:-9]}, LETTERS, "ends early"),
    "images are a bomb": ({LETTERS: gzip.compress(bytes(50_000_000))}, LETTERS, "longer than"),
}


@pytest.mark.parametrize(("changes", "member", "word"), FILES.values(), ids=FILES)
def test_wrong_files_taken_out_of_the_zip_file_are_refused(root, monkeypatch, changes, member, word):
    _, _, members = tiny_emnist(monkeypatch)
    for name, content in (members | changes).items():
        write(root / "emnist" / name, content)
    assert word in refused("emnist-letters", root / "emnist" / member, data_dir=root)


def gzipped(root, monkeypatch):
    on_disk.put_mnist(root, on_disk.tiny_mnist(monkeypatch, digests=False)[1])
    return "tiny", root / "tiny" / "train-images-idx3-ubyte.gz"


def arrays(root, _):
    np.savez(root / "data.npz", X=on_disk.random_bytes(20, 6, 4), y=np.arange(20) % 2)
    return f"folder:{root / 'data.npz'}", root / "data.npz"


FORMATS = (gzipped, arrays)


def damaged(whole):
    """Truncations of a content, and contents with one bit flipped."""
    size = len(whole)
    for length in (*range(30), *(size * part // 12 for part in range(1, 12)), size - 1):
        yield whole[:length]
    for position in (*range(20), *range(20, size, 1 + size // 40), size - 1):
        yield whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_damage_is_refused_or_harmless(root, monkeypatch, make):
    """Time stamps in headers do not matter. Archives are not read before their checksum is known to be right."""
    name, path = make(root, monkeypatch)
    whole, good, refusals = path.read_bytes(), load(name, data_dir=root, download=False), 0
    for content in damaged(whole):
        path.write_bytes(content)
        read = on_disk.read_or_refused(path, lambda: load(name, data_dir=root, download=False))
        assert read is None or torch.equal(read.x, good.x)
        refusals += read is None
        assert read is None or len(content) > 0.9 * len(whole)
    assert refusals > 50
