"""Packages whose names are loaded when first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from polybound.errors import PolyboundError


def lazy(package: str, **extras: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are imported under `if TYPE_CHECKING:`.

    Type checkers and editors see plain imports. At run time, the first use of a name reads those imports from the
    source of the package, and carries out the one of this name. `__all__` has the same names.

    Args:
        package: its `__name__`.
        **extras: for each optional module, the extra of polybound that installs it.
    """

    @cache
    def homes() -> dict[str, str]:
        import ast

        spec = sys.modules[package].__spec__
        source = spec.loader.get_source(package) if spec else None  # type: ignore[union-attr]
        blocks = [node for node in ast.parse(source or "").body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if homes()[name] == package:
                return import_module(f"{package}.{name}")
            value = getattr(import_module(homes()[name]), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in extras:
                raise
            hint = f"pip install 'polybound[{extras[missing]}]'"
            raise PolyboundError(f"{package}.{name} needs {missing}: {hint}") from None
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes())
