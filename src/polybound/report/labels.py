"""What models, methods and protocols are called in reports."""

from __future__ import annotations

from polybound.attacks import parse_attack
from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, Cell, Row, value_label
from polybound.experiments import DATASETS, MODELS

__all__ = [
    "METHODS",
    "PROTOCOLS",
    "attack_label",
    "cell_text",
    "dataset_label",
    "images_text",
    "model_label",
]

METHODS = {
    "none": "no projection",
    "projection": "projection",
    "jacobian": "Jacobian",
    "l2": "L2",
    "certified": "certified training",
    "certified-projection": "certified training + projection",
    "at": "AT",
    "projection+at": "projection + AT",
    "jacobian+at": "Jacobian + AT",
    "l2+at": "L2 + AT",
    "layerwise-projection": "layer-wise",
}
PROTOCOLS = {
    "published": "published protocol",
    "sound": "sound protocol",
}


def attack_label(attack: str) -> str:
    """As the paper writes it.

    >>> attack_label("pgd-0.1-20-0.01"), attack_label("certified-0.05"), attack_label("certified-0.5:norm=2")
    ('PGD-(0.1, 20, 0.01)', 'certified at 0.05', 'certified at 0.5, l_2')
    """
    if attack == CLEAN:
        return CLEAN
    if attack.startswith("certified-"):
        return f"certified at {attack.removeprefix('certified-').replace(':norm=', ', l_')}"
    try:
        return parse_attack(attack).label
    except PolyboundError:  # one that somebody else registered
        return attack


def dataset_label(name: str) -> str:
    """The paper's name of a data set, or its own."""
    return DATASETS.get(name, name)


def model_label(name: str) -> str:
    """The paper's name of a model, or its own."""
    return MODELS.get(name, name)


def cell_text(cell: Cell | None) -> str:
    """A cell, with the value that it is the best of in brackets, and a star if it is that of the best epoch.

    >>> cell_text(Cell(50.0, 1.0, (0, 1), 10, 10, "best of 75, 100", ("method.bound", 2.0, 14)))
    '50.00 ± 1.00 (2)*'
    """
    if cell is None:
        return ""
    chosen = "" if cell.chosen is None else f" ({value_label(cell.chosen[1])})"
    return f"{cell}{chosen}{'*' if isinstance(cell.epoch, str) else ''}"


def images_text(row: Row | Cell) -> str:
    """On how many images something was measured.

    >>> images_text({"total": 200, "available": 10000}), images_text({"total": 360, "available": 360})
    ('200 of 10,000', '360')
    """
    total, available = (row.total, row.available) if isinstance(row, Cell) else (row["total"], row["available"])
    return f"{total:,}" if total == available else f"{total:,} of {available:,}"
