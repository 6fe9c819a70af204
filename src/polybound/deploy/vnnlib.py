"""VNN-LIB 1.0: whether a box of inputs holds one whose outputs meet linear conditions. All numbers are exact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import gcd, inf, lcm, nextafter, prod
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from polybound.certificates import Polytope
from polybound.errors import FileFormatError, PolyboundError

LARGEST_FILE = 2**28
"""Bytes of the largest file that is read."""

_DEEPEST = 100
_CLAUSES = 20_000
_DIGITS = 1000
_EXACT = 2**53


def read_vnnlib(path: str | PathLike[str]) -> Property:
    """The property of a VNN-LIB 1.0 file, numbers as they are written.

    What is read: `declare-const` of `X_i` and `Y_j` as Real; `assert` of `<=`, `>=` and `=` between linear terms,
    with `and` and `or` around them. A comparison is either a bound of one input or a condition on outputs.

    Raises:
        FileFormatError: the file cannot be read as such; the message names the line.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.stat().st_size > LARGEST_FILE:
        raise FileFormatError(f"{path}: more than the {LARGEST_FILE:,} bytes that are read")
    try:
        return _property(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: not a text") from None
    except PolyboundError as error:
        raise FileFormatError(f"{path}: {error}") from None


@dataclass(frozen=True)
class Property:
    """What a VNN-LIB file asks: "sat" if one of the regions holds an input whose outputs are in its polytopes.

    Attributes:
        inputs: the number of variables `X_i`.
        outputs: the number of variables `Y_j`.
        regions: boxes with conditions on the outputs.
    """

    inputs: int
    outputs: int
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Literal:
    """`sum_i X[i] X_i + sum_j Y[j] Y_j + constant <= 0`; no weight is zero."""

    X: dict[int, Fraction]
    Y: dict[int, Fraction]
    constant: Fraction


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
        """The polytopes in float64, rounded so that none becomes smaller (outwards), or none larger.

        A condition is multiplied until its weights are whole numbers; its constant is rounded if it must be.
        """
        found = []
        for rows in self.polytopes:
            weights, constants = [], []
            for row in rows:
                common = lcm(*(weight.denominator for weight in row.Y.values()), row.constant.denominator)
                if max(abs(number) * common for number in (*row.Y.values(), row.constant)) > _EXACT:
                    common = lcm(*(weight.denominator for weight in row.Y.values()))
                whole = [int(weight * common) for weight in row.Y.values()]
                shared = gcd(*whole) if (row.constant * common).denominator > 1 else 1
                factor = Fraction(common, shared or 1)
                if max(abs(weight * factor) for weight in row.Y.values()) > _EXACT:
                    raise PolyboundError("a condition's weights have more digits than float64 can hold")
                weights.append([float(row.Y.get(place, Fraction(0)) * factor) for place in range(outputs)])
                # A smaller constant allows more outputs.
                constants.append(rounded(row.constant * factor, up=not outwards))
            matrix = torch.tensor(weights, dtype=torch.float64).reshape(len(rows), outputs)
            found.append(Polytope(matrix, torch.tensor(constants, dtype=torch.float64)))
        return found

    def is_exact(self, outputs: int) -> bool:
        """Whether float64 holds the conditions on the outputs without rounding."""
        pairs = zip(self.unsafe(outputs, True), self.unsafe(outputs, False), strict=True)
        return all(torch.equal(one.constant, other.constant) for one, other in pairs)


def rounded(value: Fraction, up: bool) -> float:
    """The float64 number next to a fraction, not below it or not above it."""
    try:
        near = float(value)
    except OverflowError:
        digits = len(str(value.numerator))
        raise PolyboundError(f"a number of {digits} digits is larger than float64 can hold") from None
    if (Fraction(near) < value) if up else (Fraction(near) > value):
        return nextafter(near, inf if up else -inf)
    return near


# From text to a formula: disjunctions of conjunctions of linear conditions.

Expression = str | list["Expression"]
Clause = tuple[Literal, ...]
Declared = dict[str, set[int]]
"""The indices that are declared, of "X" and of "Y"."""

_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9]\d{0,7})")


