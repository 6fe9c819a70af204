"""Names, places and splits: what is found where, what is carved from what, and what is said if nothing is there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.data import put_mnist, splits_of, tiny_mnist, write
from helpers.errors import refuses
from polybound.data import Dataset, MissingDataError, load, load_digits, names
from polybound.data.catalogue import SOURCES
from polybound.data.dataset import carve
from polybound.data.files import SYSTEM
from polybound.errors import PolyboundError


def test_the_names():
    expected = "digits fashion-mnist mnist kmnist emnist-letters emnist-byclass cifar10 nsynth"
    assert list(names()) == expected.split()
    refuses(r"no data set is called 'imagenet'; there are digits, .*folder:PATH", load, "imagenet")
    refuses("no data set", load, "folder:")


def test_the_catalogue_is_consistent():
    for name, source in SOURCES.entries.items():
        assert source.name == name and len(set(source.class_names)) == len(source.class_names)
        for file in source.files(full=True):
            assert file.size > 0 and file.sha256 and file.urls and all(url.startswith("http") for url in file.urls)
            assert all(len(digest) == 64 and int(digest, 16) for digest in file.sha256)
    batches = [file for files in SOURCES.entries["cifar10"].parts.values() for file in files]
    assert len(batches) == 6 and all(len(file.sha256) == 1 for file in batches)


def test_digits_are_scaled_split_and_always_the_same(root):
    for split in ("train", "test"):
        old, new = load_digits(split), load("digits", split)
        assert torch.equal(old.x, new.x) and torch.equal(old.y, new.y) and old.class_names == new.class_names
    train, test = load_digits("train"), load_digits("test")
    assert (len(train), len(test), train.shape, train.classes) == (1437, 360, (1, 8, 8), 10)
    assert train.x.min() == -1 and train.x.max() == 1 and train.domain == (-1.0, 1.0)
    both = torch.cat([train.y, test.y]).bincount()
    assert (train.y.bincount() / both - 0.8).abs().max() < 0.01
    refuses("", load_digits, "validation")


# Splits


def numbered(numbers, y, groups=None):
    x = torch.from_numpy(numbers.astype(np.float32)[:, None])
    return Dataset("", "train", x, torch.from_numpy(y), tuple("abcdef"), groups=groups)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.floats(0.05, 0.6), st.integers(-(2**70), 2**70))
def test_carving_is_a_stratified_partition(sizes, share, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    samples = numbered(np.arange(len(y)), y)
    try:
        rest, carved = carve(samples, share, seed)
    except PolyboundError:
        assert round(len(y) * share) == 0 or max(sizes) < 2 or sum(n * share for n in sizes) < len(sizes)
        return
    assert sorted([*rest.x[:, 0], *carved.x[:, 0]]) == list(range(len(y)))
    assert np.all(np.diff(rest.x[:, 0]) > 0) and np.all(np.diff(carved.x[:, 0]) > 0)
    for label, size in enumerate(sizes):
        count = int((carved.y == label).sum())
        assert count <= size - 1 and (abs(count - size * share) < 1 or count == size - 1)


@given(
    counts=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=4),
    share=st.floats(0.1, 0.5),
    seed=st.integers(0, 1000),
)
def test_groups_are_never_divided(counts, share, seed):
    y = np.concatenate([np.full(sum(sizes), label) for label, sizes in enumerate(counts)])
    flat = [size for sizes in counts for size in sizes]
    groups = np.repeat(np.arange(len(flat)), flat)
    samples = numbered(groups, y, torch.from_numpy(groups))
    if all(len(sizes) == 1 for sizes in counts):
        refuses("too few", carve, samples, share, seed)
        return
    rest, carved = carve(samples, share, seed)
    assert not set(rest.groups.tolist()) & set(carved.groups.tolist()) and len(rest.y) + len(carved.y) == len(y)
    for label, sizes in enumerate(counts):
        assert (rest.y == label).any()
        assert (carved.y == label).any() == (len(sizes) > 1)


def test_splits_do_not_change_with_versions():
    """The very numbers, so that results stay comparable; they come from no library's random generator."""
    y = np.repeat([0, 1], 10)
    _, carved = carve(numbered(np.arange(20), y), 0.3, seed=0)
    assert carved.x[:, 0].tolist() == [2, 4, 6, 10, 16, 18]


