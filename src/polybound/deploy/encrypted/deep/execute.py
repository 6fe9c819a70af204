"""The evaluation of a circuit, for any engine: SEAL's ciphertexts, or plain vectors of slots that simulate them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polybound.deploy.encrypted.deep.circuit import Circuit, Transfer, baby_tree
from polybound.deploy.encrypted.deep.entries import Array
from polybound.deploy.encrypted.deep.stages import Form


class Engine(Protocol):
    """What a circuit is evaluated with. A ciphertext is never changed, except by `add`'s first argument."""

    def encode(self, slots: Array, scale: float, primes: int) -> Any:
        """A plaintext; None if it is zero."""

    def nothing(self, primes: int, scale: float) -> Any:
        """An encrypted zero."""

    def rotate(self, value: Any, steps: Sequence[int]) -> Any:
        """The ciphertext rotated by all these steps, each with a key."""

    def times(self, value: Any, plain: Any) -> Any:
        """The product with a plaintext."""

    def factor(self, value: Any, factor: float, scale: float) -> Any:
        """The product with a whole number, which only changes the scale."""

    def product(self, left: Any, right: Any) -> Any:
        """The product of two ciphertexts, or a square, relinearised."""

    def add(self, total: Any, value: Any) -> Any:
        """The sum, in place of the first."""

    def shift(self, value: Any, slots: Array) -> Any:
        """The sum with a constant."""

    def lower(self, value: Any, primes: int) -> Any:
        """The same value with fewer primes."""

    def rescale(self, value: Any, primes: int, scale: float) -> Any:
        """The value divided by primes until this number of them is left; its scale is then this."""

    def scaled(self, value: Any, scale: float) -> Any:
        """The value, whose scale is this but for rounding."""


@dataclass(frozen=True)
class Levels:
    """Scales and numbers of primes.

    Attributes:
        primes: that are left at each depth.
        scales: of values at each depth.
        products: of products before they are rescaled, by the depth of their value.
        output: the scale of the logits.
    """

    primes: tuple[int, ...]
    scales: tuple[float, ...]
    products: tuple[float, ...]
    output: float


