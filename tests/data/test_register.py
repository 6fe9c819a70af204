"""Data sets of other packages: registered in one line, then known to everything that takes a name."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers.data import sha, splits_of, write
from helpers.errors import refuses
from polybound import data as sets
from polybound.data import Dataset, load, register
from polybound.data.dataset import BYTES, scaled_bytes

pytestmark = pytest.mark.usefixtures("registries")


@dataclass(frozen=True, kw_only=True)
class Spirals(sets.Source):
    """Two spirals in the plane, which are one computation and no files."""

    turns: float = 2.0

    def read(self, split: str, directories: sets.Directories) -> Dataset:
        if split not in ("train", "test"):
            raise self.no_such_split(split)
        t = np.linspace(0, 1, 40 if split == "train" else 20, dtype=np.float32)
        arm = np.stack([t * np.cos(2 * np.pi * self.turns * t), t * np.sin(2 * np.pi * self.turns * t)], axis=1)
        x = torch.from_numpy(np.concatenate([arm, -arm]))
        return Dataset("", split, x, torch.tensor([0, 1]).repeat_interleave(len(t)), ("in", "out"))


class Bytes(sets.Source):
    """Rows of bytes in a file, as small as a source with files can be."""

    FILE = sets.DataFile("rows.bin", 30, (sha(bytes(range(30))),))

    def read(self, split, directories):
        (path,) = directories.need(self.name, self.folders, (self.FILE,))
        x = np.frombuffer(path.read_bytes(), np.uint8).reshape(10, 3)
        return Dataset("", split, scaled_bytes(x), torch.arange(10) % 2, ("even", "odd"), scaling=BYTES)

    def files(self, *, full=False):
        return (self.FILE,)


def noise(split):
    generator = torch.Generator().manual_seed({"train": 0, "test": 1}[split])
    x = torch.rand(30, 4, generator=generator, dtype=torch.float64)
    return Dataset("anything", split, x, torch.arange(30) % 3, ("a", "b", "c"), (0.0, 1.0), "made up")


def test_a_source_of_ones_own():
    source = Spirals(name="spirals", title="two spirals")
    assert register(source) is source and sets.names()[-1] == "spirals"
    train, validation, test = splits_of("spirals", validation=0.25)
    assert (len(train), len(validation), len(test)) == (60, 20, 40) and train.class_names == ("in", "out")
    assert train.digest == validation.digest == test.digest == sets.digest_of("spirals") and train.held_out == 0.25
    register(Spirals(name="spirals-3", turns=3.0))
    assert sets.digest_of("spirals-3") != sets.digest_of("spirals") and not sets.missing("spirals")
    refuses("spirals has no official validation split", load, "spirals", "validation")


def test_a_source_with_files(root):
    register(Bytes(name="rows", folders=("rows",)))
    assert sets.missing("rows", root) and len(sets.digest_of("rows", root)) == 16
    refuses(f"put rows.bin into {root}/rows", load, "rows", error=sets.MissingDataError, data_dir=root, download=False)
    write(root / "rows" / "rows.bin", bytes(range(30)))
    data = load("rows", data_dir=root, download=False)
    assert data.shape == (3,) and data.digest == sets.digest_of("rows", root) and not sets.missing("rows", root)


def test_a_function():
    assert register(noise) is noise
    data = load("noise", "test")
    assert (data.name, data.split, data.domain, data.note) == ("noise", "test", (0.0, 1.0), "made up")
    assert data.x.dtype == torch.float32 and torch.equal(data.x, noise("test").x.float())
    assert data.digest == load("noise").digest == sets.digest_of("noise")
    carved = load("noise", "validation", validation=0.2)
    assert len(carved) == 6 and carved.domain == (0.0, 1.0)
    refuses("noise has no official validation split", load, "noise", "validation")
    refuses("split must be", load, "noise", "dev")


def test_names_that_are_taken_or_none_are_refused():
    register(noise)
    for source, name in ((noise, ""), (noise, "mnist"), (Spirals(name="digits"), ""), (Spirals(name="noise"), "")):
        refuses(r"there is a data set called '(noise|mnist|digits)' already", register, source, name=name)
    for name in ("folder:here", "two words", "../up", "a/b"):
        refuses("cannot be called", register, noise, name=name)
    refuses("cannot be called", register, lambda split: noise(split))
    refuses("an object of Spirals, not the class", register, Spirals)
    assert load("digits").shape == (1, 8, 8)
