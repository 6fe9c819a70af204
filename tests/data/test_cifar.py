"""CIFAR-10: unpacked or not, its binary version gives the same arrays; its python version is never read."""

import tarfile

import numpy as np
import pytest

from helpers.data import CIFAR, put_cifar, refused, sha, tarred, tiny_cifar, write
from helpers.errors import refuses
from polybound.data import MissingDataError, load


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


@pytest.mark.parametrize("archived", [True, False])
def test_damaged_and_swapped_batches_are_refused(root, monkeypatch, archived):
    batches, _, _ = tiny_cifar(monkeypatch)
    name = "data_batch_3.bin"
    whole, other = batches[name], batches["data_batch_4.bin"]
    flipped = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
    for changed in (flipped, whole[:-1], whole + b"x", b"", other):
        path = put_cifar(root / "cifar10", batches | {name: changed}, archived)
        text = refused("cifar10", path, data_dir=root)
        assert name in text


def test_checksums_are_compared_before_anything_is_parsed(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch)
    monkeypatch.setattr("polybound.data.sources.CifarSource.parse", lambda *_: pytest.fail("parsed"))
    path = put_cifar(root / "cifar10", batches | {"data_batch_1.bin": batches["data_batch_2.bin"]})
    assert sha(batches["data_batch_2.bin"])[:12] in refused("cifar10", path, data_dir=root)


@pytest.mark.parametrize("archived", [True, False])
def test_missing_batches_are_refused(root, monkeypatch, archived):
    batches, _, _ = tiny_cifar(monkeypatch)
    del batches["data_batch_5.bin"]
    path = put_cifar(root / "cifar10", batches, archived)
    if archived:
        assert "data_batch_5.bin" in refused("cifar10", path, data_dir=root)
    else:
        refuses(r"put data_batch_5\.bin into", load, "cifar10", error=MissingDataError, data_dir=root, download=False)
    assert len(load("cifar10", "test", data_dir=root, download=False)) == 4


def test_records_that_do_not_fit_are_refused(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch, digests=False)
    whole = batches["data_batch_1.bin"]
    for changed, word in (
        (whole[:-1], "whole number"),
        (whole[:49], "images in its train split"),
        (b"\x0a" + whole[1:], "label 10"),
        (whole * 60, "longer than"),
    ):
        path = put_cifar(root / "cifar10", batches | {"data_batch_1.bin": changed})
        assert word in refused("cifar10", path, data_dir=root)


def entry(kind, name=f"{CIFAR}/data_batch_1.bin", target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


TARS = {
    "symbolic link": entry(tarfile.SYMTYPE, target="/etc/passwd"),
    "hard link": entry(tarfile.LNKTYPE, target="/etc/passwd"),
    "device": entry(tarfile.CHRTYPE),
    "pipe": entry(tarfile.FIFOTYPE),
    "absolute path": entry(tarfile.REGTYPE, "/etc/evil"),
    "path upwards": entry(tarfile.REGTYPE, f"{CIFAR}/../../evil"),
    "folder upwards": entry(tarfile.DIRTYPE, "../evil"),
}


@pytest.mark.parametrize("info", TARS.values(), ids=TARS)
def test_tar_members_that_are_no_plain_files_are_refused(root, monkeypatch, info):
    batches, _, _ = tiny_cifar(monkeypatch, digests=False)
    content = tarred({f"{CIFAR}/{name}": data for name, data in batches.items()}, extra=[info])
    path = write(root / "cifar10" / "cifar-10-binary.tar.gz", content)
    assert "nothing of it is used" in refused("cifar10", path, data_dir=root)


def test_tar_bombs_are_not_unpacked(root, monkeypatch):
    batches, _, _ = tiny_cifar(monkeypatch, digests=False)
    members = {f"{CIFAR}/{name}": data for name, data in batches.items()}
    path = root / "cifar10" / "cifar-10-binary.tar.gz"
    write(path, tarred({f"{CIFAR}/readme.html": bytes(20_000_000)} | members))
    assert "unpacks to more" in refused("cifar10", path, data_dir=root)
    write(path, tarred(members | {f"{CIFAR}/data_batch_1.bin": bytes(20_000)}))
    assert "has 20000 bytes" in refused("cifar10", path, data_dir=root)