class Evaluation:
    """A circuit with its weights encoded.

    Args:
        circuit: the circuit.
        levels: scales and primes.
        engine: the engine.
        done: is called with the share of weights that are encoded.
    """

    def __init__(
        self, circuit: Circuit, levels: Levels, engine: Engine, done: Callable[[int], None] = lambda _: None
    ) -> None:
        self.circuit, self.levels, self.engine = circuit, levels, engine
        self._weights: list[list[list[dict[int, list[tuple[int, list[tuple[int, int, Any]]]]]]]] = []
        for number, transfers in enumerate(circuit.transfers):
            primes, scales = self.working(number), self.scales(number)
            self._weights.append([self._encoded(t, primes, scales) for t in transfers])
            done(number + 1)

    def working(self, number: int) -> int:
        """The number of primes while a value's forms are computed."""
        values = self.circuit.stages.values
        depth = values[number].depth - 1 if number < len(values) else self.circuit.stages.depth
        return self.levels.primes[max(depth, 0)]

    def scales(self, number: int) -> list[float]:
        """The scale of each form of a value."""
        values = self.circuit.stages.values
        if number == len(values):
            return [self.levels.output]
        value = values[number]
        if not value.products:
            return [1.0] * len(value.forms)
        whole = self.levels.products[value.depth]
        found: dict[int, float] = {}
        for left, right in value.products:
            if left is right:
                found[id(left)] = whole**0.5
            elif id(left) in found or id(right) in found:
                known, other = (left, right) if id(left) in found else (right, left)
                found.setdefault(id(other), whole / found[id(known)])
            else:
                first, second = (left, right) if _pure(left) or not _pure(right) else (right, left)
                found[id(first)] = self._natural(first, whole)
                found[id(second)] = whole / found[id(first)]
        found[id(value.rest)] = whole
        return [found[id(form)] for form in value.forms]

    def _natural(self, form: Form, whole: float) -> float:
        """The scale of a form that has values themselves among its terms: a whole multiple of theirs."""
        same = [term.value for term in form.terms if not term.maps]
        if not same:
            return float(whole**0.5)
        scale = self.levels.scales[self.circuit.stages.values[same[0]].depth]
        return scale if _pure(form) else scale * max(1, round(whole**0.5 / scale))

    def _encoded(
        self, transfer: Transfer, primes: int, scales: list[float]
    ) -> list[dict[int, list[tuple[int, list[tuple[int, int, Any]]]]]]:
        """For each part and ciphertext that is written: giant steps, each with (read, baby, weights)."""
        source = self.levels.scales[self.circuit.stages.values[transfer.source].depth]
        found = []
        for part in transfer.parts:
            written: dict[int, list[tuple[int, list[tuple[int, int, Any]]]]] = {}
            assert part.matrix is not None  # noqa: S101
            for write, giant, read, baby, slots in part.matrix.weights(
                transfer.stride, transfer.offset, self.circuit.slots
            ):
                plain = self.engine.encode(slots, scales[part.form] / source, primes)
                steps = written.setdefault(write, [])
                if not steps or steps[-1][0] != giant:
                    steps.append((giant, []))
                if plain is not None:
                    steps[-1][1].append((read, baby, plain))
            found.append(written)
        return found

    def __call__(self, inputs: Sequence[Any], done: Callable[[int], None] = lambda _: None) -> list[Any]:
        """The ciphertexts of the logits.

        Args:
            inputs: the ciphertexts of an image.
            done: is called with the number of values that are computed; an error that it raises ends the evaluation.
        """
        circuit, engine = self.circuit, self.engine
        values: list[list[Any] | None] = [list(inputs)]
        last = self._last_use()
        for number in range(1, len(circuit.stages.values) + 1):
            forms = self._forms(number, values)
            if number == len(circuit.stages.values):
                done(number)
                return forms[0]
            value = circuit.stages.values[number]
            place = {id(form): n for n, form in enumerate(value.forms)}
            whole = self.levels.products[value.depth]
            total = forms[place[id(value.rest)]]
            for left, right in value.products:
                pair = zip(forms[place[id(left)]], forms[place[id(right)]], strict=True)
                for n, (a, b) in enumerate(pair):
                    if a is not None and b is not None:
                        total[n] = self._add(total[n], engine.scaled(engine.product(a, b), whole))
            primes, scale = self.levels.primes[value.depth], self.levels.scales[value.depth]
            values.append([None if one is None else engine.rescale(one, primes, scale) for one in total])
            for old in range(number):
                if last[old] <= number:
                    values[old] = None
            done(number)
        raise AssertionError("the output comes last")

    def _last_use(self) -> list[int]:
        last = [0] * len(self.circuit.stages.values)
        for number in range(len(last) + 1):
            for form in self.circuit.forms(number):
                for term in form.terms:
                    last[term.value] = max(last[term.value], number)
        return last

    def _add(self, total: Any, value: Any) -> Any:
        return value if total is None else self.engine.add(total, value)

    def _forms(self, number: int, values: Sequence[list[Any] | None]) -> list[list[Any]]:
        """The ciphertexts of all forms of a value; None where there is nothing."""
        circuit, engine = self.circuit, self.engine
        forms, layout = circuit.forms(number), circuit.layouts[number]
        primes, scales = self.working(number), self.scales(number)
        totals: list[list[Any]] = [[None] * layout.count for _ in forms]
        for transfer, weights in zip(circuit.transfers[number], self._weights[number], strict=True):
            source = values[transfer.source]
            assert source is not None  # noqa: S101
            babies = self._babies(transfer, [None if c is None else engine.lower(c, primes) for c in source])
            for part, written in zip(transfer.parts, weights, strict=True):
                for write, steps in written.items():
                    made = self._sum(transfer, steps, babies)
                    if made is None:
                        continue
                    for step in part.reach.folds:
                        made = engine.add(made, engine.rotate(made, circuit.routes[step]))
                    made = engine.scaled(made, scales[part.form])
                    totals[part.form][write] = self._add(totals[part.form][write], made)
        for place, form in enumerate(forms):
            for term in form.terms:
                if term.maps:
                    continue
                source, scale = values[term.value], scales[place]
                assert source is not None  # noqa: S101
                of = self.levels.scales[circuit.stages.values[term.value].depth]
                for n, one in enumerate(source):
                    if one is not None:
                        same = engine.factor(engine.lower(one, primes), max(1, round(scale / of)), scale)
                        totals[place][n] = self._add(totals[place][n], same)
            if form.constant.any():
                for n, slots in enumerate(layout.place(form.constant, circuit.slots)):
                    if slots.any():
                        kept = totals[place][n]
                        kept = engine.nothing(primes, scales[place]) if kept is None else kept
                        totals[place][n] = engine.shift(kept, slots)
        return totals

    def _sum(self, transfer: Transfer, steps: list[tuple[int, list[tuple[int, int, Any]]]], babies: Any) -> Any:
        """One ciphertext of a matrix product, from the largest giant step to none."""
        engine, circuit, total = self.engine, self.circuit, None
        following = [giant for giant, _ in steps[1:]] + [0]
        for (giant, weights), then in zip(steps, following, strict=True):
            for read, baby, plain in weights:
                total = self._add(total, engine.times(babies[read][baby], plain))
            if giant != then and total is not None:
                total = engine.rotate(total, circuit.routes[transfer.stride * (giant - then) % circuit.slots])
        return total

    def _babies(self, transfer: Transfer, source: list[Any]) -> dict[int, dict[int, Any]]:
        engine, routes = self.engine, self.circuit.routes
        for fold in transfer.folds:
            if fold.apart:
                kept = [n for n in range(len(source)) if not n & fold.apart]
                source = [self._sum_of(source[n], source[n | fold.apart]) for n in kept]
            else:
                source = [
                    None if one is None else self._sum_of(one, engine.rotate(one, routes[fold.step])) for one in source
                ]
        found: dict[int, dict[int, Any]] = {}
        for read, steps in transfer.babies.items():
            found[read] = {0: source[read]}
            for before, step in baby_tree(steps):
                turn = routes[(step - before) % self.circuit.slots]
                found[read][step] = engine.rotate(found[read][before], turn)
        return found

    def _sum_of(self, one: Any, other: Any) -> Any:
        """A sum that changes neither."""
        if one is None or other is None:
            return other if one is None else one
        return self.engine.add(self.engine.factor(one, 1, 0.0), other)


