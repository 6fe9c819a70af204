"""What a piece of code reads, writes and connects to, by Python's audit events."""

import os
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGING = {"os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (1,)}
_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


class Watch:
    """The reads and writes below a folder, and all connections.

    Attributes:
        reads: how often each file was opened for reading.
        writes: files and folders that were made, changed or removed.
        connections: whom somebody tried to talk to; nobody gets through.
    """

    def __init__(self, folder, *, read_only=False):
        self.folder, self.read_only = _absolute(folder), read_only
        self.reads, self.writes, self.connections = Counter(), [], []

    def see(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITING:
                self.written(path)
            elif not flags & getattr(os, "O_DIRECTORY", 0):
                self.read(path)
        elif event in _CHANGING:
            for place in _CHANGING[event]:
                self.written(arguments[place])
        elif event in _NETWORK:
            self.connections.append((event, *map(str, arguments[-2:])))
            raise OSError(f"{event}: tests are offline")

    def read(self, path):
        if self._inside(path):
            self.reads[_absolute(path)] += 1

    def written(self, path):
        if self._inside(path):
            self.writes.append(os.fsdecode(path))
            if self.read_only:
                raise PermissionError(13, "Permission denied", os.fsdecode(path))

    def _inside(self, path):
        if not isinstance(path, str | bytes | os.PathLike):  # a number: opened before
            return False
        return _absolute(path).is_relative_to(self.folder)


def _absolute(path):
    return Path(os.fsdecode(path)).absolute()


_watches: list[Watch] = []
_hooked = False


def _hook(event, arguments):
    for watch in tuple(_watches):
        watch.see(event, arguments)


@contextmanager
def watched(folder, *, read_only=False):
    """Watch what happens below a folder; `read_only` refuses to write there, even to root."""
    global _hooked
    if not _hooked:  # an audit hook stays for good: it looks at nothing while nobody watches
        sys.addaudithook(_hook)
        _hooked = True
    watch = Watch(folder, read_only=read_only)
    with pytest.MonkeyPatch.context() as patch:
        _watch_safetensors(patch)
        _watches.append(watch)
        try:
            yield watch
        finally:
            _watches.remove(watch)


_original = safetensors.safe_open


def _safe_open(filename, *args, **options):
    """`safe_open` opens files without Python's help, and so without an event."""
    for watch in _watches:
        watch.read(filename)
    return _original(filename, *args, **options)


def _watch_safetensors(patch):
    # A module that is imported meanwhile keeps this function, which then looks at nothing while nobody watches.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("polybound", "safetensors") and vars(module).get("safe_open") is _original:
            patch.setattr(module, "safe_open", _safe_open)
