"""The formulas of VNN-LIB files: from text to disjunctions of conjunctions of linear conditions, in exact numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod

from polybound.errors import PolyboundError

__all__ = ["Literal", "Question", "read_question"]

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
