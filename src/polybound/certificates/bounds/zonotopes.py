r"""Affine arithmetic with generators: where the values of a graph lie, as linear functions of what they depend on.

Every value is `c + G u + e`: a centre, generators u of at most 1 each, and a slack `|e| <= s`, entry by entry. The
generators are those of the input (together of l_2 norm 1 for a ball) and one for every product's remainder. Affine maps
move c and the rows of G, so that everything cancels that can. A product is

    a b = c_a c_b + c_a B u + c_b A u + (A u)(B u) + (what has a slack in it),

and `(A u)(B u) = (p^2 - q^2) / 4w` with `p = (w A + B) u`, `q = (w A - B) u`: it lies between `-|q|^2 / 4w` and
`|p|^2 / 4w`, |.| being the norms of the rows. The middle of that range moves the centre; half of its width becomes a
new generator, one an entry. Rows cancel in p and q before norms are taken, which is why this is never looser than
`|A| |B|` and much tighter for factors that depend on the input alike; a square is the case `A = B`, q = 0.

Rounding: c, G and s are the float64 numbers that were computed, whatever they should have been. What a step was
rounded by is at most `gamma |W| (|c| + |G| 1 + s)` for a map, and a few units in the last place of each term of a sum
or a product, times the generators' largest value, 1. It is added to the slack, and so are merged generators. Norms
are rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from polybound.certificates.bounds.balls import least_linear
from polybound.certificates.bounds.graphs import Ball, GraphBoxes
from polybound.certificates.bounds.slopes import length
from polybound.certificates.input_sets import centre
from polybound.models import Affine, Applied, Bounded, Chain, Graph, Product, Scale

_U = 2.0**-52
"""Twice the unit roundoff."""

_LEAST = 2.0**-1000

INPUT = 0
"""The name of the input's generators; those of the products are counted from 1 on, in the order of the graph."""

_MATRIX = 2**24
"""Entries up to which a map is written out once, for all images, to be multiplied by generators of one entry each."""


@dataclass(frozen=True, eq=False)
class Single:
    """Generators of one entry each: generator k moves entry `index[k]` by `values[:, k]`.

    Attributes:
        index: (generators,), each entry at most once.
        values: (images, generators).
    """

    index: Tensor
    values: Tensor

    def of(self, image: int) -> Single:
        """Those of one image."""
        return Single(self.index, self.values[image : image + 1])

    def written(self, size: int) -> Tensor:
        """The generators as vectors of that size, (images, generators, size)."""
        images, count = self.values.shape
        whole = self.values.new_zeros(images, count, size)
        whole[:, torch.arange(count), self.index] = self.values
        return whole


@dataclass(frozen=True, eq=False)
class Mapped:
    """Single generators behind a map, `scale * W g`, which is not carried out before that is needed.

    The norms of its rows are `scale * |W| values`, without any generator; and a map to few outputs that comes next is
    pulled back through W, output by output, instead of pushing all generators through both.

    Attributes:
        single: the generators before the map.
        step: the map; no chain, so that its absolute values are those of W.
        matrix: W', (inputs, outputs).
        scale: (images, outputs).
        size: `|W| values`, (images, outputs), rounded up.
    """

    single: Single
    step: Affine
    matrix: Tensor
    scale: Tensor
    size: Tensor

    @property
    def terms(self) -> int:
        """How many roundings carrying it out adds to each entry."""
        return self.step.terms + 8

    def of(self, image: int) -> Mapped:
        """Those of one image."""
        some = slice(image, image + 1)
        return replace(self, single=self.single.of(image), scale=self.scale[some], size=self.size[some])

    def written(self, _: int = 0) -> Tensor:
        """The generators as vectors, (images, generators, size)."""
        return self.matrix[self.single.index] * self.single.values.unsqueeze(2) * self.scale.unsqueeze(1)

    def pulled(self, rows: Tensor) -> Tensor:
        """Through another map of few rows, (outputs, size): (images, generators, outputs)."""
        back = self.step.adjoint((rows * self.scale.unsqueeze(1)).flatten(0, 1))
        back = back[:, self.single.index].reshape(len(self.scale), len(rows), -1) * self.single.values.unsqueeze(1)
        return back.transpose(1, 2).contiguous()


