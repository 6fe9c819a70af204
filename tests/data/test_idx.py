"""MNIST's layout: read as written, plain or gzipped; every damage refused in one line that names the file."""

import gzip
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.data import idx, put_mnist, refused, sha, tiny_mnist
from polybound.data import load
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