def test_validation_is_carved_from_train_only(root, monkeypatch):
    _, contents, _ = tiny_mnist(monkeypatch)
    put_mnist(root, contents)
    options = {"data_dir": root, "download": False}
    train, validation, test = splits_of("tiny", validation=0.25, seed=3, **options)
    assert (len(train), len(validation), len(test)) == (30, 10, 20)
    assert (train.split, validation.split, test.split) == ("train", "validation", "test")
    rows = {row.numpy().tobytes() for row in torch.cat([train.x, validation.x])}
    whole = load("tiny", **options)
    assert rows == {row.numpy().tobytes() for row in whole.x} and len(rows) == len(whole) == 40
    assert torch.equal(test.x, load("tiny", "test", **options).x)
    other = load("tiny", "validation", validation=0.25, seed=4, **options)
    assert not torch.equal(other.x, validation.x)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_shares_are_refused(root, share):
    refuses("validation must be a number", load, "digits", validation=share)


# Places


def test_the_order_of_places(root, tmp_path, monkeypatch):
    assert Path("/usr/share/datasets") == SYSTEM and SOURCES.entries["fashion-mnist"].folders == ("fashion-mnist",)
    _, contents, _ = tiny_mnist(monkeypatch, digests=False)
    variable = tmp_path / "variable"
    places = [root, variable, tmp_path / "cache" / "polybound", tmp_path / "system"]
    monkeypatch.setenv("POLYBOUND_DATA", str(variable))
    label = contents["train-labels-idx1-ubyte"]
    for number, place in reversed(list(enumerate(places))):
        put_mnist(place, contents | {"train-labels-idx1-ubyte": label[:8] + bytes([number] * 40)})
        found = load("tiny", data_dir=root if number == 0 else None, download=False)
        assert found.y.unique().tolist() == [number]


def test_only_the_wanted_split_is_needed(root, monkeypatch):
    _, contents, _ = tiny_mnist(monkeypatch)
    put_mnist(root, {name: content for name, content in contents.items() if name.startswith("t10k")})
    assert len(load("tiny", "test", data_dir=root, download=False)) == 20
    with pytest.raises(MissingDataError, match=r"train-images-idx3-ubyte\.gz, train-labels-idx1-ubyte\.gz"):
        load("tiny", data_dir=root, download=False)


def test_what_is_said_if_nothing_is_there(root, tmp_path, monkeypatch):
    tiny_mnist(monkeypatch)
    text = refuses("", load, "tiny", error=MissingDataError, data_dir=root, download=False)
    for place in (root, tmp_path / "cache" / "polybound", tmp_path / "system"):
        assert f"{place}/tiny" in text
    assert text.endswith(f"put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz into {root}/tiny")
    monkeypatch.setenv("POLYBOUND_DATA", str(root))
    with pytest.raises(MissingDataError, match=r"by 'polybound data get tiny', or .* into \$POLYBOUND_DATA/tiny$"):
        load("tiny", download=False)
    refuses(f"into {tmp_path}/tiny$", load, "tiny", error=MissingDataError, data_dir=tmp_path, download=False)
    refuses("has no address", load, "tiny", error=MissingDataError)


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    _, contents, _ = tiny_mnist(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    put_mnist(tmp_path / "mine", contents)
    assert len(load("tiny", data_dir="~/mine", download=False)) == 40


def test_plain_files_are_preferred_and_named(root, monkeypatch):
    _, contents, _ = tiny_mnist(monkeypatch)
    put_mnist(root, contents)
    write(root / "tiny" / "train-labels-idx1-ubyte", b"junk")
    refuses("train-labels-idx1-ubyte: ", load, "tiny", error=pb.FileFormatError, data_dir=root, download=False)
