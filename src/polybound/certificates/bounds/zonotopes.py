r"""Affine arithmetic with generators: where the values of a graph lie, as linear functions of what they depend on.

Every value is `c + G u + e`: a centre, generators u of at most 1 each, and a slack `|e| <= s`, entry by entry. The
generators are those of the input (together of l_2 norm 1 for a ball) and one for every product's remainder. Affine maps
move c and the rows of G, so that everything cancels that can. A product is

    a b = c_a c_b + c_a B u + c_b A u + (A u)(B u) + (what has a slack in it),

and `(A u)(B u) = (p^2 - q^2) / 4w` with `p = (w A + B) u`, `q = (w A - B) u`: it lies between `-|q|^2 / 4w` and
`|p|^2 / 4w`, |.| being the norms of the rows. The middle of that range moves the centre; half of its width becomes a
new generator, one an entry. Rows cancel in p and q before norms are taken, which is why this is never looser than
`|A| |B|` and much tighter for factors that depend on the input alike; a square is the case `A = B`, q = 0.

Rounding: c, G and s are the numbers that were computed, whatever they should have been. What a step was rounded by is
at most `gamma |W| (|c| + |G| 1 + s)` for a map, and a few units in the last place of each term of a sum or a product,
times the generators' largest value, 1. It is added to the slack, and so are merged generators. Norms are rounded up.
c and s are float64. Written out, G is float32 where that is precise enough, as gamma then is for it: convolutions of
float64 are up to twenty times as slow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

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

_SPARSE = 0.1
"""Share of entries that are not zero up to which a matrix is multiplied as a sparse one."""

_SUMMED = 256
"""Generators that are summed in their own precision, before the sums are in float64."""

_TERMS = 2**17
"""Roundings that float32 may meet in one map: what is lost is taken to grow linearly with them."""

_COARSE = 2.0**-5
"""Share of a factor's reach that its slack may have where generators are float32."""


class Matrix:
    """A map, or several one after another, written out in float64 and transposed: (inputs, outputs)."""

    def __init__(self, entries: Tensor) -> None:
        self.entries = entries
        self.next: dict[Affine, Matrix | None] = {}

    @cached_property
    def absolute(self) -> Tensor:
        """The absolute values."""
        return self.entries.abs()

    @cached_property
    def terms(self) -> int:
        """How many entries of a row there are, and so how many roundings in a product with the transposed matrix."""
        return int(self.entries.count_nonzero(1).amax()) + 4

    @cached_property
    def most(self) -> float:
        """The largest sum of absolute values of a row or column."""
        return float(torch.maximum(self.absolute.sum(0).amax(), self.absolute.sum(1).amax())) * 2 + 1

    @cached_property
    def _known(self) -> dict[tuple[torch.dtype, bool], Tensor]:
        return {}

    def to(self, dtype: torch.dtype, sparse: bool = False) -> Tensor:
        """The entries in that precision; if asked for, in compressed rows where most of them are zeros."""
        if (dtype, sparse) not in self._known:
            made = self.entries.to(dtype)
            if sparse and int(made.count_nonzero()) <= _SPARSE * made.numel():
                with warnings.catch_warnings():  # "Sparse CSR tensor support is in beta state"
                    warnings.simplefilter("ignore")
                    made = made.to_sparse_csr()
            self._known[dtype, sparse] = made
        return self._known[dtype, sparse]

    def then(self, step: Affine) -> Matrix | None:
        """The matrix with another map after it; None if it is too large."""
        if step not in self.next:
            fits = len(self.entries) * step.outputs <= _MATRIX
            self.next[step] = Matrix(step.linear(self.entries)) if fits else None
        return self.next[step]