Generators = Tensor | Single | Mapped
"""Some generators of each image: (images, generators, size), one an entry, or those behind a map."""


@dataclass(frozen=True, eq=False)
class Zonotope:
    """Values `centre + sum over generators + e`, `|e| <= slack`, of some images.

    Attributes:
        centre: (images, size).
        generators: by name.
        slack: (images, size).
        reach: how far the generators together move each entry at most, (images, size).
        rough: what is lost where generators behind maps are written out, as a share of the reach.
    """

    centre: Tensor
    generators: dict[int, Generators]
    slack: Tensor
    reach: Tensor

    @property
    def rough(self) -> float:
        return 4 * _U * max((one.terms for one in self.generators.values() if isinstance(one, Mapped)), default=0)

    def ends(self) -> Bounded:
        """The interval of each entry."""
        away = (self.reach + self.slack) * (1 + 2 * _U)
        off = (self.centre.abs() + away) * _U + _LEAST
        return Bounded(self.centre - away - off, self.centre + away + off)


@dataclass(frozen=True, eq=False)
class Factors:
    """A product, as bounds that look at several products together need it.

    Attributes:
        name: of the generators that its remainder became.
        left: the first factor.
        right: the second; the same object for a square.
        middle: of the range of `(A u)(B u)`, (images, size).
        radius: half of its width.
        index: the entries that have a generator; the remainders of others went into the slack.
    """

    name: int
    left: Zonotope
    right: Zonotope
    middle: Tensor
    radius: Tensor
    index: Tensor


