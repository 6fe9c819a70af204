"""Downloads: checked before they get their name, and by one process at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from polybound.data.files import DataFile, checksum
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["DownloadError", "fetch", "progress"]

ATTEMPTS = 4  # at one address, for connections that break
TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two bytes
_BLOCK = 1 << 16

Item = TypeVar("Item")


class DownloadError(PolyboundError):
    """Nothing came from any address; the message says why."""


class _FinalError(Exception):
    """Carries an error that another attempt would not change past pooch, which tries again after a ValueError."""


def fetch(file: DataFile, target: Path) -> None:
    """Download a file, unless it is there by now.

    Raises:
        DownloadError: no address has it, or none can be reached.
        FileFormatError: what an address sent is not what it should be; it is not kept.
    """
    from filelock import FileLock

    if not file.urls:
        raise DownloadError(f"{file.stored} has no address to download it from")
    errors: list[PolyboundError] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".download.lock"):
            for url in file.urls:
                try:
                    return _fetch_from(url, file, target)
                except PolyboundError as error:
                    errors.append(error)
    except OSError as error:  # of the disk
        raise DownloadError(f"{error.filename or target}: {error.strerror or error}") from error
    refusals = [error for error in errors if isinstance(error, FileFormatError)]
    raise refusals[-1] if refusals else DownloadError("; ".join(dict.fromkeys(map(str, errors))))


def _fetch_from(url: str, file: DataFile, target: Path) -> None:
    import pooch
    import requests

    def download(url: str, output: str, _: object) -> None:
        try:
            _receive(url, file, Path(output), target.name)
        except PolyboundError as error:
            raise _FinalError(error) from error

    # pooch tries again, downloads to a temporary name, and moves the file when the downloader is content with it.
    registry = pooch.create(
        target.parent, "", registry={target.name: None}, urls={target.name: url}, retry_if_failed=ATTEMPTS - 1
    )
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        registry.fetch(target.name, downloader=download)
    except _FinalError as final:
        raise final.args[0] from final
    except requests.RequestException as error:
        raise DownloadError(" ".join(str(error).split())) from error
    finally:
        logger.setLevel(level)


def _receive(url: str, file: DataFile, output: Path, name: str) -> None:
    """Download to output, and check it; what raises a PolyboundError is not worth another attempt."""
    import requests

    # The content must fit; what is packed can be somewhat longer than it, if it cannot be packed.
    limit = file.size + file.size // 100 + 4096 if file.gzipped else file.size
    output.unlink(missing_ok=True)  # pooch has made it for its owner's eyes only
    try:
        response = requests.get(url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=TIMEOUT)
    except requests.ConnectionError as error:  # this is what being offline looks like, and waiting is of no use
        raise DownloadError(f"no connection to {urlsplit(url).netloc}") from error
    with response, output.open("wb") as out:
        if 400 <= response.status_code < 500:
            raise DownloadError(f"{url}: {response.status_code} {response.reason}")
        response.raise_for_status()
        for block in progress(response.iter_content(_BLOCK), name, None if file.gzipped else file.size / _BLOCK):
            if out.tell() + len(block) > limit:
                raise FileFormatError(f"{url}: sends more than the {limit} bytes it should; not kept")
            out.write(block)
    try:
        checksum(output, file)
    except FileFormatError as error:
        refusal = str(error).removeprefix(f"{output}: ")
        raise FileFormatError(f"{url}: what it sent is not kept: {refusal}") from error


def progress(items: Iterable[Item], description: str, total: float | None) -> Iterable[Item]:
    """The items themselves; while they are taken, a bar shows how many of so many are done, if there is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, description, total, console=console, transient=True, disable=not console.is_terminal)
