"""VNN-LIB 1.0: questions whether a box of inputs holds one whose outputs meet linear conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, inf, lcm, nextafter
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from polybound.certificates import Polytope
from polybound.deploy.vnnlib_formulas import Literal, Question, read_question
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["Property", "Region", "read_vnnlib"]

LARGEST_FILE = 2**28
_EXACT = 2**53


@dataclass(frozen=True)
class Region:
    """A box of inputs, and a union of polytopes of outputs.

    Attributes:
        lower, upper: the sides of the box, exactly as written.
        polytopes: each a conjunction of `sum_j w_j Y_j + c <= 0`, exactly as written.
    """

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    polytopes: tuple[tuple[Literal, ...], ...]

    def sides(self, outwards: bool) -> tuple[Tensor, Tensor]:
        """The sides in float64, rounded outwards or inwards.

        A side that is too thin to hold a float64 number inwards, such as `0.1 <= X_0 <= 0.1`, holds the nearest one.
        """
        lower = [rounded(side, up=not outwards) for side in self.lower]
        upper = [rounded(side, up=outwards) for side in self.upper]
        for place, (low, high) in enumerate(zip(lower, upper, strict=True)):
            if low > high:
                lower[place] = upper[place] = float(self.lower[place])
        return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)

    def unsafe(self, outputs: int, outwards: bool) -> list[Polytope]:
        """The polytopes in float64, none of them smaller, or none of them larger, than as written."""
        found = []
        for rows in self.polytopes:
            pairs = [_float_row(row, outputs, outwards) for row in rows]
            weights = torch.tensor([pair[0] for pair in pairs], dtype=torch.float64).reshape(len(rows), outputs)
            found.append(Polytope(weights, torch.tensor([pair[1] for pair in pairs], dtype=torch.float64)))
        return found

    def is_exact(self, outputs: int) -> bool:
        """Whether float64 holds the conditions on the outputs without rounding."""
        pairs = zip(self.unsafe(outputs, True), self.unsafe(outputs, False), strict=True)
        return all(torch.equal(one.constant, other.constant) for one, other in pairs)


@dataclass(frozen=True)
class Property:
    """The question of a VNN-LIB file: "sat" if one of the regions holds an input whose outputs are in its polytopes.

    Attributes:
        inputs: how many `X_i` there are.
        outputs: how many `Y_j` there are.
        regions: boxes with conditions on the outputs.
    """

    inputs: int
    outputs: int
    regions: tuple[Region, ...]


def rounded(value: Fraction, up: bool) -> float:
    """The float64 number next to a fraction, not below it or not above it."""
    try:
        near = float(value)
    except OverflowError:
        raise PolyboundError(
            f"a number of {len(str(value.numerator))} digits is larger than float64 can hold"
        ) from None
    if (Fraction(near) < value) if up else (Fraction(near) > value):
        return nextafter(near, inf if up else -inf)
    return near


def _float_row(row: Literal, outputs: int, outwards: bool) -> tuple[list[float], float]:
    """A condition as float64 numbers: multiplied until its weights are whole, its constant rounded if it must be."""
    common = lcm(*(weight.denominator for weight in row.Y.values()), row.constant.denominator)
    if max(abs(number) * common for number in (*row.Y.values(), row.constant)) > _EXACT:
        common = lcm(*(weight.denominator for weight in row.Y.values()))
    whole = {place: int(weight * common) for place, weight in row.Y.items()}
    shared = gcd(*whole.values()) if (row.constant * common).denominator > 1 else 1
    factor = Fraction(common, shared or 1)
    if max(abs(weight * factor) for weight in row.Y.values()) > _EXACT:
        raise PolyboundError("a condition's weights have more digits than float64 can hold")
    weights = [float(row.Y.get(place, Fraction(0)) * factor) for place in range(outputs)]
    # A smaller constant allows more outputs.
    return weights, rounded(row.constant * factor, up=not outwards)


def read_vnnlib(path: str | PathLike[str]) -> Property:
    """The property of a VNN-LIB 1.0 file, numbers as they are written.

    What is read: `declare-const` of `X_i` and `Y_j` as Real; `assert` of `<=`, `>=` and `=` between linear terms,
    with `and` and `or` around them. A comparison is either a bound of one input or a condition on outputs.

    Raises:
        FileFormatError: the file cannot be read as that; the message has the line.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.stat().st_size > LARGEST_FILE:
        raise FileFormatError(f"{path}: more than the {LARGEST_FILE:,} bytes that are read")
    try:
        return _property(read_question(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: not a text") from None
    except PolyboundError as error:
        raise FileFormatError(f"{path}: {error}") from None


def _property(question: Question) -> Property:
    start = _Box([None] * question.inputs, [None] * question.inputs).cut(question.common)
    always = _conditions(question.common)
    boxes: dict[int, _Box] = {}
    polytopes: dict[int, list[tuple[Literal, ...]]] = {}
    for clause in question.clauses() if always is not None else ():
        rows = _conditions(clause)
        box = start.cut(clause)
        if rows is not None and always is not None and not box.is_empty():
            # Clauses without bounds of inputs share one box.
            boxes[id(box)] = box
            polytopes.setdefault(id(box), []).append((*always, *rows))
    regions = tuple(Region(*boxes[key].sides(), tuple(rows)) for key, rows in polytopes.items())
    return Property(question.inputs, question.outputs, regions)


@dataclass(frozen=True, eq=False)
class _Box:
    """Bounds of the inputs, as far as they are known."""

    lower: list[Fraction | None]
    upper: list[Fraction | None]

    def cut(self, clause: Sequence[Literal]) -> _Box:
        """The box with the bounds of a clause as well; this one itself if it has none."""
        bounds = list(_bounds(clause))
        if not bounds:
            return self
        lower, upper = self.lower.copy(), self.upper.copy()
        for place, bound, below in bounds:
            sides, better = (upper, min) if below else (lower, max)
            known = sides[place]
            sides[place] = bound if known is None else better(known, bound)
        return _Box(lower, upper)

    def is_empty(self) -> bool:
        """Whether no input is within all bounds."""
        pairs = zip(self.lower, self.upper, strict=True)
        return any(low is not None and high is not None and low > high for low, high in pairs)

    def sides(self) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        """The bounds, if every input has two."""
        for name, sides in (("lower", self.lower), ("upper", self.upper)):
            if None in sides:
                raise PolyboundError(f"X_{sides.index(None)} has no {name} bound; boxes are read only")
        lower, upper = (tuple(side for side in sides if side is not None) for sides in (self.lower, self.upper))
        return lower, upper


def _bounds(clause: Sequence[Literal]) -> Iterator[tuple[int, Fraction, bool]]:
    """The bounds of inputs in a clause: which input, the number, and whether it is an upper bound."""
    for literal in clause:
        for place, weight in literal.X.items():
            yield place, -literal.constant / weight, weight > 0


def _conditions(clause: Sequence[Literal]) -> tuple[Literal, ...] | None:
    """The conditions on outputs in a clause; None if one of them, without any output, is false."""
    plain = [literal for literal in clause if not literal.X]
    if any(not literal.Y and literal.constant > 0 for literal in plain):
        return None
    return tuple(literal for literal in plain if literal.Y)
