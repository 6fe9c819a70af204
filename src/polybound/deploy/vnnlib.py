"""VNN-LIB 1.0: questions whether a box of inputs holds one whose outputs meet linear conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import gcd, inf, lcm, nextafter, prod
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from polybound.certificates import Polytope
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["Literal", "Property", "Question", "Region", "read_question", "read_vnnlib"]


# The formulas of VNN-LIB files: from text to disjunctions of conjunctions of linear conditions, in exact numbers.


_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9]\d{0,7})")
_DEEPEST = 100
_CLAUSES = 20_000
_DIGITS = 1000


@dataclass(frozen=True)
class Literal:
    """`sum_i X[i] X_i + sum_j Y[j] Y_j + constant <= 0`; no weight is zero."""

    X: dict[int, Fraction]
    Y: dict[int, Fraction]
    constant: Fraction


Expression = str | list["Expression"]
Clause = tuple[Literal, ...]


@dataclass
class Question:
    """The variables that a file declares, and what it asserts of them.

    Attributes:
        inputs, outputs: how many `X_i` and `Y_j` there are.
        common: conditions that always hold.
        choices: disjunctions, each a list of conjunctions.
    """

    inputs: int = 0
    outputs: int = 0
    common: list[Literal] = field(default_factory=list)
    choices: list[list[Clause]] = field(default_factory=list)

    def clauses(self) -> Iterator[Clause]:
        """All ways to choose one conjunction of each disjunction, without the common conditions."""
        if prod(len(choice) for choice in self.choices) > _CLAUSES:
            raise PolyboundError(f"the assertions have more than the {_CLAUSES:,} cases that are read")
        for chosen in product(*self.choices):
            yield tuple(literal for clause in chosen for literal in clause)


def read_question(text: str) -> Question:
    """What a VNN-LIB 1.0 text declares and asserts.

    Raises:
        PolyboundError: it is none, or says what is not read; the message has the line.
    """
    question = Question()
    declared: dict[str, set[int]] = {"X": set(), "Y": set()}
    for line, command in _commands(text):
        try:
            _obey(command, question, declared)
        except PolyboundError as error:
            raise PolyboundError(f"line {line}: {error}") from None
    for name, places in declared.items():
        if not places:
            raise PolyboundError(f"it declares no {name}_0: (declare-const {name}_0 Real)")
        if places != set(range(len(places))):
            raise PolyboundError(f"the {name}_i that are declared are not {name}_0, {name}_1 and so on")
    question.inputs, question.outputs = len(declared["X"]), len(declared["Y"])
    return question


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


def _obey(command: Expression, question: Question, declared: dict[str, set[int]]) -> None:
    match command:
        case ["declare-const", str(name), "Real"]:
            variable = _VARIABLE.fullmatch(name)
            if variable is None:
                raise PolyboundError(f"variables are called X_0, X_1, ..., Y_0, ..., not {name[:40]!r}")
            places = declared[variable[1]]
            if (place := int(variable[2])) in places:
                raise PolyboundError(f"{name} is declared twice")
            places.add(place)
        case ["assert", formula]:
            clauses = _clauses(formula, declared)
            if len(clauses) == 1:
                question.common += clauses[0]
            else:
                question.choices.append(clauses)
        case [str(name), *_] if name.startswith(("vnnlib-version", "declare-network")):
            raise PolyboundError("this is VNN-LIB 2.0; 1.0 is read")
        case [str(name), *_]:
            raise PolyboundError(f"({name[:40]} ...) is not read; (declare-const ... Real) and (assert ...) are")
        case _:
            raise PolyboundError("an expression that is no command")


def _clauses(formula: Expression, declared: dict[str, set[int]]) -> list[Clause]:
    """A formula as a disjunction of conjunctions."""
    match formula:
        case ["or", *parts]:
            return [clause for part in parts for clause in _clauses(part, declared)]
        case ["and", *parts]:
            choices = [_clauses(part, declared) for part in parts]
            if prod(len(choice) for choice in choices) > _CLAUSES:
                raise PolyboundError(f"it has more than the {_CLAUSES:,} cases that are read")
            return [tuple(literal for clause in chosen for literal in clause) for chosen in product(*choices)]
        case ["<=" | ">=" | "=" as relation, one, other]:
            difference = _minus(_linear(one, declared), _linear(other, declared))
            signs = {"<=": (1,), ">=": (-1,), "=": (1, -1)}[relation]
            return [tuple(_literal(difference, Fraction(sign)) for sign in signs)]
        case ["<" | ">", *_]:
            raise PolyboundError("strict comparisons are not read; <= and >= are")
        case [str(name), *_]:
            raise PolyboundError(
                f"({name[:40]} ...) is not read as a condition; or, and, <=, >= and = of two terms are"
            )
        case _:
            raise PolyboundError(f"{str(formula)[:40]!r} is no condition")


Form = dict[str, Fraction]
"""A linear form: the weight of each variable, and of "" the constant."""


def _linear(term: Expression, declared: dict[str, set[int]]) -> Form:
    match term:
        case str():
            return _leaf(term, declared)
        case ["+", *parts] if parts:
            total: Form = {}
            for part in parts:
                total = _minus(total, _scaled(_linear(part, declared), Fraction(-1)))
            return total
        case ["-", only]:
            return _scaled(_linear(only, declared), Fraction(-1))
        case ["-", first, *parts] if parts:
            total = _linear(first, declared)
            for part in parts:
                total = _minus(total, _linear(part, declared))
            return total
        case ["*", *parts] if parts:
            return _times([_linear(part, declared) for part in parts])
        case [str(name), *_]:
            raise PolyboundError(f"({name[:40]} ...) is not read as a term; +, - and * are")
        case _:
            raise PolyboundError("an empty term")


def _leaf(word: str, declared: dict[str, set[int]]) -> Form:
    if variable := _VARIABLE.fullmatch(word):
        if int(variable[2]) not in declared[variable[1]]:
            raise PolyboundError(f"{word} is not declared")
        return {word: Fraction(1)}
    if _NUMBER.fullmatch(word) and len(word) <= _DIGITS:
        return {"": Fraction(word)}
    raise PolyboundError(f"{word[:40]!r} is neither a variable nor a number")


def _times(forms: Sequence[Form]) -> Form:
    """The product of forms of which all but one are numbers."""
    result: Form = {"": Fraction(1)}
    for form in forms:
        if set(form) <= {""}:
            result = _scaled(result, form.get("", Fraction(0)))
        elif set(result) <= {""}:
            result = _scaled(form, result.get("", Fraction(0)))
        else:
            raise PolyboundError("a product of variables is not linear")
    return result


def _scaled(form: Form, by: Fraction) -> Form:
    return {name: weight * by for name, weight in form.items()}


def _minus(one: Form, other: Form) -> Form:
    result = dict(one)
    for name, weight in other.items():
        result[name] = result.get(name, Fraction(0)) - weight
    return result


def _literal(form: Form, sign: Fraction) -> Literal:
    """`sign * form <= 0`."""
    weights: dict[str, dict[int, Fraction]] = {"X": {}, "Y": {}}
    for name, weight in form.items():
        if name and weight:
            weights[name[0]][int(name[2:])] = sign * weight
    if len(weights["X"]) > 1 or (weights["X"] and weights["Y"]):
        raise PolyboundError(
            "a comparison of several inputs, or of inputs with outputs, is no box; boxes are read only"
        )
    return Literal(weights["X"], weights["Y"], sign * form.get("", Fraction(0)))


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
