"""Reading the pickles of CIFAR-10's python version without unpickling: nothing in a file is ever called or imported.

The opcodes are taken one by one and only build dictionaries, lists, tuples, numbers, strings and arrays of bytes. The
few functions that such a file refers to are recognised by name, and what they would have done is done here.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polybound.errors import FileFormatError

__all__ = ["read_pickled_dict"]

_RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}


@dataclass(frozen=True)
class _Name:
    """A function or class that a pickle refers to; here only its name."""

    text: str


class _Array:
    """An array of bytes, empty until its state comes."""

    value: np.ndarray[Any, np.dtype[np.uint8]] | None = None


class _Bytes:
    """The type of unsigned bytes, in the place of numpy's."""


class _Mark:
    """Where the items of a list, dictionary or tuple begin on the stack."""


class _RefusedError(Exception):
    """The pickle does something that no batch of CIFAR-10 does."""


def read_pickled_dict(content: bytes, where: str | Path) -> dict[str, Any]:
    """The dictionary in a pickle, with byte strings as bytes, its keys as text, and arrays of bytes as arrays.

    Raises:
        FileFormatError: the pickle is truncated or damaged, or does more than build plain values and arrays of bytes.
    """
    machine = _Machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in damaged strings
            for opcode, argument, position in pickletools.genops(content):
                machine.take(opcode.name, argument)
                if opcode.name == "STOP" and (position or 0) + 1 != len(content):
                    raise _RefusedError("something lies behind its end")
        result = machine.result
        if not isinstance(result, dict):
            raise _RefusedError("it holds no dictionary")
        return {_text(key): value.value if isinstance(value, _Array) else value for key, value in result.items()}
    except _RefusedError as error:
        raise FileFormatError(f"{where}: refused as a pickle: {error}; nothing of it was run") from error
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise FileFormatError(
            f"{where}: truncated, damaged or not a pickle ({' '.join(str(error).split())})"
        ) from error


def _text(key: object) -> str:
    if not isinstance(key, str | bytes):
        raise _RefusedError(f"a key of its dictionary is of type {type(key).__name__}")
    return key if isinstance(key, str) else key.decode("latin-1")


class _Machine:
    """The pickle machine's stack and memory, and the opcodes it takes."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def take(self, name: str, argument: Any) -> None:
        """Do what one opcode says."""
        match name:
            case "PROTO" | "FRAME":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1":
                self.stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES":
                self.stack.append(argument)
            case "BINSTRING" | "SHORT_BINSTRING":  # Python 2's strings are bytes
                self.stack.append(argument.encode("latin-1"))
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                self.stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
            case "MARK":
                self.stack.append(_Mark)
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case "TUPLE":
                self.stack.append(tuple(self._items()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self._pop() for _ in range(int(name[-1]))]
                self.stack.append(tuple(reversed(items)))
            case "APPEND" | "APPENDS":
                items = [self._pop()] if name == "APPEND" else self._items()
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._items()
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                self.stack.append(_Name(argument))
            case "STACK_GLOBAL":
                name_, module = self._pop(), self._pop()
                self.stack.append(_Name(f"{module} {name_}"))
            case "REDUCE":
                arguments, function = self._pop(), self._pop()
                self.stack.append(_called(function, arguments))
            case "BUILD":
                state = self._pop()
                _set_state(self.stack[-1], state)
            case "STOP":
                self.result = self._pop()
                if self.stack:
                    raise _RefusedError("values are left on its stack")
            case _:
                raise _RefusedError(f"opcode {name}")

    def _pop(self) -> Any:
        value = self.stack.pop()
        if value is _Mark:
            raise _RefusedError("a mark in the place of a value")
        return value

    def _items(self) -> list[Any]:
        start = len(self.stack) - 1 - self.stack[::-1].index(_Mark)
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise _RefusedError(f"items for a {kind.__name__}, but there is none")
        return self.stack[-1]


def _called(function: object, arguments: object) -> object:
    """What a call of one of the few known functions gives; all others are refused by name."""
    name = function.text if isinstance(function, _Name) else repr(function)
    if name in _RECONSTRUCT and isinstance(arguments, tuple) and arguments[:1] == (_Name("numpy ndarray"),):
        return _Array()
    if name == "numpy dtype" and isinstance(arguments, tuple) and arguments[:1] in (("u1",), (b"u1",)):
        return _Bytes()
    if name == "_codecs encode" and isinstance(arguments, tuple) and len(arguments) == 2 and arguments[1] == "latin1":
        return arguments[0].encode("latin-1")  # how Python 3 writes bytes for Python 2
    raise _RefusedError(f"it calls {name.replace(' ', '.')}")


def _set_state(target: object, state: object) -> None:
    if isinstance(target, _Bytes):
        return  # byte order, alignment and the like; single bytes have none
    if not isinstance(target, _Array):
        raise _RefusedError(f"it sets the state of a {type(target).__name__}")
    if not isinstance(state, tuple) or len(state) != 5:
        raise _RefusedError("an array's state is not (version, shape, type, order, bytes)")
    _, shape, kind, fortran, data = state
    if not isinstance(kind, _Bytes) or fortran or not isinstance(data, bytes):
        raise _RefusedError("an array of something else than bytes in C order")
    if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) != len(data):
        raise _RefusedError(f"an array of shape {shape} with {len(data)} bytes")
    target.value = np.frombuffer(data, np.uint8).reshape(shape)
