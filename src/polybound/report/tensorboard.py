"""Metrics as TensorBoard events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polybound.errors import require


class EventLog:
    """Writes the numbers of a run's metrics as scalars, by epoch, into files that TensorBoard reads.

    Args:
        folder: where to; the run's own, as a rule. Files of earlier processes are added to, not replaced.

    Raises:
        PolyboundError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        tensorboard = require("tensorboardX", "tensorboard", "a folder of events")
        self._open: Callable[[], Any] = lambda: tensorboard.SummaryWriter(str(folder), flush_secs=10)
        self._writer: Any = None  # opened by the first line: a training that is refused leaves no folder

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of metrics."""
        self._writer = self._writer or self._open()
        for name, value in line.items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, line["epoch"])

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
