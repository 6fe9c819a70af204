"""A data set in memory: inputs scaled to [-1, 1], with their domain attached."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and labels of one split.

    Attributes:
        name: name of the data set.
        split: "train", "validation" or "test".
        x: inputs, (samples, *shape), float32.
        y: labels, (samples,), int64.
        class_names: one name for each class.
        domain: the smallest and largest value an input entry can have.
        note: what a reader of results must know of this split, such as that it is not an official one; often empty.
    """

    name: str
    split: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    domain: tuple[float, float] = (-1.0, 1.0)
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.x)
