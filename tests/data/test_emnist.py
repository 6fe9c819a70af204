"""EMNIST: read from a zip file like NIST's, upright and with labels from 0 on; damaged zip files are refused."""

import gzip
import io
import stat
import struct
import zipfile

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


MEMBERS = {
    "no images": ({IMAGES: None}, IMAGES, "holds no"),
    "labels from zero": ({LABELS: gzip.compress(idx(np.zeros(12, np.uint8)))}, LABELS, "label -1"),
    "images not gzipped": ({IMAGES: idx(random_bytes(12, 28, 28))}, IMAGES, "damaged"),
    "images cut": ({IMAGES: gzip.compress(idx(random_bytes(12, 28, 28)))[:-9]}, IMAGES, "ends early"),
    "images are a bomb": ({IMAGES: gzip.compress(bytes(50_000_000))}, IMAGES, "longer than"),
}


@pytest.mark.parametrize(("changes", "member", "word"), MEMBERS.values(), ids=MEMBERS)
def test_wrong_members_are_refused(root, monkeypatch, changes, member, word):
    content, _, _ = tiny_emnist(monkeypatch, digest=False, **changes)
    path = write(root / "emnist" / "gzip.zip", content)
    text = refused("emnist-letters", path, data_dir=root)
    assert member in text and word in text


def patched(content, offset, value):
    """A zip file with some bytes of the images' entry in its directory overwritten."""
    at = content.rindex(IMAGES.encode()) - 46 + offset
    return content[:at] + value + content[at + len(value) :]


def linked(members):
    """A zip file in which the images are a symbolic link."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if name == IMAGES:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, content)
    return stream.getvalue()


def doubled(content, members):
    stream = io.BytesIO(content)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(IMAGES, members[IMAGES])
    return stream.getvalue()


OUTSIDE = ["../evil", "/etc/evil", "gzip/../../evil", "..\\evil", "C:/evil", "C:\\evil"]
ARCHIVES = {
    "link": (lambda content, members: linked(members), "is a link"),
    "encrypted": (lambda content, members: patched(content, 8, b"\x01\x00"), "encrypted"),
    "said to be small": (lambda content, members: patched(content, 24, struct.pack("<I", 10)), ""),
    "said to be large": (lambda content, members: patched(content, 24, struct.pack("<I", 2**31)), ""),
    "unknown compression": (lambda content, members: patched(content, 10, struct.pack("<H", 99)), ""),
    "doubled": (doubled, "twice"),
} | {name: (lambda _, members, name=name: zipped(members | {name: b"evil"}), "points out") for name in OUTSIDE}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("change", "word"), ARCHIVES.values(), ids=ARCHIVES)
def test_wrong_zip_files_are_refused(root, monkeypatch, change, word):
    content, _, members = tiny_emnist(monkeypatch, digest=False)
    path = write(root / "emnist" / "gzip.zip", change(content, members))
    assert word in refused("emnist-letters", path, data_dir=root)
