"""The primes and the scales of a circuit, by the estimated error; what an evaluation costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2, prod

import numpy as np

from polybound.deploy.encrypted.graph.circuit import Circuit, giant_rotations
from polybound.deploy.encrypted.graph.cost import Cost
from polybound.deploy.encrypted.graph.entries import Array
from polybound.deploy.encrypted.graph.noise import Ranges, Source, variance
from polybound.deploy.encrypted.graph.stages import Form, Stages
from polybound.deploy.encrypted.noise import MARGIN, RINGS, estimate, mask_variance

SPECIAL = 60
"""Bits of the special prime: the larger, the smaller are the errors of rotations."""

_ROUNDING = 1e-9
"""Bits; scales are chosen so that they just fit."""


@dataclass(frozen=True)
class Moduli:
    """The primes and the scales of a circuit, all in bits.

    Attributes:
        ring: dimension N.
        last: the size of the prime that the logits are left with.
        each: of all others but the special one.
        drops: how many primes each depth drops; that of the input is 0.
        scales: of values at each depth.
        output: of the logits.
        found: the primes themselves; without them, as if they were powers of two.
    """

    ring: int
    last: int
    each: int
    drops: tuple[int, ...]
    scales: tuple[float, ...]
    output: float
    found: tuple[int, ...] = ()

    @property
    def bits(self) -> tuple[int, ...]:
        """The sizes of all primes, the special one last."""
        return (self.last, *[self.each] * sum(self.drops), SPECIAL)

    @cached_property
    def primes(self) -> tuple[int, ...]:
        """The number of data primes that are left at each depth."""
        return tuple(1 + sum(self.drops[depth + 1 :]) for depth in range(len(self.drops)))

    @cached_property
    def products(self) -> tuple[float, ...]:
        """The scales of products before they are rescaled, by the depth of their value."""
        sizes, found = self.found or [2**bits for bits in self.bits[:-1]], [0.0]
        for depth in range(1, len(self.primes)):
            dropped = sizes[self.primes[depth] : self.primes[depth - 1]]
            found.append(2.0 ** self.scales[depth] * prod(map(float, dropped)))
        return tuple(found)

    def working(self, stages: Stages, number: int) -> int:
        """The number of primes while a value's forms, or the output, are computed."""
        depth = stages.values[number].depth - 1 if number < len(stages.values) else stages.depth
        return self.primes[max(depth, 0)]

    def forms(self, stages: Stages, number: int) -> list[float]:
        """The scale of each form of a value, or of the output.

        Two sides of a product share its scale; a side that is a value itself, or has one among its terms, has a whole
        multiple of that value's.
        """
        if number == len(stages.values):
            return [2.0**self.output]
        value = stages.values[number]
        if not value.products:
            return []
        whole = self.products[value.depth]

        def natural(form: Form) -> float:
            same = [term.value for term in form.terms if not term.maps]
            if not same:
                return float(whole**0.5)
            scale = 2.0 ** self.scales[stages.values[same[0]].depth]
            return float(scale if _pure(form) else scale * max(1, round(whole**0.5 / scale)))

        found: dict[int, float] = {}
        for left, right in value.products:
            if left is right:
                found[id(left)] = float(whole**0.5)
            elif id(left) in found or id(right) in found:
                known, other = (left, right) if id(left) in found else (right, left)
                found.setdefault(id(other), whole / found[id(known)])
            else:
                first, second = (left, right) if _pure(left) or not _pure(right) else (right, left)
                found[id(first)] = natural(first)
                found[id(second)] = whole / found[id(first)]
        found[id(value.rest)] = whole
        return [found[id(form)] for form in value.forms]


def _pure(form: Form) -> bool:
    """Whether a form is one value itself."""
    return len(form.terms) == 1 and not form.terms[0].maps


def best_moduli(circuit: Circuit, sources: Sequence[Source], ranges: Ranges, extra: int) -> tuple[Moduli, float] | None:
    """The primes and scales of the smallest estimated error, and that error; None if the ranges fit none.

    Some images reach far more than all others. So there is room for logits that are some thousand times as large as
    their range where that makes the error larger by a third at most.

    Args:
        circuit: the circuit.
        sources: the errors of the logits.
        ranges: of all values.
        extra: how many depths drop two primes instead of one, for more precision in more time.
    """
    best = _best_with_room(circuit, sources, ranges, extra, 0.0)
    for room in (12.0, 6.0) if best is not None and not ranges.proven else ():
        other = _best_with_room(circuit, sources, ranges, extra, room)
        if other is not None and best is not None and other[1] <= 4 / 3 * best[1]:
            return other
    return best