@dataclass(eq=False)
class Zonotopes:
    """The algebra.

    Attributes:
        ball: whether the generators of the input have l_2 norm 1 together.
        most: how many generators there may be; of a product's remainders, the smallest become slack.
        matrices: maps that are written out, kept for the next images.
        factors: of all products that were walked over.
        inputs: the generators of the input.
        count: how many generators there are so far.
    """

    ball: bool
    most: int
    matrices: dict[Affine, Tensor]
    factors: list[Factors] = field(default_factory=list)
    inputs: Single = field(init=False)
    count: int = 0

    def input(self, lower: Tensor, upper: Tensor, ball: Ball | None) -> Zonotope:
        """Boxes, or the balls in them, as zonotopes."""
        middle, radius = (ball[0], ball[1]) if ball is not None else centre(lower, upper)
        slack = torch.zeros_like(middle)
        index = (radius > 0).any(0).nonzero().squeeze(1)
        index = index if len(index) else torch.zeros(1, dtype=torch.long)  # of a point, so that nothing is empty
        if len(index) > self.most:
            kept = radius.sum(0).topk(self.most).indices.sort().values
            slack = radius.index_fill(1, kept, 0.0)
            index = kept
        self.inputs, self.count = Single(index, radius[:, index]), len(index)
        return self._made(middle, {INPUT: self.inputs}, slack)

    def affine(self, step: Affine, value: Zonotope) -> Zonotope:
        """`W c + b`, `W G`, `|W| s`."""
        moved = {name: self._moved(step, one) for name, one in value.generators.items()}
        mapped = [one for one in value.generators.values() if isinstance(one, Mapped)]
        terms = step.terms + 8 + sum(one.terms for one in mapped)
        # The magnitudes of everything that was multiplied, and the slack, in one pass.
        size = value.centre.abs() + self._sum(value.reach) + value.slack
        grown = step.absolute().linear(torch.cat([size, value.slack, torch.ones_like(size[:1])]))
        size, slack = grown[: len(size)], grown[len(size) : -1]
        off = 2 * terms * _U * (size + slack + step.constant.abs())
        for one in mapped:
            most = one.size.amax(1, keepdim=True) + one.single.values.sum(1, keepdim=True)
            off = off + _LEAST * (1 + most)
        tiny = (step.inputs + 1) * terms * (self.count + 2) * torch.finfo(size.dtype).smallest_normal
        return self._made(step(value.centre), moved, slack + off + tiny * (grown[-1:] + 1.0))

    def _moved(self, step: Affine, generators: Generators) -> Generators:
        if isinstance(generators, Single):
            if isinstance(step, Scale):
                return Single(generators.index, generators.values * step.weight[generators.index])
            matrix = self._matrix(step)
            if matrix is None:
                return self._moved(step, generators.written(step.inputs))
            if isinstance(step, Chain) or self.ball:
                return matrix[generators.index] * generators.values.unsqueeze(2)
            whole = torch.zeros(len(generators.values), step.inputs, dtype=matrix.dtype)
            size = step.absolute().linear(whole.index_copy_(1, generators.index, generators.values.abs()))
            size = size * (1 + 4 * (step.terms + 8) * _U) + _LEAST * step.inputs
            return Mapped(generators, step, matrix, torch.ones_like(size), size)
        if isinstance(generators, Mapped):
            matrix = self._matrix(step)
            if matrix is not None and step.outputs < len(generators.single.index):
                return generators.pulled(matrix.T)
            generators = generators.written()
        return step.linear(generators.flatten(0, 1)).reshape(*generators.shape[:2], -1)

    def _matrix(self, step: Affine) -> Tensor | None:
        """A map written out and transposed; None if it is too large."""
        if step.inputs * step.outputs > _MATRIX:
            return None
        if step not in self.matrices:
            self.matrices[step] = step.matrix().T.contiguous()
        return self.matrices[step]

    def written(self, value: Zonotope) -> Zonotope:
        """The value with all maps carried out."""
        if not value.rough:
            return value
        found = dict(value.generators)
        for name, one in value.generators.items():
            found[name] = one.written() if isinstance(one, Mapped) else one
        return self._made(value.centre, found, value.slack + value.rough * value.reach + _LEAST)

    def sum(self, values: Sequence[Zonotope]) -> Zonotope:
        """Centres, generators of one name, and slacks are added."""
        values = [self.written(value) for value in values]
        middle = reduce(torch.add, [value.centre for value in values])
        found: dict[int, Generators] = {}
        for name, parts in _aligned(values):
            found[name] = reduce(_plus, [part for part in parts if part is not None])
        size = sum((value.centre.abs() + self._sum(value.reach) + value.slack for value in values), torch.zeros(()))
        slack = reduce(torch.add, [value.slack for value in values])
        return self._made(middle, found, slack + 2 * len(values) * _U * size)

    def product(self, left: Zonotope, right: Zonotope) -> Zonotope:
        """`c_a c_b + middle`, `c_a B + c_b A` and a new generator for each entry's remainder."""
        if left is not right:
            left, right = self.written(left), self.written(right)
        a, b = left.centre, right.centre
        found: dict[int, Generators] = {}
        whole = left.reach * right.reach * (1 + 4 * _U) + _LEAST
        if left is right:
            high, low = whole, torch.zeros_like(whole)
            found = {name: _times(given, 2 * a) for name, given in left.generators.items()}
        else:
            # The best w is the ratio of what p and q would be without cancelling; any is sound.
            w = ((right.reach + _LEAST) / (left.reach + _LEAST)).sqrt().clamp(2.0**-300, 2.0**300)
            plus, minus = torch.zeros_like(w), torch.zeros_like(w)
            for name, (one, other) in _aligned([left, right]):
                if one is None or other is None:
                    # Nothing cancels: both norms are the one that there is.
                    if one is not None:
                        norm, found[name] = self._norms(name, one, w) * w, _times(one, b)
                    elif other is not None:
                        norm, found[name] = self._norms(name, other, w), _times(other, a)
                    plus, minus = plus + norm, minus + norm
                else:
                    scaled = _times(one, w)
                    plus = plus + self._norms(name, _plus(scaled, other), w)
                    minus = minus + self._norms(name, _plus(scaled, other, -1.0), w)
                    found[name] = _plus(_times(one, b), _times(other, a))
            off = 4 * _U * (w * left.reach + right.reach) + _LEAST
            high, low = (
                torch.minimum((norms * (1 + self._share) + off).square() / (4 * w) * (1 + 8 * _U) + _LEAST, whole)
                for norms in (plus, minus)
            )
        middle, radius = (high - low) / 2, (high + low) / 2 * (1 + 4 * _U) + _LEAST
        least = _LEAST * (1 + self.count)
        slack = left.slack * (b.abs() + right.reach + right.slack) + right.slack * (a.abs() + left.reach)
        size = (a.abs() + self._sum(left.reach)) * (b.abs() + self._sum(right.reach)) + middle.abs() + slack
        slack = slack + 8 * _U * size + least
        name, index = len(self.factors) + 1, (radius > 2 * _LEAST).any(0).nonzero().squeeze(1)
        if len(index) > self.most - self.count:
            worst = radius.nan_to_num(0.0, 0.0).sum(0)
            index = worst.topk(max(0, self.most - self.count)).indices.sort().values
        slack = slack + radius.index_fill(1, index, 0.0) * (1 + _U)
        self.factors.append(Factors(name, left, right, middle, radius, index))
        if len(index):
            found[name] = Single(index, radius[:, index])
            self.count += len(index)
        return self._made(a * b + middle, found, slack)

    @property
    def _share(self) -> float:
        """What a norm of all generators is rounded by at most, as a share."""
        return (self.count + 32) * _U

    def _sum(self, reach: Tensor) -> Tensor:
        """At least the sum of the generators' absolute values: of n numbers, sqrt(n) times their l_2 norm."""
        return reach * (len(self.inputs.index) ** 0.5 + 1) if self.ball else reach

    def _norms(self, name: int, generators: Generators, like: Tensor) -> Tensor:
        """How far some generators move each entry, (images, size)."""
        if isinstance(generators, Single):
            return torch.zeros_like(like).index_copy_(1, generators.index, generators.values.abs())
        if isinstance(generators, Mapped):
            return generators.scale.abs() * generators.size * (1 + 4 * _U)
        if self.ball and name == INPUT:
            return length(generators, 1)
        return torch.linalg.vector_norm(generators, 1, dim=1)  # type: ignore[no-any-return]

    def _made(self, middle: Tensor, generators: dict[int, Generators], slack: Tensor) -> Zonotope:
        reach = torch.zeros_like(middle)
        for name, one in generators.items():
            reach = reach + self._norms(name, one, middle)
        return Zonotope(middle, generators, slack * (1 + 8 * _U), reach * (1 + self._share))


