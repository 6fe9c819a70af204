"""The facts of a bug report: versions, threads, devices, data, plugins. Whatever is broken is said, never raised.

Nothing but the standard library is imported before it is looked at, so that a broken torch can be named as well.
"""

from __future__ import annotations

import importlib
import io
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

from polybound._version import __version__
from polybound.parallel import THREADS
from polybound.progress import Show
from polybound.registry import check_plugins

Facts = dict[str, Any]


def diagnose(
    data_dir: str | PathLike[str] | None = None,
    *,
    fast: bool = False,
    on_progress: Show = lambda *_: None,
) -> Facts:
    """All facts, as JSON can hold them; a fact that cannot be found out is replaced by the reason.

    Args:
        data_dir: where data are looked for first.
        fast: look up the versions of packages without importing each.
        on_progress: called with "done, total, text"; the text is the package that is looked at.

    >>> sorted(diagnose(fast=True))[:4]
    ['data', 'devices', 'extras', 'packages']
    """

    def packages(names: list[str]) -> Facts:
        return {name: _package(name, None if fast else on_progress) for name in names}

    sections: dict[str, Callable[[], Any]] = {
        "polybound": lambda: {"version": __version__, "folder": _short(Path(__file__).parent)},
        "python": lambda: {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": _short(Path(sys.executable)),
            "machine": platform.platform(),
        },
        "packages": lambda: packages(requirements()[""]),
        "extras": lambda: {extra: packages(names) for extra, names in requirements().items() if extra},
        "threads": _threads,
        "devices": _devices,
        "plugins": lambda: {name: f"{BROKEN}{why}" if why else "imported" for name, why in check_plugins().items()},
        "data": lambda: _data(data_dir),
    }
    return {name: _guarded(facts) for name, facts in sections.items()}


def problems(facts: Facts) -> list[str]:
    """The broken facts, a line each; an absent package or data set is no problem."""
    found = []
    for name, value in facts.items():
        if isinstance(value, dict):
            found += [f"{name}, {line}" for line in problems(value)]
        elif isinstance(value, str) and value.startswith(BROKEN):
            found.append(f"{name}: {value}")
    return found


BROKEN = "broken: "
"""The prefix of a fact that reports something broken."""


def _guarded(facts: Callable[[], Any]) -> Any:
    """The result of a function, or why it fails."""
    try:
        return facts()
    except Exception as error:  # whatever is broken
        return _reason(error)


def _reason(error: BaseException) -> str:
    return f"{BROKEN}{' '.join(f'{type(error).__name__}: {error}'.split())[:300]}"


def _short(path: Path) -> str:
    """A path with ~ for the user's own folder: the facts are for others to read."""
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)


def requirements() -> dict[str, list[str]]:
    """The packages that polybound needs, under "", and those of each extra; developers' extras are left out."""
    found: dict[str, list[str]] = {"": []}
    for line in metadata.requires("polybound") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)", line)
        if (name := extra.group(1) if extra else "") not in ("dev", "docs", "test"):
            found.setdefault(name, []).append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return found


def module_of(package: str) -> str:
    """The name that an installed package is imported by: "sklearn" for scikit-learn."""
    found = metadata.distribution(package)
    tops = (found.read_text("top_level.txt") or "").split() or [
        str(file).partition("/")[0] for file in found.files or ()
    ]
    names = [top for top in tops if top.isidentifier() and not top.startswith("_")]
    own = package.replace("-", "_")
    return own if own in names or not names else names[0]


def _package(name: str, on_progress: Show | None) -> str:
    """A package's version, "absent", or why it cannot be imported, if `on_progress` says that that is tried."""
    try:
        found, module = metadata.version(name), module_of(name)
    except metadata.PackageNotFoundError:
        return "absent"
    except Exception as error:  # metadata that cannot be read
        return _reason(error)
    if on_progress is None:
        return found
    on_progress(0, None, name)
    try:
        # Silence the package: its output would end up among the facts.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module can even exit
        return f"{_reason(error)} (version {found})"
    return found


def _threads() -> Facts:
    facts: Facts = {"cores": os.cpu_count() or 0}
    if hasattr(os, "sched_getaffinity"):
        facts["usable cores"] = len(os.sched_getaffinity(0))
    facts |= {name: os.environ[name] for name in THREADS if name in os.environ}
    return facts | {"torch": _guarded(lambda: importlib.import_module("torch").get_num_threads())}


def _devices() -> Any:
    torch = importlib.import_module("torch")
    facts: Facts = {"cpu": _guarded(torch.backends.cpu.get_cpu_capability)}
    if torch.cuda.is_available():
        names = (torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count()))
        facts |= {f"cuda:{place}": name for place, name in enumerate(names)}
    else:
        facts["cuda"] = "absent"
    return facts | {"mps": "present" if torch.backends.mps.is_available() else "absent"}


def _data(data_dir: str | PathLike[str] | None) -> Facts:
    """The folders in which data are looked for; `polybound data list` shows what is found in them."""
    from polybound.data import Directories

    return {_short(root): _guarded(partial(_folder, root)) for root in Directories(data_dir).roots}


def _folder(path: Path) -> str:
    """Whether a folder is there and can be read."""
    if not path.exists():
        return "absent"
    if not path.is_dir():
        return f"{BROKEN}not a folder"
    next(path.iterdir(), None)
    return "present"
