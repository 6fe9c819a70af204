"""EMNIST: read from a zip file like NIST's, upright and with labels from 0 on; damaged zip files are refused."""

import gzip

import numpy as np
import pytest

from helpers.data import idx, random_bytes, refused, tiny_emnist, write, zipped
from polybound.data import load

IMAGES = "gzip/emnist-letters-train-images-idx3-ubyte.gz"
LABELS = "gzip/emnist-letters-train-labels-idx1-ubyte.gz"


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
    "labels from zero": ({LABELS: gzip.compress(idx(np.zeros(12, np.uint8)))}, LABELS, "label -1"),
    "images not gzipped": ({IMAGES: idx(random_bytes(12, 28, 28))}, IMAGES, "damaged"),
    "images cut": ({IMAGES: gzip.compress(idx(random_bytes(12, 28, 28)))[:-9]}, IMAGES, "ends early"),
    "images are a bomb": ({IMAGES: gzip.compress(bytes(50_000_000))}, IMAGES, "longer than"),
}


@pytest.mark.parametrize(("changes", "member", "word"), FILES.values(), ids=FILES)
def test_wrong_files_taken_out_of_the_zip_file_are_refused(root, monkeypatch, changes, member, word):
    _, _, members = tiny_emnist(monkeypatch)
    for name, content in (members | changes).items():
        write(root / "emnist" / name, content)
    assert word in refused("emnist-letters", root / "emnist" / member, data_dir=root)