def _aligned(values: Sequence[Zonotope]) -> Iterator[tuple[int, list[Generators | None]]]:
    """The generators of each name in all values, all written out unless all are single."""
    for name in sorted({name for value in values for name in value.generators}):
        parts = [value.generators.get(name) for value in values]
        if any(isinstance(part, Tensor) for part in parts):
            size = values[0].centre.shape[1]
            parts = [part.written(size) if isinstance(part, Single) else part for part in parts]
        yield name, parts


def _times(generators: Generators, factor: Tensor) -> Generators:
    """Each entry times a factor, (images, size)."""
    if isinstance(generators, Single):
        return Single(generators.index, generators.values * factor[:, generators.index])
    if isinstance(generators, Mapped):
        return replace(generators, scale=generators.scale * factor)
    return generators * factor.unsqueeze(1)


def _plus(one: Generators, other: Generators, sign: float = 1.0) -> Generators:
    """`one + sign * other`, both single or both written out."""
    if isinstance(one, Single) and isinstance(other, Single):
        return Single(one.index, one.values + sign * other.values)
    return torch.add(one, other, alpha=sign)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Walked:
    """What a walk over some images found.

    Attributes:
        output: the outputs.
        factors: of all products, in the graph's order.
        boxes: intervals of all nodes, those of the zonotopes cut by those that were known.
        ball: the images' balls, or None.
        start: the inputs.
        inputs: the generators of the input.
    """

    output: Zonotope
    factors: list[Factors]
    boxes: GraphBoxes
    ball: Ball | None
    start: Zonotope
    inputs: Single

    @property
    def count(self) -> int:
        """How many generators there are."""
        return len(self.inputs.index) + sum(len(one.index) for one in self.factors)

    def away(self, form: Tensor, name: int, rows: Tensor) -> Tensor:
        """The largest value of a form of the generators of a name, (rows, generators), rounded up by `least_linear`."""
        if name != INPUT or self.ball is None:
            return form.abs().sum(1)
        low, high = (side[rows][:, self.inputs.index] for side in self.ball[2])
        return least_linear(form, (low, high))[0]


