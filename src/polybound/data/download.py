"""Downloads: resumed where they were cut, checked before they get their name, and by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from polybound.data.checksums import DataFile, check_file, read_content
from polybound.errors import FileFormatError, PolyboundError

if TYPE_CHECKING:
    import requests

__all__ = ["DownloadError", "fetch", "progress_bar"]

ATTEMPTS = 4  # at one address, for connections that break
TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two bytes
_BLOCK = 1 << 16


class DownloadError(PolyboundError):
    """Nothing came from any address; the message says why."""


class _FinalError(Exception):
    """What another attempt at the same address would not change; pooch does not try again."""

    def __init__(self, error: PolyboundError) -> None:
        super().__init__(str(error))
        self.error = error


def fetch(file: DataFile, target: Path) -> None:
    """Download a file, unless it is there by now.

    What has come stays beside the target with ".part" behind its name until it is whole and its checksum is right; the
    next attempt goes on from there.

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
                error = _from_address(url, file, target)
                if error is None:
                    return
                errors.append(error)
    except OSError as error:  # of the disk
        raise DownloadError(f"{error.filename or target}: {error.strerror or error}") from error
    refusals = [error for error in errors if isinstance(error, FileFormatError)]
    raise refusals[-1] if refusals else DownloadError("; ".join(dict.fromkeys(map(str, errors))))


def _from_address(url: str, file: DataFile, target: Path) -> PolyboundError | None:
    """What went wrong with the download from one address, if anything did."""
    import pooch
    import requests

    # pooch tries again, downloads to a temporary name, and moves the file when the downloader is content with it.
    registry = pooch.create(
        target.parent, "", registry={target.name: None}, urls={target.name: url}, retry_if_failed=ATTEMPTS - 1
    )
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        registry.fetch(target.name, downloader=_Resuming(file, target))
    except _FinalError as final:
        return final.error
    except requests.RequestException as error:
        return DownloadError(" ".join(str(error).split()))
    finally:
        logger.setLevel(level)
    return None


class _Resuming:
    """A downloader for pooch that goes on where the last attempt ended, and checks what has come."""

    def __init__(self, file: DataFile, target: Path) -> None:
        self.file, self.part, self.answered = file, target.with_name(f"{target.name}.part"), False

    def __call__(self, url: str, output: str, _: object) -> None:
        import requests
        from urllib3.exceptions import HTTPError

        have = self.part.stat().st_size if self.part.exists() else 0
        try:
            self._receive(url, have)
        except requests.ConnectionError as error:
            reason = f"no connection to {urlsplit(url).netloc}"
            if self.answered:
                raise requests.ConnectionError(reason) from error
            # It never answered: this is what being offline looks like, and waiting is of no use.
            raise _FinalError(DownloadError(reason)) from error
        except HTTPError as error:  # the connection broke
            raise requests.RequestException(str(error)) from error
        self._check(url, resumed=have > 0)
        self.part.replace(output)

    def _receive(self, url: str, have: int) -> None:
        import requests

        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            self.answered = True
            if response.status_code == 416:  # nothing behind what is here: it is whole, or of something else
                if have and response.headers.get("Content-Range") == f"bytes */{have}":
                    return
                self.part.unlink(missing_ok=True)
                raise requests.RequestException(f"{url}: cannot be resumed")
            if 400 <= response.status_code < 500:
                raise _FinalError(DownloadError(f"{url}: {response.status_code} {response.reason}"))
            response.raise_for_status()
            resumes = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            self._store(url, response, have if resumes else 0)

    def _store(self, url: str, response: requests.Response, have: int) -> None:
        # The content must fit; what is packed can be somewhat longer than it, if it cannot be packed.
        limit = self.file.size + self.file.size // 100 + 4096 if self.file.gzipped else self.file.size
        total = None if self.file.gzipped else self.file.size  # how long a packed file is, nobody knows before
        with (
            progress_bar(self.part.name.removesuffix(".part"), total) as advance,
            self.part.open("ab" if have else "wb") as out,
        ):
            advance(have)
            for block in response.raw.stream(_BLOCK, decode_content=False):
                have += len(block)
                if have > limit:
                    self.part.unlink()
                    raise _FinalError(FileFormatError(f"{url}: sends more than the {limit} bytes it should; not kept"))
                out.write(block)
                advance(len(block))
            out.flush()
            os.fsync(out.fileno())

    def _check(self, url: str, *, resumed: bool) -> None:
        """Refuse, and forget, what is not what it should be."""
        import requests

        try:
            (read_content if self.file.gzipped else check_file)(self.part, self.file)
        except FileFormatError as error:
            self.part.unlink(missing_ok=True)
            refusal = f"{url}: what it sent is not kept: {str(error).removeprefix(f'{self.part}: ')}"
            if resumed:  # the beginning may have been that of another version; from the start, then
                raise requests.RequestException(refusal) from error
            raise _FinalError(FileFormatError(refusal)) from error


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how many of so many bytes are done; yields what to call with each further number of bytes.

    Nothing is shown where nobody looks, that is where standard error is no terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