def _best_with_room(
    circuit: Circuit, sources: Sequence[Source], ranges: Ranges, extra: int, room: float
) -> tuple[Moduli, float] | None:
    """The same with this number of bits above the range of the logits."""
    stages, ring = circuit.stages, 2 * circuit.slots
    depth = stages.depth
    twice = {round(float(level)) for level in np.linspace(1, depth, extra)}
    drops = (0, *(1 + (level in twice) for level in range(1, depth + 1)))
    best: tuple[Moduli, float] | None = None
    logits = log2(max(ranges.forms[-1][0], 1.0))
    for each in range(60, 29, -2):
        last = min(60, RINGS[ring] - SPECIAL - each * sum(drops))
        if last < 30 or (depth == 0 and each < 60):
            continue
        for weights in np.arange(8.0, 31.0):
            for final in np.arange(18.0, 42.0, 2.0):
                output = last - 1 - MARGIN - logits - room
                scales = [final]
                for level in range(depth, 0, -1):
                    scales.append((each * drops[level] + scales[-1]) / 2 - weights)
                if min(scales) < 12 or max(scales) > 58 or output - final < 6:
                    continue
                moduli = Moduli(ring, last, each, drops, tuple(scales[::-1]), output)
                error = float(estimates(circuit, sources, moduli).max())
                if (best is None or error < best[1]) and _has_room(circuit, ranges, moduli):
                    best = moduli, error
    return None if best is None else _refined(circuit, sources, ranges, *best)


def _refined(
    circuit: Circuit, sources: Sequence[Source], ranges: Ranges, moduli: Moduli, error: float
) -> tuple[Moduli, float]:
    """The moduli with each scale moved for itself, while that makes the error smaller."""
    for step in (1.0, 0.5, 0.25):
        better = True
        while better:
            better = False
            for level in range(len(moduli.scales)):
                for change in (step, -step):
                    scales = list(moduli.scales)
                    scales[level] += change
                    if not 12 <= scales[level] <= 58 or moduli.output - scales[-1] < 6:
                        continue
                    other = replace(moduli, scales=tuple(scales))
                    found = float(estimates(circuit, sources, other).max())
                    if found < 0.999 * error and _has_room(circuit, ranges, other):
                        moduli, error, better = other, found, True
    return moduli, error


def estimates(circuit: Circuit, sources: Sequence[Source], moduli: Moduli) -> Array:
    """The estimated error of each image's logits: seven standard deviations, of the worst class."""
    return estimate(variances(circuit, sources, moduli).max(-1))


def variances(circuit: Circuit, sources: Sequence[Source], moduli: Moduli) -> Array:
    """The variances of the logits' errors, (images, classes)."""
    stages = circuit.stages
    forms = [moduli.forms(stages, number) for number in range(len(stages.values) + 1)]
    total = np.zeros_like(sources[0].coefficient)
    for source in sources:
        scale = 2.0 ** moduli.scales[stages.values[source.value].depth]
        if source.form is not None and source.kind in ("weights", "giant", "factor"):
            form = forms[source.number][source.form]
            if source.kind == "factor" and form == scale:
                continue  # the number is one
            scale = form if source.kind == "giant" else form / scale
        primes = moduli.bits[: moduli.working(stages, source.number)]
        total = total + source.coefficient * variance(moduli.ring, source.kind, primes, SPECIAL) / scale**2
    return np.asarray(total + mask_variance(moduli.ring) / 2 / 4.0**moduli.output)


def _has_room(circuit: Circuit, ranges: Ranges, moduli: Moduli) -> bool:
    """Whether every value fits its modulus at its scale."""
    stages, bits = circuit.stages, moduli.bits
    for number in range(len(stages.values) + 1):
        modulus = sum(bits[: moduli.working(stages, number)])
        for scale, largest in zip(moduli.forms(stages, number), ranges.forms[number], strict=True):
            if log2(scale) + log2(max(largest, 1.0)) + MARGIN > modulus - 1 + _ROUNDING:
                return False
        if number < len(stages.values):
            value = stages.values[number]
            scale = moduli.products[value.depth] if value.products else 2.0 ** moduli.scales[0]
            if log2(scale) + log2(max(ranges.values[number], 1.0)) + MARGIN > modulus - 1 + _ROUNDING:
                return False
    return True


def seconds(circuit: Circuit, primes: Sequence[int]) -> float:
    """The cost model's prediction of one evaluation."""
    stages, cost, total = circuit.stages, Cost(2 * circuit.slots), 0.0
    for number, transfers in enumerate(circuit.transfers):
        last = number == len(stages.values)
        level = primes[stages.depth if last else max(stages.values[number].depth - 1, 0)]
        for transfer in transfers:
            # Baby steps come before the rescale.
            source = stages.values[transfer.source]
            before = primes[max(source.depth - 1, 0)]
            babies = sum(len(steps) - (0 in steps) for steps in transfer.babies.values())
            babies += sum(len(transfer.babies) for fold in transfer.folds if fold.step)
            total += babies * cost.rotation(before)
            if source.products:
                total += sum(map(len, transfer.babies.values())) * cost.rescale(before)
            total += sum(giant_rotations(part, transfer) for part in transfer.parts) * cost.rotation(level)
            total += sum(len(part.reach.distance) for part in transfer.parts) * cost.plain(level)
        if not last:
            pairs = len(stages.values[number].products)
            total += pairs * circuit.layouts[number].count * cost.product(level)
    return total / 1e3


def megabytes(circuit: Circuit, primes: Sequence[int]) -> float:
    """The size of the encoded weights."""
    stages, total = circuit.stages, 0
    for number, transfers in enumerate(circuit.transfers):
        depth = stages.depth if number == len(stages.values) else max(stages.values[number].depth - 1, 0)
        total += primes[depth] * sum(len(part.reach.distance) for t in transfers for part in t.parts)
    return total * 16 * circuit.slots / 1e6
