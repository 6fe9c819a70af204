"""The circuit of a network: a layout for every value, steps for every matrix, and the rotations that need a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted.graph.cost import Cost
from polybound.deploy.encrypted.graph.entries import Bit, Maps, Pattern, entries_of, patterns_of, summed_bits
from polybound.deploy.encrypted.graph.layout import Diagonals, Fold, Layout, Reach, layouts_for
from polybound.deploy.encrypted.graph.stages import Stages
from polybound.errors import PolyboundError

_BEAM = 48


@dataclass(frozen=True, eq=False)
class Part:
    """One matrix of a transfer.

    Attributes:
        form: the place of the form that it belongs to among those of its value.
        reach: which diagonals there are.
        matrix: makes the matrix, which is larger than all the rest; not there while layouts are compared.
    """

    form: int
    reach: Reach
    matrix: Callable[[], Diagonals] | None = None


@dataclass(frozen=True, eq=False)
class Transfer:
    """Matrices that read one value, for the forms of another: they share sums over bits and baby steps.

    Attributes:
        source: the number of the value that is read.
        folds: sums over bits, before anything else.
        parts: the matrices.
        stride: of the giant steps.
        offset: how far baby steps go back.
        babies: for each ciphertext that is read, its baby steps.
    """

    source: int
    folds: tuple[Fold, ...]
    parts: tuple[Part, ...]
    stride: int
    offset: int
    babies: dict[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Circuit:
    """What is computed where.

    Attributes:
        stages: the network.
        slots: of a ciphertext.
        layouts: of every value, and of the output at the end.
        transfers: for every value, and for the output at the end.
        keys: the rotations that are needed.
    """

    stages: Stages
    slots: int
    layouts: tuple[Layout, ...]
    transfers: tuple[tuple[Transfer, ...], ...]
    keys: tuple[int, ...]
    products: int = field(default=0)
    """How many plain products there are."""


def design(stages: Stages, slots: int, cost: Cost) -> Circuit:
    """The circuit of the least cost that the search finds.

    Every group of values that are added or multiplied entry by entry has one layout.
    """
    count = len(stages.values)
    group = groups_of(stages)
    shapes: dict[int, tuple[int, ...]] = {}
    for number, value in enumerate(stages.values):
        known = shapes.get(group[number])
        shapes[group[number]] = value.shape if known is None or len(known) < len(value.shape) else known
    shapes.setdefault(group[count], (len(stages.output.constant),))
    edges = _Edges(stages, group, shapes, slots, cost)
    candidates = {name: layouts_for(shape, slots, 0 if name else 5) for name, shape in shapes.items()}
    for name, some in candidates.items():
        if some[0].count > 64:
            raise PolyboundError(f"a value of shape {shapes[name]} needs more than 64 ciphertexts of {slots} slots")
    # Group by group. Of choices that later groups cannot tell apart the cheapest is kept, and some of those.
    pairs = {(group[number], group[value]) for number in range(count + 1) for value in edges.sources(number)}
    best: list[tuple[float, dict[int, Layout]]] = [(0.0, {})]
    for name in sorted(candidates):
        open_ = sorted({n for pair in pairs for n in pair if n <= name < max(pair)})
        kept: dict[tuple[Layout, ...], tuple[float, dict[int, Layout]]] = {}
        for chosen in ({**before, name: layout} for _, before in best for layout in candidates[name]):
            seen, total = tuple(chosen[n] for n in open_), edges.total(chosen)
            if seen not in kept or total < kept[seen][0]:
                kept[seen] = total, chosen
        best = sorted(kept.values(), key=lambda one: one[0])[:_BEAM]
    chosen = best[0][1]
    layouts = tuple(chosen[name] for name in group)
    transfers = tuple(tuple(edges.transfers(number, chosen)) for number in range(count + 1))
    keys = tuple(sorted(rotations(transfers, slots)))
    return Circuit(stages, slots, layouts, transfers, keys, sum(_count(t) for some in transfers for t in some))


def groups_of(stages: Stages) -> list[int]:
    """The group of every value and of the output: what is added or multiplied entry by entry lies alike."""
    parent = list(range(len(stages.values) + 1))

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    for number in range(len(parent)):
        for term in (term for form in stages.forms(number) for term in form.terms if not term.maps):
            one, other = sorted((root(number), root(term.value)))
            parent[other] = one
    return [root(number) for number in range(len(parent))]


class _Edges:
    """What it costs to compute one value's forms from another value, for any layouts of both."""

    def __init__(
        self, stages: Stages, group: list[int], shapes: dict[int, tuple[int, ...]], slots: int, cost: Cost
    ) -> None:
        self.stages, self.group, self.shapes, self.slots, self.cost = stages, group, shapes, slots, cost
        self._bits: dict[tuple[int, tuple[int, ...]], tuple[Bit, ...]] = {}
        self._patterns: dict[tuple[int, tuple[int, ...]], list[Pattern]] = {}
        self._costs: dict[tuple[int, int, Layout, Layout], float] = {}
        self._readers: dict[int, list[tuple[tuple[Bit, ...], list[tuple[int, Maps]], int]]] = {}
        for number in range(len(stages.values) + 1):
            views: dict[tuple[int, tuple[Bit, ...]], list[tuple[int, Maps]]] = {}
            for place, form in enumerate(stages.forms(number)):
                for term in form.terms:
                    if term.maps:
                        bits = self.bits(term.value, term.maps)
                        views.setdefault((term.value, bits), []).append((place, term.maps))
            self._readers[number] = [(bits, parts, value) for (value, bits), parts in views.items()]

    def bits(self, value: int, maps: Maps) -> tuple[Bit, ...]:
        """The bits of a value that a map sums over."""
        key = value, tuple(map(id, maps))
        if key not in self._bits:
            self._bits[key] = summed_bits(maps, self.shapes[self.group[value]])
        return self._bits[key]

    def patterns(self, number: int, value: int, maps: Maps) -> list[Pattern]:
        """The patterns of a map of a value."""
        key = value, tuple(map(id, maps))
        if key not in self._patterns:
            shape, result = self.shapes[self.group[value]], self.shapes[self.group[number]]
            self._patterns[key] = patterns_of(maps, self.kept(value, maps), shape, result)
        return self._patterns[key]

    def kept(self, value: int, maps: Maps) -> npt.NDArray[np.bool_]:
        """The entries of a value that are left after the sums that a map sees."""
        return np.asarray(Layout(self.shapes[self.group[value]], (), (), self.bits(value, maps)).address >= 0)

    def sources(self, number: int) -> set[int]:
        """The values that a value is computed from by matrices."""
        return {value for _, _, value in self._readers[number]}

    def primes(self, number: int) -> int:
        """How many levels are left while a value is computed."""
        values = self.stages.values
        return self.stages.depth + 2 - (values[number].depth if number < len(values) else self.stages.depth + 1)

    def total(self, chosen: dict[int, Layout]) -> float:
        """The cost of everything whose layouts are chosen."""
        total = 0.0
        for number, readers in self._readers.items():
            if self.group[number] not in chosen:
                continue
            for value in {value for _, _, value in readers if self.group[value] in chosen}:
                key = number, value, chosen[self.group[value]], chosen[self.group[number]]
                if key not in self._costs:
                    some = self.transfers(number, chosen, only=value)
                    self._costs[key] = sum(self._cost(number, transfer) for transfer in some)
                total += self._costs[key]
            if number < len(self.stages.values):
                pairs = len(self.stages.values[number].products)
                total += pairs * chosen[self.group[number]].count * self.cost.product(self.primes(number))
        return total

    def transfers(self, number: int, chosen: dict[int, Layout], only: int | None = None) -> Iterator[Transfer]:
        """How the forms of a value are computed; with `only`, from that value, and without the weights."""
        target = chosen[self.group[number]]
        for bits, parts, value in self._readers[number]:
            if only is not None and value != only:
                continue
            source, folds = chosen[self.group[value]].fold(bits)
            made = []
            for place, maps in parts:
                patterns = self.patterns(number, value, maps)
                if only is not None:
                    made.append(Part(place, Reach.of(patterns, source, target)))
                    continue
                make = partial(self._diagonals, number, value, maps, source, target)
                made.append(Part(place, make().reach, make))
            stride, offset, babies = self._steps([part.reach for part in made])
            yield Transfer(value, tuple(folds), tuple(made), stride, offset, babies)

    def _diagonals(self, number: int, value: int, maps: Maps, source: Layout, target: Layout) -> Diagonals:
        patterns = self.patterns(number, value, maps)
        entries = entries_of(maps, self.kept(value, maps), patterns, source.shape, target.shape)
        return Diagonals.from_entries(*entries, source, target)

    def _steps(self, parts: Sequence[Reach]) -> tuple[int, int, dict[int, tuple[int, ...]]]:
        """The stride and the offset of the fewest rotations, and the baby steps."""
        modulus = parts[0].modulus
        pairs = np.unique(np.concatenate([reach.read * modulus + reach.distance for reach in parts]))
        read, distance = pairs // modulus, pairs % modulus
        best: tuple[int, int, int] | None = None
        for exponent in range(modulus.bit_length()):
            stride = 1 << exponent
            for offset in sorted({0, stride // 4, stride // 2}):
                total = len(np.unique(read * stride + (distance + offset) % stride))
                for reach in parts:
                    total += _giant_steps(reach, stride, offset)
                if best is None or total < best[0]:
                    best = total, stride, offset
        assert best is not None  # noqa: S101
        _, stride, offset = best
        baby = (distance + offset) % stride - offset
        steps = {
            int(number): tuple(sorted({int(b) for b in baby[read == number]}, key=abs)) for number in np.unique(read)
        }
        return stride, offset, steps

    def _cost(self, number: int, transfer: Transfer) -> float:
        primes = self.primes(number)
        rotations = sum(len(steps) - (0 in steps) for steps in transfer.babies.values())
        rotations += sum(len(transfer.babies) for fold in transfer.folds if fold.step)
        for part in transfer.parts:
            rotations += giant_rotations(part, transfer)
        return rotations * self.cost.rotation(primes) + _count(transfer) * self.cost.plain(primes)


def _giant_steps(reach: Reach, stride: int, offset: int) -> int:
    """How many rotations the giant steps take, over all ciphertexts that are written."""
    giant, _ = reach.split(stride, offset)
    last = np.zeros(reach.target.count, dtype=np.int64)
    np.maximum.at(last, reach.write, giant)
    return int(last.sum())


def giant_rotations(part: Part, transfer: Transfer) -> int:
    """How many rotations follow the plain products of a matrix."""
    folds = len(part.reach.folds) * len(np.unique(part.reach.write))
    return _giant_steps(part.reach, transfer.stride, transfer.offset) + folds


def _count(transfer: Transfer) -> int:
    """How many diagonals there are."""
    return sum(len(part.reach.distance) for part in transfer.parts)


# Rotations: those that are needed, each of which has a key.


def giants_of(part: Part, transfer: Transfer) -> dict[int, list[int]]:
    """For each ciphertext that is written, its giant steps, the largest first."""
    giant, _ = part.reach.split(transfer.stride, transfer.offset)
    write = part.reach.write
    return {int(out): [int(g) for g in np.unique(giant[write == out])[::-1]] for out in np.unique(write)}


def rotations(transfers: Sequence[Sequence[Transfer]], slots: int) -> set[int]:
    """The steps that some ciphertext is rotated by: each needs a key."""
    needed = set[int]()
    for transfer in (transfer for some in transfers for transfer in some):
        needed |= {fold.step for fold in transfer.folds}
        needed |= {step - before for steps in transfer.babies.values() for before, step in baby_tree(steps)}
        for part in transfer.parts:
            needed |= set(part.reach.folds)
            for giants in giants_of(part, transfer).values():
                pairs = zip(giants, [*giants[1:], 0], strict=True)
                needed |= {transfer.stride * (one - other) for one, other in pairs}
    return {step % slots for step in needed} - {0}


def baby_tree(steps: Sequence[int]) -> list[tuple[int, int]]:
    """How baby steps are reached, as (from, to): from one that is there by a rotation that others use as well.

    Few rotations means few keys: from 0 by powers of two, as far as the steps themselves allow.
    """
    done, found, used = [0], list[tuple[int, int]](), set[int]()
    for step in steps:
        if step == 0:
            continue
        fitting = [before for before in done if step - before in used]
        before = min(fitting, key=lambda b: abs(step - b)) if fitting else min(done, key=lambda b: _weight(step - b))
        used.add(step - before)
        found.append((before, step))
        done.append(step)
    return found


def _weight(step: int) -> tuple[int, int]:
    """How unusual a rotation is: the number of signed binary digits, and its size."""
    digits, rest = 0, abs(step)
    while rest:
        if rest & 1:
            digits += 1
            rest += -1 if rest & 3 == 1 else 1
        rest >>= 1
    return digits, abs(step)
