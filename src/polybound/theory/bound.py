"""A bound with its formula, its assumptions and how it was computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from polybound.errors import NonFiniteError


def number(value: Tensor) -> float | Tensor:
    """A float where there is one value, the tensor of values where there is one for each run or box."""
    return float(value) if value.ndim == 0 else value


@dataclass(frozen=True, repr=False)
class Bound:
    """An upper bound.

    Attributes:
        value: the bound; a tensor with one value for each run of a stack (and each box, if several were given).
        quantity: what is bounded, in a few words.
        name: where the formula comes from, as "Theorem 2".
        formula: the formula.
        assumptions: what must hold for the bound to hold.
        how: how it was computed, and what was relaxed.
    """

    value: float | Tensor
    quantity: str
    name: str
    formula: str
    assumptions: tuple[str, ...] = ()
    how: str = "exact, in float64"

    def __post_init__(self) -> None:
        # Infinity is a valid bound. NaN, from norms that overflow, is not.
        if torch.isnan(torch.as_tensor(self.value)).any():
            raise NonFiniteError(f"{self.quantity}: the norms of these weights overflow")

    def __repr__(self) -> str:
        """The bound in one line; `print` also shows what it rests on."""
        if isinstance(self.value, Tensor) and self.value.numel() > 3:
            value = f"{float(self.value.min()):.6g} to {float(self.value.max()):.6g} of {self.value.numel()}"
        else:
            value = self.format_value()
        return f"Bound({self.quantity} <= {value}, by {self.name})"

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        lines = [
            f"{self.quantity} <= {self.format_value()}",
            f"  by        {self.name}: {self.formula}",
            *(f"  assuming  {assumption}" for assumption in self.assumptions),
            f"  computed  {self.how}",
        ]
        return "\n".join(lines)

    def format_value(self) -> str:
        """The value as text."""
        if isinstance(self.value, Tensor):
            return "[" + ", ".join(f"{v:.6g}" for v in self.value.flatten().tolist()) + "]"
        return f"{self.value:.6g}"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON, which has no infinity: such a value, which bounds nothing, is None."""
        return {
            "quantity": self.quantity,
            "value": _finite(self.value.tolist() if isinstance(self.value, Tensor) else self.value),
            "name": self.name,
            "formula": self.formula,
            "assumptions": list(self.assumptions),
            "how": self.how,
        }


def _finite(value: Any) -> Any:
    """Numbers, in lists or not, with None in the place of infinity and NaN."""
    return [_finite(one) for one in value] if isinstance(value, list) else value if isfinite(value) else None


@dataclass(frozen=True, repr=False)
class BoundTable:
    """Several bounds of one model; printing it gives a table.

    Attributes:
        title: the model.
        rows: the bounds.
        notes: what a reader of them must know.
    """

    title: str
    rows: tuple[Bound, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Bound:
        return self.rows[index]

    def __str__(self) -> str:
        cells = [("quantity", "value", "by", "formula")]
        cells += [(row.quantity, row.format_value(), row.name, row.formula) for row in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = [f"{q:<{widths[0]}}  {v:>{widths[1]}}  {n:<{widths[2]}}  {f}".rstrip() for q, v, n, f in cells]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.title, lines[0], "-" * max(map(len, lines)), *lines[1:], *notes])

    def __repr__(self) -> str:
        return f"BoundTable({self.title}: {len(self.rows)} bounds)"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        return {"model": self.title, "bounds": [row.as_dict() for row in self.rows], "notes": list(self.notes)}