class Maps:
    """The maps of a graph as generators need them, kept for the next images.

    Attributes:
        graph: in float64.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._cast: dict[tuple[Affine, torch.dtype], Affine] = {}
        self._matrices: dict[Affine, Matrix | None] = {}
        self._absolute: dict[Affine, tuple[Affine, float]] = {}

    @cached_property
    def single(self) -> bool:
        """Whether float32 is as precise here as it should be.

        Libraries may be set to multiply in less, or convolve by transforms, whose errors spread from one entry to its
        neighbours: that shows where entries of very different sizes stand side by side.
        """
        generator = torch.Generator().manual_seed(0)
        for step in {node.map for node in self.graph.nodes if isinstance(node, Applied)}:
            if step.terms > _TERMS:
                return False
            cast, share = self.cast(step, torch.float32), (step.terms + 4) * torch.finfo(torch.float32).eps / 2
            absolute, growth = self.absolute(step)
            x = torch.randn(32, step.inputs, generator=generator)
            x = x * 2.0 ** torch.randint(-20, 1, x.shape, generator=generator)
            off = (cast.linear(x) - step.linear(x.double())).abs()
            if not bool((off <= share * absolute.linear(x.abs().double()) + 2.0**-100 * growth).all()):
                return False
        return True

    def cast(self, step: Affine, dtype: torch.dtype) -> Affine:
        """A map of that precision."""
        if dtype == torch.float64:
            return step
        if (step, dtype) not in self._cast:
            self._cast[step, dtype] = step.transform(lambda t: t.to(dtype) if t.is_floating_point() else t)
        return self._cast[step, dtype]

    def absolute(self, step: Affine) -> tuple[Affine, float]:
        """The map of absolute values, and how much its maps can enlarge the largest entry, at least."""
        if step not in self._absolute:
            absolute, growth = step.absolute(), 1.0
            for part in absolute.maps if isinstance(absolute, Chain) else [absolute]:
                growth *= 2.0 + 2.0 * float(part.row_l1().amax())
            self._absolute[step] = absolute, growth
        return self._absolute[step]

    def matrix(self, step: Affine) -> Matrix | None:
        """A map written out; None if it is too large."""
        if step not in self._matrices:
            fits = step.inputs * step.outputs <= _MATRIX
            self._matrices[step] = Matrix(step.matrix().T.contiguous()) if fits else None
        return self._matrices[step]


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

    def written(self, size: int, dtype: torch.dtype) -> Tensor:
        """The generators as vectors of that size, (images, generators, size)."""
        images, count = self.values.shape
        whole = self.values.new_zeros(images, count, size, dtype=dtype)
        whole[:, torch.arange(count), self.index] = self.values.to(dtype)
        return whole


@dataclass(frozen=True, eq=False)
class Mapped:
    """Single generators behind maps, `scale * W g`, which are not carried out before that is needed.

    The norms of the rows are `scale * |W| values`, without any generator. A map that follows is merged with W, once for
    all images, as long as there is no scale; later, a map to few outputs is pulled back through W, output by output,
    instead of pushing all generators through both.

    Attributes:
        single: the generators before the maps.
        matrix: W.
        scale: (images, outputs), or None for ones.
        size: `|W| values`, (images, outputs), rounded up.
        dtype: of the generators once they are written out.
    """

    single: Single
    matrix: Matrix
    scale: Tensor | None
    size: Tensor
    dtype: torch.dtype

    @property
    def floor(self) -> Tensor:
        """What each entry loses by underflow where it is carried out, all generators together, (images, 1)."""
        values, scale = self.single.values.abs().sum(1, keepdim=True), self._factor.abs().amax(1, keepdim=True)
        count = 16.0 * (len(self.single.index) + 2) * self.matrix.terms
        return count * torch.finfo(self.dtype).smallest_normal * self.matrix.most * (1 + scale) * (1 + values)

    @property
    def _factor(self) -> Tensor:
        return torch.ones_like(self.size[:, :1]) if self.scale is None else self.scale

    def of(self, image: int) -> Mapped:
        """Those of one image."""
        some, scale = slice(image, image + 1), self.scale
        scale = None if scale is None else scale[some]
        return replace(self, single=self.single.of(image), scale=scale, size=self.size[some])

    def written(self, *_: object) -> Tensor:
        """The generators as vectors, (images, generators, size)."""
        entries = self.matrix.to(self.dtype)[self.single.index] * self.single.values.to(self.dtype).unsqueeze(2)
        return entries if self.scale is None else entries * self.scale.to(self.dtype).unsqueeze(1)

    def pulled(self, step: Matrix) -> Tensor:
        """Through another map of few outputs: (images, generators, outputs)."""
        columns = step.to(self.dtype).unsqueeze(1) * self._factor.to(self.dtype).T.unsqueeze(2)
        back = self.matrix.to(self.dtype, sparse=True) @ columns.flatten(1)
        back = back.reshape(len(back), len(self.size), -1).transpose(0, 1)[:, self.single.index]
        return back * self.single.values.to(self.dtype).unsqueeze(2)


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
        norms: how far those of each name do.
    """

    centre: Tensor
    generators: dict[int, Generators]
    slack: Tensor
    reach: Tensor
    norms: dict[int, Tensor]

    @property
    def mapped(self) -> list[Mapped]:
        """The generators behind maps."""
        return [one for one in self.generators.values() if isinstance(one, Mapped)]

    @property
    def rough(self) -> Tensor:
        """At least the slack, with what is lost where generators behind maps are written out, (images, size)."""
        lost = self.slack
        for one in self.mapped:
            lost = lost + 4 * torch.finfo(one.dtype).eps * self.reach + one.floor
        return lost * (1 + 8 * _U)

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
        maps: of the graph.
        dtype: of generators that are written out.
        factors: of all products that were walked over.
        inputs: the generators of the input.
        count: how many generators there are so far.
    """

    ball: bool
    most: int
    maps: Maps
    dtype: torch.dtype
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
        moved: dict[int, Generators] = {}
        # The magnitudes of what is multiplied, each by the roundings and the precision that it meets.
        size = 2 * (step.terms + 8) * _U * (value.centre.abs() + value.slack + self._sum(value.reach))
        absolute, growth = self.maps.absolute(step)
        floor = 1 + self._sum(value.reach).amax(1, keepdim=True)  # what underflows
        floor = floor * (16.0 * step.terms * (self.count + 2) * self._least * growth)
        for name, one in value.generators.items():
            moved[name] = self._moved(step, one)
            if isinstance(moved[name], Tensor):
                terms = step.terms + 4
                if isinstance(one, Mapped):
                    terms, floor = terms + one.matrix.terms, floor + one.floor * growth
                size = size + 0.51 * terms * self._unit * self._sum(value.norms[name])
        off, slack = absolute.linear(torch.cat([size, value.slack])).chunk(2)
        slack = slack * (1 + 2 * (step.terms + 8) * _U) + off + 4 * _U * step.constant.abs()
        return self._made(step(value.centre), moved, slack + floor)

    def _moved(self, step: Affine, generators: Generators) -> Generators:
        if isinstance(generators, Single):
            if isinstance(step, Scale):
                return Single(generators.index, generators.values * step.weight[generators.index])
            matrix = self.maps.matrix(step)
            if matrix is not None:
                made = self._mapped(generators, matrix)
                return made.written() if self.ball else made
            generators = generators.written(step.inputs, self.dtype)
        if isinstance(generators, Mapped):
            if generators.scale is None:
                after = generators.matrix.then(step)
                if after is not None:
                    return self._mapped(generators.single, after)
            elif step.outputs < len(generators.single.index):
                matrix = self.maps.matrix(step)
                if matrix is not None:
                    return generators.pulled(matrix)
            generators = generators.written()
        cast = self.maps.cast(step, self.dtype)
        return cast.linear(generators.flatten(0, 1)).reshape(*generators.shape[:2], -1)

    def _mapped(self, single: Single, matrix: Matrix) -> Mapped:
        rows = matrix.absolute if len(single.index) == len(matrix.absolute) else matrix.absolute[single.index]
        size = single.values.abs() @ rows * (1 + (len(single.index) + 8) * _U) + _LEAST
        return Mapped(single, matrix, None, size, self.dtype)

    def written(self, value: Zonotope) -> Zonotope:
        """The value with all maps carried out."""
        if not value.mapped:
            return value
        found: dict[int, Generators] = {}
        for name, one in value.generators.items():
            found[name] = one.written() if isinstance(one, Mapped) else one
        return self._made(value.centre, found, value.rough)

    def sum(self, values: Sequence[Zonotope]) -> Zonotope:
        """Centres, generators of one name, and slacks are added."""
        values = [self.written(value) for value in values]
        middle = reduce(torch.add, [value.centre for value in values])
        found: dict[int, Generators] = {}
        for name, parts in self._aligned(values):
            found[name] = reduce(_plus, [part for part in parts if part is not None])
        size = sum(
            (_U * (value.centre.abs() + value.slack) + self._unit * self._sum(value.reach) for value in values),
            self._least * 8.0 * (self.count + 2),
        )
        slack = reduce(torch.add, [value.slack for value in values])
        return self._made(middle, found, slack + 2 * len(values) * size)

    def product(self, left: Zonotope, right: Zonotope) -> Zonotope:
        """`c_a c_b + middle`, `c_a B + c_b A` and a new generator for each entry's remainder."""
        if left is not right:
            left, right = self.written(left), self.written(right)
        a, b = left.centre, right.centre
        found: dict[int, Generators] = {}
        whole = left.reach * right.reach * (1 + 4 * _U) + _LEAST
        floor = 16.0 * (self.count + 2) * self._least  # what underflows, of numbers of size 1
        if left is right:
            high, low = whole, torch.zeros_like(whole)
            found = {name: _times(given, 2 * a) for name, given in left.generators.items()}
        else:
            # The best w is the ratio of what p and q would be without cancelling; any is sound.
            w = ((right.reach + _LEAST) / (left.reach + _LEAST)).sqrt().clamp(2.0**-60, 2.0**60)
            w = w.to(self.dtype).double()
            plus, minus = torch.zeros_like(w), torch.zeros_like(w)
            for name, (one, other) in self._aligned([left, right]):
                if one is None or other is None:
                    # Nothing cancels: both norms are the one that there is.
                    if one is not None:
                        norm, found[name] = left.norms[name] * w, _times(one, b)
                    elif other is not None:
                        norm, found[name] = right.norms[name], _times(other, a)
                    plus, minus = plus + norm, minus + norm
                else:
                    scaled = _times(one, w)
                    plus = plus + self._norms(name, _plus(scaled, other), w)
                    minus = minus + self._norms(name, _plus(scaled, other, -1.0), w)
                    found[name] = _plus(_times(one, b), _times(other, a))
            off = (4 * self._unit + floor) * (w * left.reach + right.reach) + floor * (1 + w)
            high, low = (
                torch.minimum((norms * (1 + self._share) + off).square() / (4 * w) * (1 + 8 * _U) + _LEAST, whole)
                for norms in (plus, minus)
            )
        middle, radius = (high - low) / 2, (high + low) / 2 * (1 + 4 * _U) + _LEAST
        slack = left.slack * (b.abs() + right.reach + right.slack) + right.slack * (a.abs() + left.reach)
        one, other = self._sum(left.reach), self._sum(right.reach)
        size = (a.abs() + one) * (b.abs() + other) + middle.abs() + slack
        slack = slack + 8 * _U * size + 8 * self._unit * (a.abs() * other + b.abs() * one)
        slack = slack + floor * (1 + a.abs() + one) * (1 + b.abs() + other) + _LEAST * (1 + self.count)
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
    def _unit(self) -> float:
        """Twice the unit roundoff of generators that are written out."""
        return torch.finfo(self.dtype).eps

    @property
    def _least(self) -> float:
        return torch.finfo(self.dtype).smallest_normal

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
            size = generators.size
            return size if generators.scale is None else generators.scale.abs() * size * (1 + 4 * _U)
        if self.ball and name == INPUT:
            return length(generators.double(), 1)
        parts = [part.abs().sum(1).double() for part in torch.split(generators, _SUMMED, 1)]
        return reduce(torch.add, parts) * (1 + (_SUMMED + 8) * self._unit)

    def _made(self, middle: Tensor, generators: dict[int, Generators], slack: Tensor) -> Zonotope:
        norms = {name: self._norms(name, one, middle) for name, one in generators.items()}
        reach = reduce(torch.add, norms.values(), torch.zeros_like(middle))
        return Zonotope(middle, generators, slack * (1 + 8 * _U), reach * (1 + self._share), norms)

    def _aligned(self, values: Sequence[Zonotope]) -> Iterator[tuple[int, list[Generators | None]]]:
        """The generators of each name in all values, all written out unless all are single."""
        for name in sorted({name for value in values for name in value.generators}):
            parts = [value.generators.get(name) for value in values]
            if any(isinstance(part, Tensor) for part in parts):
                size = values[0].centre.shape[1]
                parts = [part.written(size, self.dtype) if isinstance(part, Single) else part for part in parts]
            yield name, parts


