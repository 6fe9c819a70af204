"""CIFAR-10: both versions, unpacked or not, give the same arrays; pickles are read without being run."""

# ruff: noqa: F401, F811 (fixtures are imported, and named again as arguments)

import io
import os
import pickle
import pickletools
import tarfile

import numpy as np
import pytest

from polybound.data import load
from polybound.data.opcodes import read_pickled_dict
from polybound.errors import FileFormatError
from test_data_helpers import (
    cifar_batch,
    pickled,
    random_bytes,
    read_or_refused,
    refused,
    root,
    sha,
    tarred,
    tiny_cifar,
    write,
)

BIN, PY = "cifar-10-batches-bin", "cifar-10-batches-py"


def put(root, folder, contents, archived, where="cifar10"):
    if archived:
        name = "cifar-10-binary.tar.gz" if folder == BIN else "cifar-10-python.tar.gz"
        members = {f"{folder}/{name}": content for name, content in contents.items()}
        return write(root / where / name, tarred(members | {f"{folder}/readme.html": b"<html>"}))
    for name, content in contents.items():
        write(root / where / folder / name, content)
    return root / where / folder


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("folder", [BIN, PY])
@pytest.mark.parametrize("split", ["train", "test"])
def test_reads_what_was_written(root, monkeypatch, split, folder, archived):
    binary, python, arrays = tiny_cifar(monkeypatch)
    put(root, folder, binary if folder == BIN else python, archived)
    data = load("cifar10", split, data_dir=root, download=False)
    images, labels = arrays[split]
    assert data.shape == (3, 4, 4) and data.y.tolist() == labels.tolist() and data.class_names[6] == "frog"
    assert np.allclose(data.x.numpy(), images / 127.5 - 1, atol=1e-6)


def test_the_folder_may_lie_in_the_data_directory_itself(root, monkeypatch):
    binary, _, _ = tiny_cifar(monkeypatch)
    put(root, BIN, binary, archived=False, where=".")
    assert len(load("cifar10", data_dir=root, download=False)) == 20


def test_the_place_counts_before_the_version(root, monkeypatch, tmp_path):
    binary, python, _ = tiny_cifar(monkeypatch)
    put(tmp_path / "system", BIN, binary, archived=False)
    path = put(root, PY, python | {"data_batch_1": b"junk"}, archived=False)
    assert "data_batch_1" in refused("cifar10", path, data_dir=root)


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("folder", [BIN, PY])
def test_damaged_and_swapped_batches_are_refused(root, monkeypatch, folder, archived):
    binary, python, _ = tiny_cifar(monkeypatch)
    contents = binary if folder == BIN else python
    name = "data_batch_3" + (".bin" if folder == BIN else "")
    whole = contents[name]
    other = contents[name.replace("3", "4")]
    flipped = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
    for changed in (flipped, whole[:-1], whole + b"x", b"", other):
        path = put(root, folder, contents | {name: changed}, archived)
        text = refused("cifar10", path, data_dir=root)
        assert name in text


@pytest.mark.parametrize("archived", [True, False])
def test_missing_batches_are_refused(root, monkeypatch, archived):
    binary, _, _ = tiny_cifar(monkeypatch)
    del binary["data_batch_5.bin"]
    path = put(root, BIN, binary, archived)
    assert "data_batch_5.bin" in refused("cifar10", path, data_dir=root)
    assert len(load("cifar10", "test", data_dir=root, download=False)) == 4


def test_records_that_do_not_fit_are_refused(root, monkeypatch):
    binary, _, _ = tiny_cifar(monkeypatch, digests=False)
    whole = binary["data_batch_1.bin"]
    for changed, word in (
        (whole[:-1], "whole number"),
        (whole[:49], "images in its train split"),
        (b"\x0a" + whole[1:], "label 10"),
        (whole * 60, "longer than"),
    ):
        path = put(root, BIN, binary | {"data_batch_1.bin": changed}, archived=False)
        assert word in refused("cifar10", path, data_dir=root)


