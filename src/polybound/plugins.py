"""Modules of other packages that register methods, attacks, data sets, models, experiments or defences.

Python code imports such a module itself. The command line, and the workers of a sweep, import the modules that are
named in the environment variable POLYBOUND_PLUGINS, separated by commas, and those that installed packages name by an
entry point of the group "polybound":

    [project.entry-points.polybound]
    mine = "my_package.methods"
"""

from __future__ import annotations

import os
from importlib import import_module

from polybound.errors import PolyboundError

__all__ = ["GROUP", "VARIABLE", "check_plugins", "load_plugins", "plugin_names"]

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
