"""`polybound data`: list, get and verify as their users see them."""

import gzip

import pytest

from helpers import data as on_disk
from polybound.data import names


@pytest.fixture
def data(cli):
    """`polybound data WORDS` on a wide terminal, which ends with this exit code."""

    def run(*words, code=0):
        result = cli("data", *words, env={"COLUMNS": 250})
        assert result.code == code, result
        return result

    return run


def test_list(data, root, monkeypatch):
    _, contents, _ = on_disk.tiny_mnist(monkeypatch)
    on_disk.put_mnist(root, contents)
    shown = data("list", "--data-dir", root).out
    for word in (*names(), "CC BY-SA", "3x32x32", "62"):
        assert word in shown
    rows = {row["name"]: row for row in data("list", "--json", "--data-dir", root).json}
    assert rows["tiny"]["found"] == str(root / "tiny") and rows["mnist"]["found"] is None
    assert "cs.toronto.edu" in rows["cifar10"]["source"] and rows["kmnist"]["licence"] == "CC BY-SA 4.0"
    assert rows["digits"]["found"] and rows["emnist-byclass"]["classes"] == 62
    assert rows["fashion-mnist"]["samples"] == {"train": 60000, "test": 10000}
    assert rows["cifar10"]["shape"] == [3, 32, 32]


def test_get(data, root, server, monkeypatch):
    contents = on_disk.serve_mnist(server, monkeypatch)
    printed = data("get", "tiny", "--data-dir", root).out
    assert printed.split() == [
        str(root / "tiny" / f"{name}.gz")
        for name in sorted(contents, key=lambda name: (name.startswith("t10k"), "labels" in name))
    ]
    assert "already in" in data("get", "tiny", "--data-dir", root).out
    assert len(server.requests) == 4
    data("verify", "tiny", "--data-dir", root)


def test_get_does_not_ask_for_what_is_there_in_another_form(data, root, monkeypatch):
    on_disk.put_cifar(root / "cifar10", on_disk.tiny_cifar(monkeypatch)[0])
    assert "already in" in data("get", "cifar10", "--data-dir", root).out
    assert "already in" in data("get", "digits", "--data-dir", root).out


def test_get_says_what_is_wrong(data, root, server, monkeypatch):
    on_disk.tiny_mnist(monkeypatch, bases=[server.url])
    assert "put train-images" in data("get", "tiny", "--data-dir", root, code=2).err
    server.files["/train-images-idx3-ubyte.gz"] = b"junk"
    assert "what it sent is not kept" in data("get", "tiny", "--data-dir", root, code=2).err


def test_verify_names_every_bad_file(data, root, monkeypatch):
    _, contents, _ = on_disk.tiny_mnist(monkeypatch)
    on_disk.put_mnist(root, contents)
    good = data("verify", "tiny", "--data-dir", root)
    assert good.out.count("ok  ") == 4 and good.err == ""
    bad = ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"]
    for name in bad:
        on_disk.write(root / "tiny" / f"{name}.gz", gzip.compress(contents[name][:-1]))
    result = data("verify", "tiny", "--data-dir", root, code=2)
    lines = result.err.splitlines()
    assert len(lines) == 2 and result.out.count("ok  ") == 2
    for line, name in zip(lines, bad, strict=True):
        assert line.startswith("polybound: error: ") and f"{name}.gz: " in line
    report = data("verify", "tiny", "--json", "--data-dir", root, code=2).json
    assert not report["ok"] and [row["ok"] for row in report["files"]] == [True, False, False, True]


def test_verify_says_what_is_missing(data, root, monkeypatch):
    _, contents, _ = on_disk.tiny_mnist(monkeypatch)
    del contents["t10k-labels-idx1-ubyte"]
    on_disk.put_mnist(root, contents)
    result = data("verify", "tiny", "--data-dir", root, code=2)
    assert result.out.count("ok  ") == 3 and "put t10k-labels-idx1-ubyte.gz into" in result.err
    assert "is not in" in data("verify", "mnist", "--data-dir", root, code=2).err


@pytest.mark.parametrize("damaged", [False, True])
def test_verify_other_formats(data, root, monkeypatch, damaged):
    code = 2 if damaged else 0
    content, _, members = on_disk.tiny_emnist(monkeypatch)
    archive = on_disk.write(root / "emnist" / "gzip.zip", content[:-1] if damaged else content)
    batches = on_disk.put_cifar(root / "cifar10", on_disk.tiny_cifar(monkeypatch)[0])
    if damaged:
        (batches / "test_batch.bin").unlink()
    notes = on_disk.tarred(on_disk.nsynth_members("test"))
    on_disk.tiny_nsynth(monkeypatch, {"test": notes})
    on_disk.write(root / "nsynth" / "nsynth-test.jsonwav.tar.gz", notes + b"x" if damaged else notes)
    for name, count in (("emnist-letters", 1), ("cifar10", 6), ("nsynth", 1)):
        result = data("verify", name, "--data-dir", root, code=code)
        assert result.out.count("ok  ") == count - damaged and result.err.count("\n") == damaged
    assert "ok  " in data("verify", "digits").out
    # Members taken out of the zip file are checked one by one.
    archive.unlink()
    for name, member in members.items():
        on_disk.write(root / "emnist" / name, member[:-9] if damaged and "train-labels" in name else member)
    assert data("verify", "emnist-letters", "--data-dir", root, code=code).out.count("ok  ") == 4 - damaged


def test_verify_own_folders(data, root):
    assert "nothing: no such folder" in data("verify", f"folder:{root}/nothing", code=2).err
    data("get", f"folder:{root}/nothing", code=2)
    result = data("verify", f"folder:{root}", code=2)
    assert str(root) in result.err