def entry(kind, name=f"{BIN}/data_batch_1.bin", target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


TARS = {
    "symbolic link": entry(tarfile.SYMTYPE, target="/etc/passwd"),
    "hard link": entry(tarfile.LNKTYPE, target="/etc/passwd"),
    "device": entry(tarfile.CHRTYPE),
    "pipe": entry(tarfile.FIFOTYPE),
    "absolute path": entry(tarfile.REGTYPE, "/etc/evil"),
    "path upwards": entry(tarfile.REGTYPE, f"{BIN}/../../evil"),
    "folder upwards": entry(tarfile.DIRTYPE, "../evil"),
}


@pytest.mark.parametrize("info", TARS.values(), ids=TARS)
def test_tar_members_that_are_no_plain_files_are_refused(root, monkeypatch, info):
    binary, _, _ = tiny_cifar(monkeypatch, digests=False)
    content = tarred({f"{BIN}/{name}": data for name, data in binary.items()}, extra=[info])
    path = write(root / "cifar10" / "cifar-10-binary.tar.gz", content)
    assert "nothing of it is used" in refused("cifar10", path, data_dir=root)


def test_tar_bombs_are_not_unpacked(root, monkeypatch):
    binary, _, _ = tiny_cifar(monkeypatch, digests=False)
    members = {f"{BIN}/{name}": data for name, data in binary.items()}
    path = root / "cifar10" / "cifar-10-binary.tar.gz"
    write(path, tarred({f"{BIN}/readme.html": bytes(20_000_000)} | members))
    assert "unpacks to more" in refused("cifar10", path, data_dir=root)
    write(path, tarred(members | {f"{BIN}/data_batch_1.bin": bytes(20_000)}))
    assert "has 20000 bytes" in refused("cifar10", path, data_dir=root)


def test_truncated_and_foreign_archives_are_refused(root, monkeypatch):
    binary, _, _ = tiny_cifar(monkeypatch, digests=False)
    whole = tarred({f"{BIN}/{name}": data for name, data in binary.items()})
    path = root / "cifar10" / "cifar-10-binary.tar.gz"
    for changed in (
        b"",
        b"<html>",
        *(whole[: len(whole) * part // 10] for part in range(1, 9)),
        whole[:3] + b"\xff" * 99,
    ):
        write(path, changed)
        refused("cifar10", path, data_dir=root)
    path.unlink()
    path.mkdir()
    refused("cifar10", path, data_dir=root)


# Pickles


def batch(**changes):
    return cifar_batch(random_bytes(4, 3, 4, 4), random_bytes(4, high=10), **changes)


@pytest.mark.parametrize("python2", [True, False])
def test_pickles_of_both_pythons_are_read(python2):
    images, labels = random_bytes(4, 3, 4, 4), random_bytes(4, high=10)
    content = cifar_batch(images, labels, python2=python2)
    read = read_pickled_dict(content, "here")
    assert np.array_equal(read["data"], images.reshape(4, -1)) and read["labels"] == labels.tolist()
    assert read["filenames"][3] == b"3.png" and read["batch_label"] == b"training batch 1 of 5"


def test_the_helper_writes_what_the_official_files_hold():
    names = {opcode.name for opcode, _, _ in pickletools.genops(batch())}
    assert "SHORT_BINSTRING" in names and not names & {"BINUNICODE", "SHORT_BINBYTES", "BINBYTES"}
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in batch()
    long = pickled({b"data": np.zeros((30, 30), np.uint8)})
    assert "BINSTRING" in {opcode.name for opcode, _, _ in pickletools.genops(long)}
    assert read_pickled_dict(long, "here")["data"].shape == (30, 30)


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def evil_pickles(mark):
    command = f"touch {mark}"
    yield "os.system", pickle.dumps({b"data": Evil(os.system, command)}, protocol=2)
    yield "os.system, newer", pickle.dumps({b"data": Evil(os.system, command)}, protocol=4)
    yield "eval", pickle.dumps({b"labels": [Evil(eval, f"open({str(mark)!r}, 'w')")]}, protocol=2)
    yield "as key", pickle.dumps({Evil(os.system, command): 1}, protocol=2)
    yield "INST", b"(S'touch %s'\nios\nsystem\n." % str(mark).encode()
    yield "OBJ", b"(cos\nsystem\nS'touch %s'\no." % str(mark).encode()
    yield "NEWOBJ", b"\x80\x02cos\nsystem\nU\x01x\x85\x81."
    yield "persistent", b"\x80\x02Pmodule\n."
    yield "extension", b"\x80\x02\x82\x01."
    yield "reconstruct of another class", b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncos\nsystem\n\x85R."
    yield "dtype of objects", pickle.dumps({b"data": np.array([Evil(os.system, command)], dtype=object)}, protocol=2)
    yield "attributes", b"\x80\x02}q\x00U\x01ab."
    yield "file", pickle.dumps({b"data": io.StringIO}, protocol=2)


def test_nothing_in_a_pickle_is_ever_run(root, monkeypatch, tmp_path):
    _, python, _ = tiny_cifar(monkeypatch, digests=False)
    mark = tmp_path / "mark"
    for label, content in evil_pickles(mark):
        path = put(root, PY, python | {"data_batch_1": content}, archived=False)
        text = refused("cifar10", path / "data_batch_1", data_dir=root)
        assert not mark.exists(), label
        if "system" in label:
            assert "system; nothing of it was run" in text


WRONG = {
    "no data": batch(data=None),
    "no labels": batch(labels=None),
    "labels of text": batch(labels=[b"cat"] * 4),
    "labels are booleans": batch(labels=[True] * 4),
    "too few labels": batch(labels=[1, 2, 3]),
    "label out of range": batch(labels=[1, 2, 3, 10]),
    "negative label": batch(labels=[1, 2, 3, -1]),
    "other pixels": batch(data=random_bytes(4, 47)),
    "one dimension": batch(data=random_bytes(192)),
    "three dimensions": batch(data=random_bytes(4, 3, 16)),
    "floats": batch(data=np.zeros((4, 48))),
    "wide numbers": batch(data=np.zeros((4, 48), np.uint16)),
    "other order": batch(data=np.asfortranarray(random_bytes(4, 48))),
    "data is a list": batch(data=[0] * 192),
    "a list": pickled([1, 2]),
    "a number": pickled(7),
    "a number as key": pickled({7: b""}),
    "something behind": batch() + b"x",
    "nothing": b"",
    "only an end": b".",
    "text": b"<html>",
    "values left": b"\x80\x02K\x01}.",
    "array without state": b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85Rs.",
    "unknown memory": b"\x80\x02h\x05.",
    "items for nothing": b"\x80\x02K\x01(K\x02e.",
    "odd items": b"\x80\x02}(K\x01u.",
    "mark as value": b"\x80\x02(\x85.",
    "shape that does not fit": batch().replace(b"K\x04K0\x86", b"K\x05K0\x86"),
    "negative shape": batch().replace(b"K\x04K0\x86", b"J\xfc\xff\xff\xffK0\x86"),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_wrong_pickles_are_refused(root, monkeypatch, content):
    _, python, _ = tiny_cifar(monkeypatch, digests=False)
    path = put(root, PY, python | {"data_batch_2": content}, archived=False)
    refused("cifar10", path / "data_batch_2", data_dir=root)


def test_every_truncated_pickle_is_refused():
    content = batch()
    for length in range(len(content)):
        with pytest.raises(FileFormatError, match="here"):
            read_pickled_dict(content[:length], "here")


def test_random_damage_never_gets_through_as_anything_but_a_dictionary():
    content = batch()
    generator = np.random.default_rng(0)
    for _ in range(2000):
        changed = bytearray(content)
        for position in generator.integers(0, len(content), 3):
            changed[position] = generator.integers(256)
        read = read_or_refused("here", lambda: read_pickled_dict(bytes(changed), "here"))  # noqa: B023
        assert read is None or isinstance(read, dict)


def test_digests_are_compared_before_anything_is_parsed(root, monkeypatch):
    _, python, _ = tiny_cifar(monkeypatch)
    monkeypatch.setattr("polybound.data.cifar.read_pickled_dict", lambda *_: pytest.fail("parsed"))
    path = put(root, PY, python | {"data_batch_1": python["data_batch_2"]}, archived=False)
    assert sha(python["data_batch_2"])[:12] in refused("cifar10", path, data_dir=root)