def _times(generators: Generators, factor: Tensor) -> Generators:
    """Each entry times a factor, (images, size)."""
    if isinstance(generators, Single):
        return Single(generators.index, generators.values * factor[:, generators.index])
    if isinstance(generators, Mapped):
        return replace(generators, scale=factor if generators.scale is None else generators.scale * factor)
    return generators * factor.to(generators.dtype).unsqueeze(1)


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

    def away(self, form: Tensor, images: Tensor) -> Tensor:
        """The largest value of a form of the input's generators, (rows, generators), rounded up by `least_linear`."""
        if self.ball is None:
            return form.abs().sum(1)
        low, high = (side[images][:, self.inputs.index] for side in self.ball[2])
        return least_linear(form, (low, high))[0]


def walked(boxes: GraphBoxes, most: int, maps: Maps, ball: Ball | None = None) -> Walked:
    """The zonotopes of some images: in float32, and in float64 where that was too coarse.

    Args:
        boxes: intervals of all nodes.
        most: generators that there may be.
        maps: of the graph.
        ball: in the place of the inputs' boxes.
    """
    if maps.single and torch.get_float32_matmul_precision() == "highest":
        with torch.autocast("cpu", enabled=False):
            found = walked_in(torch.float32, boxes, most, maps, ball)
        sides = [side for one in found.factors for side in (one.left, one.right)]
        # Where generators are merged, that is what the slack is from.
        merged = generators_of(maps.graph)[0] > most
        if merged or all(bool((side.slack.sum(1) <= _COARSE * side.reach.sum(1)).all()) for side in sides):
            return found
    return walked_in(torch.float64, boxes, most, maps, ball)


def walked_in(dtype: torch.dtype, boxes: GraphBoxes, most: int, maps: Maps, ball: Ball | None = None) -> Walked:
    """The zonotopes of some images, with generators of that precision."""
    algebra, graph = Zonotopes(ball is not None, most, maps, dtype), boxes.graph
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


def generators_of(graph: Graph) -> tuple[int, int]:
    """How many generators a walk of the graph has, and the numbers that each of them takes in what is kept."""
    products = [number for number, node in enumerate(graph.nodes) if isinstance(node, Product)]
    kept = sum(len(set(graph.nodes[number].sources)) * graph.sizes[number] for number in products)
    applied = [graph.sizes[n] for n, node in enumerate(graph.nodes) if isinstance(node, Applied)]
    count = graph.features + sum(graph.sizes[number] for number in products)
    return count, kept + 3 * max((*applied, *graph.sizes))
