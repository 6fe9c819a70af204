"""Things by name: registries, the settings in a name or a mapping, and the plugins that register further things.

Python code imports a plugin itself. The command line, and the workers of a sweep, import the modules that are
named in the environment variable POLYBOUND_PLUGINS, separated by commas, and those that installed packages name by an
entry point of the group "polybound":

    [project.entry-points.polybound]
    mine = "my_package.methods"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from polybound.errors import ArgumentError, PolyboundError

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one sort by name: data sets, models, methods, attacks.

    Attributes:
        what: the sort, for messages: "method".
        entries: the things by name.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.entries: dict[str, T] = {}

    def add(self, name: object, thing: T) -> None:
        """Make a thing known by a name; the same thing again does no harm."""
        one = f"a{'n' * (self.what[0] in 'aeiou')} {self.what}"
        if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]+", name):
            raise PolyboundError(f"{one} cannot be called {name!r}: letters, digits and _.+- only")
        if self.entries.get(name, thing) is not thing:
            raise PolyboundError(f"there is {one} called {name!r} already")
        self.entries[name] = thing

    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self.entries)

    def find(self, name: object) -> T:
        """The thing of a name."""
        if not isinstance(name, str) or name not in self.entries:
            raise ArgumentError(self.what, f"must be one of {', '.join(self.entries)}, got {name!r}")
        return self.entries[name]


# Components of a recipe, chosen by name or by a mapping: methods, optimisers, schedules, losses.


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
        return {"name": self.name, **{key: plain(value) for key, value in asdict(self).items()}}

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(field.name for field in fields(cls))

    @property
    def label(self) -> str:
        """The name with the options that differ from their defaults, for tables and figures."""
        changed = [
            f"{field.name.replace('_', ' ')} {format_value(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        ]
        return ", ".join([self.name, *changed])


C = TypeVar("C", bound=Component)


class Components(Registry[type[C]]):
    """Classes of components of one sort, by name.

    >>> sizes = Components[Component]("size")
    >>> @sizes.register
    ... @dataclass(frozen=True)
    ... class Small(Component):
    ...     name = "small"
    ...     size: int = 1
    >>> sizes.build({"name": "small", "size": 2})
    Small(size=2)
    >>> sizes.build("small").as_dict()
    {'name': 'small', 'size': 1}
    """

    def register(self, component: type[C]) -> type[C]:
        """Make a class known by its name; usable as a decorator."""
        self.add(getattr(component, "name", None), component)
        return component

    def having(self, option: str) -> list[str]:
        """The names of the components that have an option."""
        return [name for name, component in self.entries.items() if option in component.options()]

    def build(self, given: str | Mapping[str, Any]) -> C:
        """A component from its name, or from a mapping with its name and some of its options."""
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        component = self.find(options.pop("name", None))
        if unknown := [option for option in options if option not in component.options()]:
            known = ", ".join(component.options()) or "none"
            raise PolyboundError(f"{self.what} {component.name} has no option {unknown[0]!r}; it has {known}")
        try:
            return component(**options)
        except TypeError as error:  # an option is lacking, or of a type that nothing can be done with
            raise PolyboundError(f"{self.what} {component.name}: {error}") from error


def plain(value: Any) -> Any:
    """A value as JSON holds it: tuples are lists."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple | list) else value


# Things whose name tells all their settings, "pgd-0.1-20-0.01:norm=2", "median:size=5": attacks and defences.