def _formula(text: str) -> tuple[Declared, list[Literal], list[list[Clause]]]:
    """What a text declares, the conditions that always hold, and disjunctions; a message of an error names the line."""
    declared: Declared = {"X": set(), "Y": set()}
    common: list[Literal] = []
    choices: list[list[Clause]] = []
    for line, command in _commands(text):
        try:
            match command:
                case ["declare-const", str(name), "Real"]:
                    variable = _VARIABLE.fullmatch(name)
                    if variable is None:
                        raise PolyboundError(f"variables are called X_0, X_1, ..., Y_0, ..., not {name[:40]!r}")
                    if (place := int(variable[2])) in declared[variable[1]]:
                        raise PolyboundError(f"{name} is declared twice")
                    declared[variable[1]].add(place)
                case ["assert", asserted]:
                    clauses = _clauses(asserted, declared)
                    if len(clauses) == 1:
                        common += clauses[0]
                    else:
                        choices.append(clauses)
                case [str(name), *_] if name.startswith(("vnnlib-version", "declare-network")):
                    raise PolyboundError("this is VNN-LIB 2.0; 1.0 is read")
                case [str(name), *_]:
                    allowed = "(declare-const ... Real) and (assert ...) are"
                    raise PolyboundError(f"({name[:40]} ...) is not read; {allowed}")
                case _:
                    raise PolyboundError("an expression that is not a command")
        except PolyboundError as error:
            raise PolyboundError(f"line {line}: {error}") from None
    for name, places in declared.items():
        if not places:
            raise PolyboundError(f"it declares no {name}_0: (declare-const {name}_0 Real)")
        if places != set(range(len(places))):
            raise PolyboundError(f"the {name}_i that are declared are not {name}_0, {name}_1 and so on")
    return declared, common, choices


def _commands(text: str) -> Iterator[tuple[int, Expression]]:
    """The expressions of the text, each with the line that it begins in."""
    stack: list[list[Expression]] = []
    line, seen, begun = 1, 0, 1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith(";"):
            continue
        line, seen = line + text.count("\n", seen, match.start()), match.start()
        if token == "(":  # noqa: S105
            begun = begun if stack else line
            stack.append([])
            if len(stack) > _DEEPEST:
                raise PolyboundError(f"line {line}: more than {_DEEPEST} parentheses are open")
        elif not stack:
            raise PolyboundError(f"line {line}: {token!r} outside of parentheses")
        elif token == ")":  # noqa: S105
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            else:
                yield begun, done
        else:
            stack[-1].append(token)
    if stack:
        raise PolyboundError(f"line {begun}: a parenthesis is not closed")


def _clauses(formula: Expression, declared: Declared) -> list[Clause]:
    """A formula as a disjunction of conjunctions."""
    match formula:
        case ["or", *parts]:
            return [clause for part in parts for clause in _clauses(part, declared)]
        case ["and", *parts]:
            return list(_conjunctions([_clauses(part, declared) for part in parts], "it has"))
        case ["<=" | ">=" | "=" as relation, one, other]:
            difference = _sum(_linear(one, declared), _linear(other, declared), Fraction(-1))
            weights = {name: weight for name, weight in difference.items() if name and weight}
            X = {int(name[2:]): weight for name, weight in weights.items() if name[0] == "X"}
            Y = {int(name[2:]): weight for name, weight in weights.items() if name[0] == "Y"}
            if len(X) > 1 or (X and Y):
                several = "a comparison of several inputs, or of inputs with outputs,"
                raise PolyboundError(f"{several} is not a box; only boxes are read")

            def below(sign: int) -> Literal:
                x, y = ({place: sign * weight for place, weight in part.items()} for part in (X, Y))
                return Literal(x, y, sign * difference.get("", Fraction(0)))

            return [tuple(below(sign) for sign in {"<=": (1,), ">=": (-1,), "=": (1, -1)}[relation])]
        case ["<" | ">", *_]:
            raise PolyboundError("strict comparisons are not read; <= and >= are")
        case [str(name), *_]:
            allowed = "or, and, <=, >= and = of two terms are"
            raise PolyboundError(f"({name[:40]} ...) is not read as a condition; {allowed}")
        case _:
            raise PolyboundError(f"{str(formula)[:40]!r} is not a condition")


