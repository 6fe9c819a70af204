"""Things by name: their settings, the registry that builds them, checks of values, and plugins.

Python code imports such a module itself. The command line, and the workers of a sweep, import the modules that are
named in the environment variable POLYBOUND_PLUGINS, separated by commas, and those that installed packages name by an
entry point of the group "polybound":

    [project.entry-points.polybound]
    mine = "my_package.methods"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from polybound.errors import ArgumentError, PolyboundError

__all__ = [
    "GROUP",
    "VARIABLE",
    "Component",
    "Registry",
    "check_plugins",
    "check_start",
    "load_plugins",
    "plugin_names",
    "read_setting",
    "setting_text",
    "shown",
    "start_epoch",
]


def setting_text(value: Any) -> str:
    """A number, truth value or lower-case word as a name gives it: the shortest text that is read back as the same.

    >>> setting_text(0.1), setting_text(2.0), setting_text(True), setting_text("inf")
    ('0.1', '2', 'true', 'inf')
    """
    return repr(float(value) + 0.0).removesuffix(".0") if isinstance(value, float) else str(value).lower()


def read_setting(text: str, kind: type) -> Any:
    """The value of a kind (`bool`, `int`, `float` or `str`) that a text stands for; 8/255 is a number, too.

    Raises:
        ValueError: the text stands for none.

    >>> read_setting("1/4", float), read_setting("false", bool)
    (0.25, False)
    """
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text]
        if kind is float:
            top, _, bottom = text.partition("/")
            return float(top) / float(bottom or 1)
        return kind(text)
    except (KeyError, ZeroDivisionError) as error:
        raise ValueError(f"not a {kind.__name__}: {text!r}") from error


# Components chosen by name: methods, optimisers, schedules, losses. A user registers one of their own in one line.


@dataclass(frozen=True)
class Component:
    """A choice with its options: a frozen dataclass that has a name, checks its fields and can be written down."""

    name: ClassVar[str]
    """What files and the command line call it."""

    def __post_init__(self) -> None:
        """Give equal numbers one form: where any number may stand, 1 becomes 1.0, and -0 becomes 0."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (float, "float") and isinstance(value, int | float):
                object.__setattr__(self, field.name, float(value) + 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The name and all options, as JSON can hold them.

        Tuples become lists, so that what was written and what is read back are equal.
        """
        return {"name": self.name, **{key: _plain(value) for key, value in asdict(self).items()}}

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(field.name for field in fields(cls))

    @property
    def label(self) -> str:
        """What people call it: the name, and the options that are not the default ones."""
        changed = [
            f"{field.name.replace('_', ' ')} {shown(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        ]
        return ", ".join([self.name, *changed])


P = TypeVar("P", bound=Component)


class Registry(Generic[P]):
    """The components of one kind, by name.

    Args:
        what: the kind, for messages: "method".

    >>> kinds = Registry[Component]("kind")
    >>> @kinds.register
    ... @dataclass(frozen=True)
    ... class Small(Component):
    ...     name = "small"
    ...     size: int = 1
    >>> kinds.build({"name": "small", "size": 2})
    Small(size=2)
    >>> kinds.build("small").as_dict()
    {'name': 'small', 'size': 1}
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._components: dict[str, type[P]] = {}

    def register(self, part: type[P]) -> type[P]:
        """Make a component known by its name; also as a decorator."""
        if not isinstance(getattr(part, "name", None), str):
            raise PolyboundError(f"{part.__name__} needs a name, a text, to be a {self.what}")
        if self._components.get(part.name, part) is not part:
            raise PolyboundError(f"there is a {self.what} called {part.name!r} already")
        self._components[part.name] = part
        return part

    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._components)

    def find(self, name: object) -> type[P]:
        """The component of a name."""
        if not isinstance(name, str) or name not in self._components:
            raise ArgumentError(self.what, f"must be one of {', '.join(self._components)}, got {name!r}")
        return self._components[name]

    def build(self, given: str | Mapping[str, Any]) -> P:
        """A component from its name, or from a mapping with its name and some of its options."""
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        part = self.find(options.pop("name", None))
        if unknown := [option for option in options if option not in part.options()]:
            known = ", ".join(part.options()) or "none"
            raise PolyboundError(f"{self.what} {part.name} has no option {unknown[0]!r}; it has {known}")
        try:
            return part(**options)
        except TypeError as error:  # an option is lacking, or of a kind that nothing can be done with
            raise PolyboundError(f"{self.what} {part.name}: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def shown(value: Any) -> str:
    """An option's value for people.

    >>> shown({"C": 0.5, "V": (1.0, 2.0)})
    'C 0.5 V 1 2'
    """
    if isinstance(value, Mapping):
        return " ".join(f"{key} {shown(entry)}" for key, entry in value.items())
    if isinstance(value, tuple | list):
        return " ".join(map(shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_start(name: str, value: object) -> None:
    """Refuse anything but an epoch, counted from 0, or a share of all epochs, from 0.0 on and below 1.0."""
    if isinstance(value, float) and not 0 <= value < 1:
        raise ArgumentError(name, f"is a share of the epochs below 1, or an epoch, a whole number; got {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ArgumentError(name, f"is an epoch, counted from 0, got {value!r}")


def start_epoch(start: float, epochs: int) -> int:
    """The epoch, from 0, that a start means: itself, or that at a share of all epochs, rounded down.

    >>> start_epoch(30, 100), start_epoch(0.5, 100), start_epoch(0.29, 100), start_epoch(0.5, 1)
    (30, 50, 29, 0)
    """
    return int(start * epochs + 1e-9) if isinstance(start, float) else start


# Modules of other packages that register methods, attacks, data sets, models, experiments or defences.


GROUP = "polybound"
"""The group of the entry points."""

VARIABLE = "POLYBOUND_PLUGINS"
"""The environment variable."""

_loaded: set[str] = set()


def plugin_names() -> str:
    """What the environment variable says: names of modules, separated by commas."""
    return os.environ.get(VARIABLE, "")


def load_plugins(names: str | None = None) -> None:
    """Import all plugins that are not imported yet.

    Args:
        names: modules, separated by commas; by default what the environment variable says. The modules that entry
            points name come on top.

    Raises:
        PolyboundError: a module cannot be imported; the message names it.
    """
    for name in _modules(plugin_names() if names is None else names):
        _load(name)


def check_plugins() -> dict[str, str]:
    """All plugins by the names of their modules; each is imported, and has what went wrong, or an empty text."""
    found = {}
    for name in _modules(plugin_names()):
        try:
            _load(name)
            found[name] = ""
        except PolyboundError as error:
            found[name] = str(error)
    return found


def _modules(given: str) -> list[str]:
    """The modules that are given, separated by commas, then those of entry points."""
    # Here, because it takes 15 ms, and `import polybound` has no use for it.
    from importlib.metadata import entry_points

    own = filter(None, map(str.strip, given.split(",")))
    return list(dict.fromkeys([*own, *(entry.module for entry in entry_points(group=GROUP))]))


def _load(module: str) -> None:
    if module in _loaded:
        return
    try:
        import_module(module)
    except Exception as error:  # whatever that module does
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolyboundError(f"the plugin {module} cannot be imported ({reason})") from error
    _loaded.add(module)
