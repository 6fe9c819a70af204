"""What models, methods and protocols are called in reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from polybound.attacks import parse_attack
from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, NODES, Cell, Difference, Row, certified_radius_of, network_labels, value_label
from polybound.experiments import DATASETS, MODELS
from polybound.runs import LoadedModel

__all__ = [
    "METHODS",
    "PROTOCOLS",
    "attack_label",
    "cell_text",
    "column_name",
    "dataset_label",
    "images_text",
    "level_of",
    "model_label",
    "network_names",
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

    >>> attack_label("pgd-0.1-20-0.01"), attack_label("certified-0.05:nodes=256")
    ('PGD-(0.1, 20, 0.01)', 'certified at 0.05')
    >>> attack_label("certified-0.5:norm=2:seconds=1")
    'certified at 0.5, l_2, within 1 s'
    """
    if attack == CLEAN:
        return CLEAN
    if (ball := certified_radius_of(attack)) is not None:
        parts = [f"certified at {value_label(ball.eps)}", *([] if ball.norm == "inf" else [f"l_{ball.norm}"])]
        parts += [] if ball.nodes in (None, NODES) else [f"within {ball.nodes:,} cells"]
        return ", ".join([*parts, *([] if ball.seconds is None else [f"within {value_label(ball.seconds)} s"])])
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


def images_text(row: Row | Difference) -> str:
    """On how many images something was measured.

    >>> images_text({"total": 200, "available": 10000}), images_text({"total": 360, "available": 360})
    ('200 of 10,000', '360')
    """
    total, available = (row.total, row.available) if isinstance(row, Difference) else (row["total"], row["available"])
    return f"{total:,}" if total == available else f"{total:,} of {available:,}"


def column_name(attack: str, protocol: str, counted: str, seed: int) -> str:
    """What a column of scores is of.

    >>> column_name("fgsm-0.1", "sound", "robust", 0), column_name("clean", "-", "-", 0)
    ('FGSM-0.1, sound', 'clean')
    """
    del counted  # it follows from the protocol
    parts = [attack_label(attack), *([] if protocol == "-" else [protocol])]
    return ", ".join([*parts, *([f"attack seed {seed}"] if seed else [])])


def level_of(row: Row) -> tuple[float, str]:
    """How tight a row's method is, to sort by and to show: its bound, its weight or its radius.

    Of a bound for each matrix it is the largest. What has none comes first.

    >>> level_of({"method.bound": 10.0}), level_of({"method.bound": {"U1": 2.0, "C": 1.0}}), level_of({})
    ((10.0, '10'), (2.0, 'C 1 U1 2'), (-inf, ''))
    """
    for name in ("method.bound", "method.weight", "method.eps"):
        level: Any = row.get(name)
        if isinstance(level, dict) and level and all(isinstance(value, int | float) for value in level.values()):
            return float(max(level.values())), value_label(level)
        if isinstance(level, int | float):
            return float(level), value_label(level)
    return -inf, ""


def network_names(loaded: Sequence[LoadedModel]) -> list[str]:
    """A name for each network: what it differs in from the others; where it differs in nothing, its path."""
    names = network_labels([one.about for one in loaded], ("run",))
    counts = Counter(names)
    return [f"{name} ({one.path})" if counts[name] > 1 else name for name, one in zip(names, loaded, strict=True)]