def _conjunctions(choices: Sequence[Sequence[Clause]], what: str) -> Iterator[Clause]:
    """All ways to choose one conjunction of each disjunction, put together."""
    if prod(len(choice) for choice in choices) > _CLAUSES:
        raise PolyboundError(f"{what} more than the {_CLAUSES:,} cases that are read")
    for chosen in product(*choices):
        yield tuple(literal for clause in chosen for literal in clause)


Form = dict[str, Fraction]
"""A linear form: the weight of each variable, and of "" the constant."""


def _linear(term: Expression, declared: Declared) -> Form:
    """A term as a linear form."""
    match term:
        case str():
            if variable := _VARIABLE.fullmatch(term):
                if int(variable[2]) not in declared[variable[1]]:
                    raise PolyboundError(f"{term} is not declared")
                return {term: Fraction(1)}
            if _NUMBER.fullmatch(term) and len(term) <= _DIGITS:
                return {"": Fraction(term)}
            raise PolyboundError(f"{term[:40]!r} is neither a variable nor a number")
        case ["+" | "-" as sign, *parts] if parts:
            total: Form = {} if sign == "+" or len(parts) == 1 else _linear(parts.pop(0), declared)
            for part in parts:
                total = _sum(total, _linear(part, declared), Fraction(1 if sign == "+" else -1))
            return total
        case ["*", *parts] if parts:
            result: Form = {"": Fraction(1)}
            for form in (_linear(part, declared) for part in parts):
                if not set(form) <= {""}:
                    form, result = result, form
                if not set(form) <= {""}:
                    raise PolyboundError("a product of variables is not linear")
                result = _sum({}, result, form.get("", Fraction(0)))
            return result
        case [str(name), *_]:
            raise PolyboundError(f"({name[:40]} ...) is not read as a term; +, - and * are")
        case _:
            raise PolyboundError("an empty term")


def _sum(one: Form, other: Form, factor: Fraction) -> Form:
    """`one + factor * other`."""
    result = dict(one)
    for name, weight in other.items():
        result[name] = result.get(name, Fraction(0)) + factor * weight
    return result


# From a formula to regions.

_Box = tuple[dict[int, Fraction], dict[int, Fraction]]
"""The lower and the upper bounds of the inputs, as far as they are known."""


def _property(text: str) -> Property:
    """The boxes of a text, each with its conditions on outputs; empty boxes and false conditions are left out."""
    declared, common, choices = _formula(text)
    inputs, outputs = len(declared["X"]), len(declared["Y"])
    start, always = _cut(({}, {}), common), _conditions(common)
    found: dict[int, tuple[_Box, list[Clause]]] = {}
    for clause in _conjunctions(choices, "the assertions have") if always is not None else ():
        rows = _conditions(clause)
        lower, upper = box = _cut(start, clause)
        empty = any(lower[place] > upper[place] for place in lower.keys() & upper.keys())
        if rows is not None and always is not None and not empty:
            # Clauses without bounds of inputs share one box.
            found.setdefault(id(box), (box, []))[1].append((*always, *rows))
    regions = []
    for box, polytopes in found.values():
        for name, sides in zip(("lower", "upper"), box, strict=True):
            for place in range(inputs):
                if place not in sides:
                    raise PolyboundError(f"X_{place} has no {name} bound; only boxes are read")
        known = [tuple(sides[place] for place in range(inputs)) for sides in box]
        regions.append(Region(known[0], known[1], tuple(polytopes)))
    return Property(inputs, outputs, tuple(regions))


def _cut(box: _Box, clause: Sequence[Literal]) -> _Box:
    """The box with the bounds of a clause as well; the same object if the clause has none."""
    if not any(literal.X for literal in clause):
        return box
    lower, upper = box[0].copy(), box[1].copy()
    for literal in clause:
        for place, weight in literal.X.items():
            bound = -literal.constant / weight
            sides, tighter = (upper, min) if weight > 0 else (lower, max)
            sides[place] = tighter(sides.get(place, bound), bound)
    return lower, upper


def _conditions(clause: Sequence[Literal]) -> Clause | None:
    """The conditions on outputs in a clause; None if one of them, without any output, is false."""
    plain = [literal for literal in clause if not literal.X]
    if any(not literal.Y and literal.constant > 0 for literal in plain):
        return None
    return tuple(literal for literal in plain if literal.Y)