def walked(boxes: GraphBoxes, most: int, matrices: dict[Affine, Tensor], ball: Ball | None = None) -> Walked:
    """The zonotopes of some images.

    Args:
        boxes: intervals of all nodes.
        most: generators that there may be.
        matrices: a store for maps that are written out.
        ball: in the place of the inputs' boxes.
    """
    algebra, graph = Zonotopes(ball is not None, most, matrices), boxes.graph
    values: dict[int, Bounded] = {}

    def watch(number: int, value: Zonotope) -> None:
        known, found = boxes.values[number], value.ends()
        lower, upper = torch.fmax(known.lower, found.lower), torch.fmin(known.upper, found.upper)
        values[number] = Bounded(lower, upper)

    first = boxes.values[graph.inputs[0]]
    start = algebra.input(first.lower, first.upper, ball)
    watch(graph.inputs[0], start)
    output = algebra.written(graph.evaluate(algebra, start, watch=watch))
    return Walked(output, algebra.factors, GraphBoxes.of_values(graph, values), ball, start, algebra.inputs)


def generator_bounds(found: Walked, rows: Tensor, forms: Tensor) -> Tensor:
    """Lower bounds of `forms . f` (rows, classes), of the images of the walk that `rows` numbers."""
    value, ball = found.output, found.ball
    middle = (forms * value.centre[rows]).sum(1)
    away = (forms.abs() * value.slack[rows]).sum(1)
    size = (forms.abs() * (value.centre.abs() + value.reach + value.slack)[rows]).sum(1)
    count = forms.shape[1]
    for name, one in value.generators.items():
        if isinstance(one, Single):
            moved = forms[:, one.index] * one.values[rows]
        else:
            whole = one if isinstance(one, Tensor) else one.written()
            moved = torch.empty(len(rows), whole.shape[1], dtype=forms.dtype)
            for image in torch.unique(rows):
                some = (rows == image).nonzero().squeeze(1)
                moved[some] = forms[some] @ whole[image].T
        count += moved.shape[1]
        away = away + found.away(moved, name, rows)
    root = 1.0 if ball is None else found.boxes.graph.features**0.5 + 1
    bound = middle - away - (count + 16) * _U * (size * root + away) - _LEAST
    # NaN stands for an overflow: nothing is known.
    return bound.nan_to_num(-torch.inf, -torch.inf, -torch.inf)


def generators_of(graph: Graph) -> tuple[int, int]:
    """How many generators a walk of the graph has, and the numbers that each of them takes in what is kept."""
    products = [number for number, node in enumerate(graph.nodes) if isinstance(node, Product)]
    kept = sum(len(set(graph.nodes[number].sources)) * graph.sizes[number] for number in products)
    applied = [graph.sizes[n] for n, node in enumerate(graph.nodes) if isinstance(node, Applied)]
    count = graph.features + sum(graph.sizes[number] for number in products)
    return count, kept + 3 * max((*applied, *graph.sizes))
