"""What was seen while training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from polybound.errors import PolyboundError

__all__ = ["History"]


@dataclass
class History:
    """One line an epoch, as a mapping: "epoch" (from 1), "loss", "rate", "seconds" and what callbacks add.

    With a validation split there are "validation loss" and, for labels, "validation accuracy"; norms are "norm U1" and
    so on. Of a stack, "loss" and what is measured are lists, one value for each run.

    Attributes:
        lines: the mappings.
        best: the epoch, from 1, whose weights early stopping restored; of a stack one for each run; None without it.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    best: int | list[int] | None = None

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
        last = self.lines[-1]
        shown = ", ".join(f"{name} {_short(last[name])}" for name in _SHOWN if name in last)
        chosen = "" if self.best is None else f"; best epoch {_short(self.best)}"
        return f"History({len(self.lines)} epochs{chosen}; last: {shown})"

    def rows(self) -> list[dict[str, Any]]:
        """One flat mapping an epoch, and of a stack one for each run of it, with its number as "run"."""
        found: list[dict[str, Any]] = []
        for line in self.lines:
            runs = next((len(value) for value in line.values() if isinstance(value, list)), None)
            for run in range(1 if runs is None else runs):
                one = {name: value[run] if isinstance(value, list) else value for name, value in line.items()}
                found.append(one if runs is None else {"run": run, **one})
        return found

    def frame(self) -> Any:
        """The history as a pandas `DataFrame`: a row an epoch, and of a stack one for each run of it."""
        try:
            import pandas as pd
        except ImportError:
            raise PolyboundError("a frame needs pandas: pip install 'polybound[experiments]'") from None
        return pd.DataFrame(self.rows())

    def plot(self, axes: Any = None) -> Any:
        """Draw the losses over the epochs; returns matplotlib's axes.

        Args:
            axes: where to draw; new ones by default.
        """
        if axes is None:
            try:
                import matplotlib.pyplot as plt
            except ImportError:
                raise PolyboundError("a plot needs matplotlib: pip install 'polybound[plot]'") from None
            _, axes = plt.subplots(layout="constrained")
        runs = dict.fromkeys(row.get("run") for row in self.rows())
        for name, style in (("loss", "-"), ("validation loss", "--")):
            for run in runs:
                rows = [row for row in self.rows() if row.get("run") == run and row.get(name) is not None]
                label = name if run is None else f"{name}, run {run}"
                if rows:
                    axes.plot([row["epoch"] for row in rows], [row[name] for row in rows], style, label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel("loss")
        axes.legend()
        return axes


_SHOWN = ("loss", "validation loss", "validation accuracy")


def _short(value: Any) -> str:
    """A number, or the first and last of several."""
    if isinstance(value, list):
        return f"{_short(min(value))} to {_short(max(value))}" if len(value) > 1 else _short(value[0])
    return f"{value:.4g}"
