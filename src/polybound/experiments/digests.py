"""Which data sets are on this machine, by their digests."""

from __future__ import annotations

from pathlib import Path

from polybound.data import digest_of, load, missing
from polybound.errors import PolyboundError

__all__ = ["digests"]


class digests:  # noqa: N801 - used as a function
    """The digests of data sets by name, each looked up once; "" for a data set that is not on this machine.

    Args:
        data_dir: where the data lies.
        fetch: whether to download what is missing.

    Attributes:
        problems: for each data set that could not be had, why.
    """

    def __init__(self, data_dir: Path | None = None, *, fetch: bool = False) -> None:
        self.data_dir, self.fetch = data_dir, fetch
        self.found: dict[str, str] = {}
        self.problems: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self.found:
            self.found[name] = ""
            try:
                if self.fetch and missing(name, self.data_dir):
                    load(name, "test", data_dir=self.data_dir)
                self.found[name] = digest_of(name, self.data_dir)
            except (PolyboundError, OSError) as error:
                self.problems[name] = str(error)
        return self.found[name]
