"""What was seen while training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["History"]


@dataclass
class History:
    """One line an epoch, as a mapping: "epoch" (from 1), "loss", "rate", "seconds" and what callbacks add.

    Of a stack, "loss" and what is measured are lists, one value for each run.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.lines)

    def __getitem__(self, name: str) -> list[Any]:
        """One quantity over the epochs."""
        return [line.get(name) for line in self.lines]

    def __repr__(self) -> str:
        if not self.lines:
            return "History(no epochs)"
        return f"History({len(self.lines)} epochs, last loss {self.lines[-1]['loss']})"
