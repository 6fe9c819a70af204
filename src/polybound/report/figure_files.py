"""Which files a figure can be written to."""

from __future__ import annotations

from pathlib import Path

from polybound.errors import PolyboundError

__all__ = ["FIGURE_ENDINGS", "check_figure_file"]

FIGURE_ENDINGS = (".png", ".svg", ".pdf", ".jpg")


def check_figure_file(path: Path) -> None:
    """Refuse, before hours of work are spent on it, a file that no figure can be written to.

    >>> check_figure_file(Path("plot.gif"))
    Traceback (most recent call last):
    polybound.errors.PolyboundError: plot.gif: a figure's name must end in .png, .svg, .pdf or .jpg
    """
    if path.suffix.lower() not in FIGURE_ENDINGS:
        *most, last = FIGURE_ENDINGS
        raise PolyboundError(f"{path}: a figure's name must end in {', '.join(most)} or {last}")
    if not path.parent.is_dir():
        raise PolyboundError(f"{path.parent}: no such folder")
    if path.is_dir():
        raise PolyboundError(f"{path}: a folder, not a file")
