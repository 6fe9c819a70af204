"""Names of data sets, models, methods, attacks and protocols in reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from polybound.attacks import parse_attack
from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, NODES, Cell, Row, certified_radius_of, network_labels, value_label
from polybound.experiments import DATASETS, MODELS
from polybound.runs import LoadedModel

BOUND = "method.bound"
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
PROTOCOLS = {"published": "published protocol", "sound": "sound protocol"}


def attack_label(attack: str) -> str:
    """The paper's name of an attack.

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


def place_label(dataset: str, model: str) -> str:
    """The names of a data set and a model."""
    return f"{dataset_label(dataset)}, {model_label(model)}"


def cell_text(cell: Cell | None) -> str:
    """A cell, with the value that it is the best of in brackets, and a star if it is that of the best epoch.

    >>> cell_text(Cell(50.0, 1.0, (0, 1), 10, 10, "best of 75, 100", ("method.bound", 2.0, 14)))
    '50.00 ± 1.00 (2)*'
    """
    if cell is None:
        return ""
    chosen = "" if cell.chosen is None else f" ({value_label(cell.chosen[1])})"
    return f"{cell}{chosen}{'*' if isinstance(cell.epoch, str) else ''}"


def column_name(attack: str, protocol: str, counted: str, seed: int) -> str:
    """The heading of a column of scores, from the values of `ATTACK_COLUMNS`; `counted` follows from the protocol.

    >>> column_name("fgsm-0.1", "sound", "robust", 0), column_name("clean", "-", "-", 0)
    ('FGSM-0.1, sound', 'clean')
    """
    del counted
    parts = [attack_label(attack), *([] if protocol == "-" else [protocol])]
    return ", ".join([*parts, *([f"attack seed {seed}"] if seed else [])])


def _level(row: Row) -> tuple[str, Any]:
    """The bound of a row's method, its radius or its weight, with the column."""
    columns = (BOUND, "method.eps", "method.weight")
    return next(((name, row[name]) for name in columns if row.get(name) is not None), ("", None))


def levels(row: Row) -> tuple[float, ...]:
    """A key to sort rows by how tight their method is; of a bound for each matrix the largest comes first.

    >>> levels({"method.bound": 10.0}), levels({"method.bound": {"U1": 1.0, "C": 2.0}}), levels({})
    ((10.0, 10.0), (2.0, 1.0, 2.0), ())
    """
    level = _level(row)[1]
    values = list(level.values()) if isinstance(level, dict) else [] if level is None else [level]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return (max(known), *known) if known else ()


def level_text(row: Row, pattern: Mapping[str, float]) -> str:
    """The bound, weight or radius of a method: of a multiple of a pattern the factor, of other bounds by matrix C's.

    >>> level_text({"method.bound": {"U1": 2.0, "C": 4.0}}, {"U1": 1.0, "C": 2.0}), level_text({"method.eps": 0.1}, {})
    ('2x', 'eps 0.1')
    """
    name, level = _level(row)
    if isinstance(level, dict) and pattern and set(level) == set(pattern):
        factors = {round(level[matrix] / pattern[matrix], 6) for matrix in pattern}
        if len(factors) == 1:
            return f"{factors.pop():g}x"
    if isinstance(level, dict):
        level = level.get("C", level)
    return "" if level is None else f"{'eps ' if name == 'method.eps' else ''}{value_label(level)}"


def network_names(loaded: Sequence[LoadedModel]) -> list[str]:
    """A name for each network: what it differs in from the others; where it differs in nothing, its path."""
    names = network_labels([one.about for one in loaded], ("run",))
    counts = Counter(names)
    return [f"{name} ({one.path})" if counts[name] > 1 else name for name, one in zip(names, loaded, strict=True)]
