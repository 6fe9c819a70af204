"""Settings in names: "pgd-0.1-20-0.01:restarts=5", "gaussian:size=5". What is written is read back as it was."""

from __future__ import annotations

from typing import Any

__all__ = ["read_setting", "setting_text"]


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
