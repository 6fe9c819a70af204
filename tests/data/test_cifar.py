"""CIFAR-10: unpacked or not, its binary version gives the same arrays; its python version is never read."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.data import put_cifar, refused, sha, tiny_cifar, write
from helpers.errors import refuses
from polybound.data import MissingDataError, load
from polybound.data.catalogue import SOURCES


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
def test_reads_what_was_written(root, monkeypatch, split, archived):
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