def _pure(form: Form) -> bool:
    """Whether a form is one value itself."""
    return len(form.terms) == 1 and not form.terms[0].maps


class Slots:
    """An engine of plain vectors of slots: the circuit's simulator.

    Args:
        slots: their number.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def nothing(self, primes: int, scale: float) -> Any:  # noqa: ARG002
        return np.zeros(self.slots)

    def encode(self, slots: Array, scale: float, primes: int) -> Any:  # noqa: ARG002
        return slots if slots.any() else None

    def rotate(self, value: Any, steps: Sequence[int]) -> Any:
        return np.roll(value, -sum(steps))

    def times(self, value: Any, plain: Any) -> Any:
        return value * plain

    def factor(self, value: Any, factor: float, scale: float) -> Any:  # noqa: ARG002
        return value.copy()

    def product(self, left: Any, right: Any) -> Any:
        return left * right

    def add(self, total: Any, value: Any) -> Any:
        total += value
        return total

    def shift(self, value: Any, slots: Array) -> Any:
        return value + slots

    def lower(self, value: Any, primes: int) -> Any:  # noqa: ARG002
        return value

    def rescale(self, value: Any, primes: int, scale: float) -> Any:  # noqa: ARG002
        return value

    def scaled(self, value: Any, scale: float) -> Any:  # noqa: ARG002
        return value
