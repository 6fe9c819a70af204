"""The errors polybound raises on purpose, and the checks that raise them; each message is one line: what to do."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any


class PolyboundError(ValueError):
    """Bad input of any kind. The command line prints its message and exits with code 2."""


class ArgumentError(PolyboundError):
    """A value that an argument cannot have. The command line puts the option's own name before what is wrong.

    Attributes:
        name: of the argument.
        problem: what is wrong, as the rest of a sentence that begins with the name. `name=value` in it means another
            argument, which the command line shows as an option too.

    >>> str(ArgumentError("limit", "must be at least 1, got 0"))
    'limit must be at least 1, got 0'
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


class FileFormatError(PolyboundError):
    """A file that cannot be read as what it should be: truncated, damaged or foreign."""


class NonFiniteError(PolyboundError, ArithmeticError):
    """A value overflowed or became NaN; the message says where and when."""


def reason(error: Exception) -> str:
    """The message of an error; a `KeyError` alone would give the bare key.

    >>> reason(KeyError("seed")), reason(ValueError("no number"))
    ("'seed' is missing", 'no number')
    """
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)


def check_int(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return the value if it is a whole number of at least `least` and at most `most`.

    >>> check_int("rank", True)
    Traceback (most recent call last):
    polybound.errors.ArgumentError: rank must be a whole number of at least 1, got True
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ArgumentError(name, f"must be a whole number {allowed}, got {value!r}")
    return value


def check_number(name: str, value: Any, most: float = inf, *, below: float = inf) -> float:
    """Return the value if it is a finite number of at least 0, at most `most` and smaller than `below`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or not value < below:
        allowed = f"number from 0 to {most:g}" if most < inf else "finite number of at least 0"
        allowed = f"number of at least 0 and below {below:g}" if below < inf else allowed
        raise ArgumentError(name, f"must be a {allowed}, got {value!r}")
    return value


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return the value if it is one of some words."""
    if value not in choices:
        raise ArgumentError(name, f"must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def check_text(name: str, value: Any) -> str:
    """Return the value if it is a string."""
    if not isinstance(value, str):
        raise ArgumentError(name, f"must be a string, got {value!r}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return the value if it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(name, f"must be True or False, got {value!r}")
    return value


def check_norm(norm: object) -> str:
    """Return a norm's name, "inf" or "2", which may be given as a number.

    >>> check_norm(2), check_norm("inf"), check_norm(float("inf"))
    ('2', 'inf', 'inf')
    """
    name = str(norm).removesuffix(".0")
    if name not in ("inf", "2"):
        raise ArgumentError("norm", f"must be 'inf' or '2', got {norm!r}")
    return name


def check_domain(domain: Any) -> tuple[float, float]:
    """Return the smallest and the largest value that an input entry can have.

    >>> check_domain([0, 1])
    (0.0, 1.0)
    """
    try:
        low, high = map(float, domain)
    except (TypeError, ValueError):
        low = high = 0.0
    if not low < high:
        raise PolyboundError(f"a domain is its smallest and largest value, such as (0, 1), got {domain!r}")
    return low, high


def existing_folder(path: str | PathLike[str]) -> Path:
    """Return the path if it is a folder."""
    if not Path(path).is_dir():
        raise PolyboundError(f"{path}: no such folder")
    return Path(path)


def writable_file(path: str | PathLike[str]) -> Path:
    """Return the path if a file can have it: it lies in a folder that exists, and is none itself."""
    existing_folder(Path(path).parent)
    if Path(path).is_dir():
        raise PolyboundError(f"{path}: a folder, not a file")
    return Path(path)


def require(module: str, extra: str, what: str) -> Any:
    """Import an optional module, or say which extra of polybound installs it.

    Args:
        module: its full name.
        extra: of polybound, "plot".
        what: what needs it, the subject of the message.

    >>> require("no_such_module", "plot", "a picture")
    Traceback (most recent call last):
    polybound.errors.PolyboundError: a picture needs no_such_module: pip install 'polybound[plot]'
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
        return import_module(module)
    except ImportError as error:
        cause = "" if error.name == package else f" ({error})"  # it is there, and something that it needs is not
        raise PolyboundError(f"{what} needs {package}: pip install 'polybound[{extra}]'{cause}") from error
