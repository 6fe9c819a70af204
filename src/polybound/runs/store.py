"""A run on disk: what was asked for, what was measured, what came out.

    ROOT/NAME-ADDRESS/config.json          everything that determines the run
                      metrics.jsonl        one line an epoch, and one for each evaluation
                      model.safetensors    the trained model, once it is finished
    ROOT/.checkpoints/ADDRESS.safetensors  the state of runs that train together, while they do

The address is the SHA-256 of the config: the same question has the same folder, on every machine, and a finished run
need not be trained again. Every file is written atomically.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polybound.atomic import write_atomically
from polybound.errors import FileFormatError

__all__ = ["Run", "address", "checkpoint_path"]

Config = dict[str, Any]


def address(config: Config | list[Config]) -> str:
    """The content address of a config: 16 hexadecimal digits."""
    return hashlib.sha256(_canonical(config).encode()).hexdigest()[:16]


def _canonical(config: Config | list[Config]) -> str:
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def checkpoint_path(root: Path, configs: list[Config]) -> Path:
    """Where runs that train together keep their state."""
    folder = root / ".checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{address(configs)}.safetensors"


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    path: Path

    @classmethod
    def at(cls, root: Path, name: str, config: Config) -> Run:
        """The folder of a config, made if it is new."""
        run = cls(root / f"{name}-{address(config)}")
        run.path.mkdir(parents=True, exist_ok=True)
        if not (run.path / "config.json").exists():
            write_atomically(run.path / "config.json", (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
        return run

    @property
    def model_file(self) -> Path:
        """The trained model."""
        return self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run ended, well or badly; its model is written last."""
        return self.model_file.exists() or self.failure is not None

    @property
    def failure(self) -> str | None:
        """Why the run ended without a model; None if it did not."""
        for line in self.metrics():
            if "failure" in line:
                return str(line["failure"])
        return None

    def config(self) -> Config:
        """What was asked for."""
        content = _read_json(self.path / "config.json")
        if not isinstance(content, dict):
            raise FileFormatError(f"{self.path / 'config.json'}: not a run's config")
        return content

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of `metrics.jsonl`."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").splitlines()
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise FileFormatError(f"{file}: not JSON lines ({error})") from error

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Replace all lines."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.path / "metrics.jsonl", text.encode())

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Add a line, such as an evaluation's."""
        self.write_metrics([*self.metrics(), line])


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{file}: not JSON ({error})") from error
