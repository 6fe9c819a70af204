"""The evaluation of a circuit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polybound.deploy.encrypted.engine import Engine, Step
from polybound.deploy.encrypted.graph.circuit import Circuit, Transfer, baby_tree
from polybound.deploy.encrypted.graph.moduli import Moduli


class Evaluation:
    """A circuit with its weights encoded.

    Args:
        circuit: the circuit.
        levels: primes and scales, by the moduli that the scheme found.
        engine: the engine that encodes.
        done: is called with the number of values whose weights are encoded.
    """

    def __init__(
        self, circuit: Circuit, levels: Moduli, engine: Engine, done: Callable[[int], None] = lambda _: None
    ) -> None:
        self.circuit, self.levels = circuit, levels
        self._weights: list[list[list[dict[int, list[Step]]]]] = []
        for number, transfers in enumerate(circuit.transfers):
            primes, scales = levels.working(circuit.stages, number), levels.forms(circuit.stages, number)
            self._weights.append([self._encoded(engine, t, primes, scales) for t in transfers])
            done(number + 1)

    def _encoded(
        self, engine: Engine, transfer: Transfer, primes: int, scales: list[float]
    ) -> list[dict[int, list[Step]]]:
        """For each part and ciphertext that is written: giant steps, each with (read, baby, weights)."""
        source = 2.0 ** self.levels.scales[self.circuit.stages.values[transfer.source].depth]
        found = []
        for part in transfer.parts:
            written: dict[int, list[Step]] = {}
            assert part.matrix is not None  # noqa: S101
            for write, giant, read, baby, slots in part.matrix().weights(
                transfer.stride, transfer.offset, self.circuit.slots
            ):
                plain = engine.encode(slots, scales[part.form] / source, primes)
                steps = written.setdefault(write, [])
                if not steps or steps[-1][0] != giant:
                    steps.append((giant, []))
                if plain is not None:
                    steps[-1][1].append((read, baby, plain))
            found.append(written)
        return found

    def __call__(
        self, engine: Engine, inputs: Sequence[Any], done: Callable[[int], None] = lambda _: None
    ) -> list[Any]:
        """The ciphertexts of the logits, without their constants.

        Args:
            engine: the engine that evaluates.
            inputs: the ciphertexts of an image.
            done: is called with the number of values that are computed; an error that it raises ends the evaluation.
        """
        circuit = self.circuit
        # Values are kept before they are rescaled: rotations are then precise.
        values: list[list[Any] | None] = [list(inputs)]
        last = self._last_use()
        for number in range(1, len(circuit.stages.values) + 1):
            forms = self._forms(engine, number, values)
            if number == len(circuit.stages.values):
                done(number)
                return [engine.nothing(1, 2.0**self.levels.output) if one is None else one for one in forms[0]]
            value = circuit.stages.values[number]
            place = {id(form): n for n, form in enumerate(value.forms)}
            whole = self.levels.products[value.depth]
            total = forms[place[id(value.rest)]]
            for left, right in value.products:
                pair = zip(forms[place[id(left)]], forms[place[id(right)]], strict=True)
                for n, (a, b) in enumerate(pair):
                    if a is not None and b is not None:
                        total[n] = engine.add(total[n], engine.scaled(engine.product(a, b), whole))
            values.append(total)
            for old in range(number):
                if last[old] <= number:
                    values[old] = None  # nothing needs it any more
            done(number)
        raise AssertionError("the output comes last")

    def _last_use(self) -> list[int]:
        last = [0] * len(self.circuit.stages.values)
        for number in range(len(last) + 1):
            for form in self.circuit.stages.forms(number):
                for term in form.terms:
                    last[term.value] = max(last[term.value], number)
        return last

    def _forms(self, engine: Engine, number: int, values: Sequence[list[Any] | None]) -> list[list[Any]]:
        """The ciphertexts of all forms of a value; None where there is nothing."""
        circuit = self.circuit
        forms, layout = circuit.stages.forms(number), circuit.layouts[number]
        primes, scales = self.levels.working(circuit.stages, number), self.levels.forms(circuit.stages, number)
        totals: list[list[Any]] = [[None] * layout.count for _ in forms]
        for transfer, weights in zip(circuit.transfers[number], self._weights[number], strict=True):
            source = values[transfer.source]
            assert source is not None  # noqa: S101
            babies = self._babies(engine, transfer, source, primes)
            for part, written in zip(transfer.parts, weights, strict=True):
                for write, steps in written.items():
                    made = engine.total(steps, babies, transfer.stride)
                    if made is None:
                        continue
                    for step in part.reach.folds:
                        made = engine.add(made, engine.rotate(made, step))
                    made = engine.scaled(made, scales[part.form])
                    totals[part.form][write] = engine.add(totals[part.form][write], made)
        for place, form in enumerate(forms):
            for term in form.terms:
                if term.maps:
                    continue
                source, scale = values[term.value], scales[place]
                assert source is not None  # noqa: S101
                of = 2.0 ** self.levels.scales[circuit.stages.values[term.value].depth]
                for n, one in enumerate(source):
                    if one is not None:
                        at = self._rescaled(engine, one, term.value, primes)
                        same = engine.factor(at, max(1, round(scale / of)), scale)
                        totals[place][n] = engine.add(totals[place][n], same)
            if form is not circuit.stages.output and form.constant.any():
                for n, slots in enumerate(layout.place(form.constant, circuit.slots)):
                    if slots.any():
                        kept = totals[place][n]
                        kept = engine.nothing(primes, scales[place]) if kept is None else kept
                        totals[place][n] = engine.shift(kept, slots)
        return totals

    def _rescaled(self, engine: Engine, one: Any, number: int, primes: int) -> Any:
        """A ciphertext of a value at its scale, at the level where it is used."""
        value = self.circuit.stages.values[number]
        if value.products:
            one = engine.rescaled(one, self.levels.primes[value.depth], 2.0 ** self.levels.scales[value.depth])
        return engine.lower(one, primes)

    def _babies(self, engine: Engine, transfer: Transfer, source: list[Any], primes: int) -> dict[int, dict[int, Any]]:
        """For each ciphertext that is read and is not zero, its baby steps, after the sums over bits."""

        def total(one: Any, other: Any) -> Any:
            return one if other is None else engine.add(None if one is None else engine.factor(one, 1, 0.0), other)

        for fold in transfer.folds:
            if fold.apart:
                kept = [n for n in range(len(source)) if not n & fold.apart]
                source = [total(source[n], source[n | fold.apart]) for n in kept]
            else:
                source = [None if one is None else total(one, engine.rotate(one, fold.step)) for one in source]
        found: dict[int, dict[int, Any]] = {}
        for read, steps in transfer.babies.items():
            if source[read] is not None:
                turned = {0: source[read]}
                for before, step in baby_tree(steps):
                    turned[step] = engine.rotate(turned[before], (step - before) % self.circuit.slots)
                found[read] = {step: self._rescaled(engine, turned[step], transfer.source, primes) for step in steps}
        return found