class Named:
    """An object whose name tells all its settings: numbers, truth values or lower-case words.

    The name is the kind, then some settings as plain numbers, then `:setting=value` for the others that differ from
    their defaults.
    """

    kind: ClassVar[str]
    """The first word of the name, lower-case letters and digits."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """The settings that the name gives as plain numbers, in this order."""

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The settings with their defaults, those of a dataclass; `dataclasses.MISSING` for one that has none."""
        return {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def form(cls) -> str:
        """The form of the name: "pgd-EPS-STEPS-STEP_SIZE"."""
        return "-".join([cls.kind, *(number.upper() for number in cls.numbers)])

    @property
    def name(self) -> str:
        """The name that tells the settings: "pgd-0.1-20-0.01:restarts=5", "gaussian:size=5"."""
        numbers = (setting_text(getattr(self, name)) for name in self.numbers)
        return ":".join(["-".join([self.kind, *numbers]), *self.changed_settings()])

    def changed_settings(self) -> list[str]:
        """The settings that are not among the `numbers` and differ from their defaults, as "setting=value"."""
        others = ((name, default) for name, default in self.settings().items() if name not in self.numbers)
        own = ((name, getattr(self, name), default) for name, default in others if default is not MISSING)
        return [f"{name}={setting_text(value)}" for name, value, default in own if value != default]


N = TypeVar("N", bound=Named)


class Kinds(Registry[type[N]]):
    """Classes of named things of one sort, by kind."""

    def register(self, made: type[N]) -> type[N]:
        """Make a class known by its kind; usable as a decorator.

        Raises:
            PolyboundError: its `kind` is no plain word or is taken, or a name could not tell all its settings.
        """
        what, kind, settings = self.what, getattr(made, "kind", None), made.settings()
        if not isinstance(kind, str) or not re.fullmatch("[a-z][a-z0-9_]*", kind):
            raise PolyboundError(f"{what} {made.__name__}: its kind is a word of lower-case letters, not {kind!r}")
        if unknown := [name for name in made.numbers if name not in settings]:
            raise PolyboundError(f"{what} {kind!r} has no setting {unknown[0]!r} to give as a number")
        if untold := [name for name, value in settings.items() if value is MISSING and name not in made.numbers]:
            raise PolyboundError(f"{what} {kind!r}: the setting {untold[0]!r} needs a default, or a place in `numbers`")
        self.add(kind, made)
        return made

    def parse(self, name: object) -> tuple[type[N], dict[str, Any]]:
        """The class and the settings that a name tells."""
        head, *options = str(name).strip().lower().split(":")
        kind, _, rest = head.partition("-")
        if kind not in self.entries:
            forms = ", ".join(made.form() for made in self.entries.values())
            raise PolyboundError(f"unknown {self.what} {name!r}; there are {forms}")
        made = self.entries[kind]
        values, settings = re.findall(_NUMBER, rest), made.settings()
        if "-".join(values) != rest or len(values) > len(made.numbers):
            raise PolyboundError(f"{self.what} {name!r} is not of the form {made.form()}")
        given: dict[str, str] = dict(zip(made.numbers, values, strict=False))
        for option in options:
            key, equals, given[key] = option.partition("=")
            if not equals or key not in settings:
                known = ", ".join(setting for setting in settings if setting not in made.numbers)
                raise PolyboundError(f"{self.what} {name!r}: {kind} has no option {key!r}; it has {known}")
        found = {}
        for key, text in given.items():
            default = settings[key]
            try:
                found[key] = read_setting(text, float if default in (None, MISSING) else type(default))
            except ValueError:
                raise PolyboundError(f"{self.what} {name!r}: {key} cannot be {text!r}") from None
        return made, found


_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?:/\d+)?"


def setting_text(value: Any) -> str:
    """A number, truth value or lower-case word as a name gives it: the shortest text that is read back as the same.

    >>> setting_text(0.1), setting_text(2.0), setting_text(True), setting_text("inf")
    ('0.1', '2', 'true', 'inf')
    """
    return repr(float(value) + 0.0).removesuffix(".0") if isinstance(value, float) else str(value).lower()


def read_setting(text: str, kind: type) -> Any:
    """The value of a type (`bool`, `int`, `float` or `str`) that a text stands for; 8/255 is a number, too.

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


def format_value(value: Any) -> str:
    """An option's value for tables and labels.

    >>> format_value({"C": 0.5, "V": (1.0, 2.0)})
    'C 0.5 V 1 2'
    """
    if isinstance(value, Mapping):
        return " ".join(f"{key} {format_value(entry)}" for key, entry in value.items())
    if isinstance(value, tuple | list):
        return " ".join(map(format_value, value)) or "none"
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


def plugin_names() -> str:
    """The value of the environment variable: names of modules, separated by commas."""
    return os.environ.get(VARIABLE, "")


def load_plugins(names: str | None = None) -> None:
    """Import all plugins that are not imported yet, as `check_plugins` does.

    Raises:
        PolyboundError: a module cannot be imported; the message names it.
    """
    for problem in filter(None, check_plugins(names).values()):
        raise PolyboundError(problem)


def check_plugins(names: str | None = None) -> dict[str, str]:
    """Import all plugins; for each module, why it cannot be imported, or an empty text.

    Args:
        names: modules, separated by commas; by default those of the environment variable. The modules that entry
            points name are always among them.
    """
    # Here, because it takes 15 ms, and `import polybound` has no use for it.
    from importlib.metadata import entry_points

    own = filter(None, map(str.strip, (plugin_names() if names is None else names).split(",")))
    found = dict.fromkeys([*own, *(entry.module for entry in entry_points(group=GROUP))], "")
    for module in found:
        try:
            import_module(module)
        except Exception as error:  # whatever that module does
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            found[module] = f"the plugin {module} cannot be imported ({reason})"
    return found
