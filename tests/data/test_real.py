"""The real files, where the environment variable POLYBOUND_DATA says that there are some."""

import os

import pytest
import torch

import polybound as pb
from helpers.data import splits_of
from polybound.data import Directories, digest_of, load
from polybound.data.catalogue import SOURCES

DATA = os.environ.get("POLYBOUND_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="POLYBOUND_DATA is not set")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    """Features are computed here, not taken from what an earlier version left in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def needed(name):
    place = SOURCES.entries[name].locate(Directories(download=False))
    if place is None:
        pytest.skip(f"{name} is not there")
    return place


# Mean and standard deviation of the train split's pixels in [0, 1], as many have published them; and first labels.
PUBLISHED = {
    "mnist": (0.1307, 0.3081, [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
    "fashion-mnist": (0.2860, 0.3530, [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
    "kmnist": (0.1918, 0.3483, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_mnists(name):
    needed(name)
    train, test = load(name, "train", download=False), load(name, "test", download=False)
    assert (len(train), len(test)) == (60000, 10000) and train.shape == (1, 28, 28) and train.classes == 10
    assert (train.x.min(), train.x.max()) == (-1, 1) and train.note == ""
    assert train.digest == test.digest == digest_of(name)
    mean, deviation, first = PUBLISHED[name]
    pixels = (train.x + 1) / 2
    found = pixels.mean(dtype=torch.float64).item()
    assert found == pytest.approx(mean, abs=6e-5)
    assert (pixels.square().mean(dtype=torch.float64).item() - found**2) ** 0.5 == pytest.approx(deviation, abs=6e-5)
    assert first is None or train.y[:10].tolist() == first
    if name != "mnist":
        assert set(train.y.bincount().tolist()) == {6000} and set(test.y.bincount().tolist()) == {1000}
    else:
        carved = load(name, "validation", validation=0.1, download=False)
        assert len(carved) == 6000 and (carved.y.bincount() - train.y.bincount() / 10).abs().max() < 1


def test_cifar10():
    needed("cifar10")
    train, test = load("cifar10", "train", download=False), load("cifar10", "test", download=False)
    assert train.x.shape == (50000, 3, 32, 32) and test.x.shape == (10000, 3, 32, 32)
    assert train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3] and test.y[:4].tolist() == [3, 8, 8, 0]
    assert set(train.y.bincount().tolist()) == {5000} and train.digest == test.digest == digest_of("cifar10")
    means = train.x.mean((0, 2, 3), dtype=torch.float64) / 2 + 0.5
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=6e-5)


def test_nsynth():
    needed("nsynth")
    rest, validation, test = splits = splits_of("nsynth", validation=0.15, download=False)
    if SOURCES.entries["nsynth"].archives["train"].name in {path.name for path in needed("nsynth").iterdir()}:
        pytest.skip("all of NSynth is there")
    assert sum(map(len, splits)) == 4096 and rest.shape == (1, 32, 32) and rest.classes == 11
    assert "divided by instrument" in test.note
    assert {split.digest for split in splits} == {digest_of("nsynth")}
    for split in splits:
        assert split.x.abs().max() <= 1 and 0.3 < split.x.std() < 0.8
    train = torch.cat([rest.y, validation.y])
    # All ten families of the official test split are on both sides of train and test; there is no lead in it.
    for y in (train, test.y):
        counts = y.bincount(minlength=11)
        assert counts[9] == 0 and (counts > 0).sum() == 10
    assert 0.15 < len(test) / 4096 < 0.3


@pytest.mark.parametrize("name", ["mnist", "kmnist", "fashion-mnist", "cifar10", "nsynth"])
def test_all_files_are_what_they_should_be(name):
    needed(name)
    assert [problem for _, problem in SOURCES.entries[name].check(Directories(download=False)) if problem] == []


@pytest.mark.parametrize(("name", "accuracy"), [("pn-4", 0.8721), ("pn-4-bound-1", 0.7810)])
def test_the_trained_examples_classify_as_they_say(name, accuracy):
    needed("fashion-mnist")
    assert pb.accuracy(pb.example(name), load("fashion-mnist", "test", download=False)) == pytest.approx(
        accuracy, abs=2e-4
    )
