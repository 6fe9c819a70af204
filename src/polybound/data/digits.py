"""The built-in data set: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from polybound.data.content import DataFile
from polybound.data.dataset import Dataset
from polybound.data.samples import Samples
from polybound.data.shelf import Shelf
from polybound.data.source import Source, verdict
from polybound.errors import PolyboundError

__all__ = ["DigitsSource", "load_digits"]


def load_digits(split: Literal["train", "test"] = "train") -> Dataset:
    """The digits, pixels scaled from 0..16 to [-1, 1]: 1,437 to train with, 360 to test with.

    They come without an official split; this one is stratified and always the same.
    """
    if split not in ("train", "test"):
        raise PolyboundError(f"split must be 'train' or 'test', got {split!r}")
    from sklearn.datasets import load_digits as from_sklearn
    from sklearn.model_selection import train_test_split

    raw = from_sklearn()
    parts = train_test_split(raw.images, raw.target, test_size=0.2, random_state=0, stratify=raw.target)
    images, labels = (parts[0], parts[2]) if split == "train" else (parts[1], parts[3])
    x = torch.tensor(images / 8.0 - 1.0, dtype=torch.float32).unsqueeze(1)
    return Dataset(
        "digits", split, x, torch.tensor(labels, dtype=torch.int64), tuple(str(digit) for digit in range(10))
    )


@dataclass(frozen=True, kw_only=True)
class DigitsSource(Source):
    """The digits, as one data set among the others; scikit-learn brings them."""

    def read(self, split: str, shelf: Shelf) -> Samples:
        del shelf
        if split not in ("train", "test"):
            raise self.no_such_split(split)
        data = load_digits("train" if split == "train" else "test")
        return Samples(data.x.numpy(), data.y.numpy().astype(np.int64), data.class_names)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return ()

    def locate(self, shelf: Shelf) -> Path | None:
        del shelf
        import sklearn

        return Path(sklearn.__file__).parent

    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        place = self.locate(shelf)
        if place is not None:
            yield verdict(place, load_digits)
