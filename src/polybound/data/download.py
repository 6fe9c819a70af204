"""Downloads: resumed where they were cut, checked before they get their name, and by one process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from polybound.data.content import DataFile, check_file, read_content
from polybound.data.progress import progress_bar
from polybound.errors import FileFormatError, PolyboundError

if TYPE_CHECKING:
    import requests

__all__ = ["DownloadError", "fetch"]

ATTEMPTS = 4  # at one address, for connections that break
PAUSE = 1.0  # seconds before the second attempt; twice as long before each further one
TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two bytes
_BLOCK = 1 << 16


class DownloadError(PolyboundError):
    """Nothing came from any address; the message says why."""


class _NoAnswerError(Exception):
    """An address cannot be reached, breaks off again and again, or has no such file."""


def fetch(file: DataFile, target: Path) -> None:
    """Download a file, unless it is there by now.

    What has come stays beside the target with ".part" behind its name until it is whole and its digest is right; the
    next attempt goes on from there.

    Raises:
        DownloadError: no address has it, or none can be reached.
        FileFormatError: what an address sent is not what it should be; it is not kept.
    """
    import pooch
    from filelock import FileLock

    if not file.urls:
        raise DownloadError(f"{file.stored} has no address to download it from")
    reasons, refusal = [], None
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".download.lock"):
            for url in file.urls:
                try:
                    # pooch downloads to a temporary name and moves the file when the downloader is content with it.
                    pooch.retrieve(url, None, fname=target.name, path=target.parent, downloader=_Resuming(file, target))
                    return
                except _NoAnswerError as error:
                    reasons.append(str(error))
                except FileFormatError as error:
                    refusal = error
    except OSError as error:  # of the disk; those of the network are _NoAnswerError
        raise DownloadError(f"{error.filename or target}: {error.strerror or error}") from error
    finally:
        logger.setLevel(level)
    raise refusal or DownloadError("; ".join(dict.fromkeys(reasons)))


class _Resuming:
    """A downloader for pooch that goes on where the last attempt ended, and checks what has come."""

    def __init__(self, file: DataFile, target: Path) -> None:
        self.file, self.part = file, target.with_name(f"{target.name}.part")

    def __call__(self, url: str, output: str, _: object) -> None:
        resumed = self.part.exists()
        self._complete(url)
        try:
            self._check(url)
        except FileFormatError:
            if not resumed:
                raise
            # The beginning may have been that of another version; from the start, then.
            self._complete(url)
            self._check(url)
        self.part.replace(output)

    def _complete(self, url: str) -> None:
        """Go on until all has come, through a few broken connections."""
        import requests
        from urllib3.exceptions import HTTPError

        host = urlsplit(url).netloc
        size = self.part.stat().st_size if self.part.exists() else 0
        total = None if self.file.gzipped else self.file.size  # how long a packed file is, nobody knows before
        with progress_bar(self.part.name.removesuffix(".part"), total) as advance:
            advance(size)
            for attempt in range(ATTEMPTS):
                if attempt:
                    time.sleep(PAUSE * 2 ** (attempt - 1))
                try:
                    self._receive(url, advance)
                    return
                except (requests.RequestException, HTTPError) as error:
                    reason = f"no connection to {host}" if isinstance(error, requests.ConnectionError) else str(error)
                    if isinstance(error, requests.ConnectionError) and attempt == 0:
                        break  # it never answered: this is what being offline looks like, and waiting is of no use
        raise _NoAnswerError(" ".join(reason.split()))

    def _receive(self, url: str, advance: Callable[[int], None]) -> None:
        import requests

        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == 416:  # nothing behind what is here: it is whole, or of something else
                if have and response.headers.get("Content-Range") == f"bytes */{have}":
                    return
                advance(-have)
                self._discard()
                raise requests.RequestException(f"{url}: cannot be resumed")
            if 400 <= response.status_code < 500:
                raise _NoAnswerError(f"{url}: {response.status_code} {response.reason}")
            response.raise_for_status()
            append = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if have and not append:
                advance(-have)
            self._store(url, response, have if append else 0, advance)

    def _store(self, url: str, response: requests.Response, have: int, advance: Callable[[int], None]) -> None:
        # The content must fit; what is packed can be somewhat longer than it, if it cannot be packed.
        limit = self.file.size + self.file.size // 100 + 4096 if self.file.gzipped else self.file.size
        with self.part.open("ab" if have else "wb") as out:
            for block in response.raw.stream(_BLOCK, decode_content=False):
                have += len(block)
                if have > limit:
                    self._discard()
                    raise FileFormatError(f"{url}: sends more than the {limit} bytes it should; not kept")
                out.write(block)
                advance(len(block))
            out.flush()
            os.fsync(out.fileno())

    def _check(self, url: str) -> None:
        """Refuse, and forget, what is not what it should be."""
        try:
            if self.file.gzipped:
                read_content(self.part, self.file)
            else:
                check_file(self.part, self.file)
        except FileFormatError as error:
            self._discard()
            reason = str(error).removeprefix(f"{self.part}: ")
            raise FileFormatError(f"{url}: what it sent is not kept: {reason}") from error

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
