"""Certificates of networks that are no chain, stage by stage, each only for what those before it left open.

    clean         images that are classified otherwise as they are
    interval      intervals of all values
    backward      planes through the products, from the output to the input
    attack        gradient steps towards the strongest rival
    corners       gradient steps from where those planes are least
    alpha         the best mixtures of those planes; not where intervals have exploded
    generators    affine arithmetic, every product's remainder a generator of its own
    last          the second-order terms of the last products together
    attack        gradient steps towards each rival that is open
    layers        those of all products, a diagonal for each
    search        attacks from where the last two are least, and from random corners
    semidefinite  one diagonal for all, which moves
    branch        cells of the box, where few inputs move: see `search.cells`

Intervals explode with depth where a network was trained plainly: there the stages from generators on decide. Where it
was trained by intervals, those before do, and what follows generators is left out. Images are taken in chunks that fit
the memory, and rivals all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polybound.certificates.bounds.balls import nearest
from polybound.certificates.bounds.graphs import (
    Ball,
    GraphBoxes,
    backward_bounds,
    interval_bounds,
    optimised_bounds,
    through_planes,
)
from polybound.certificates.bounds.joint import Backward, Expansion, last_products, layered, semidefinite
from polybound.certificates.bounds.zonotopes import Maps, Walked, generators_of, walked
from polybound.certificates.input_sets import Balls, InputSet
from polybound.certificates.network import PreparedNetwork
from polybound.errors import ArgumentError, PolyboundError
from polybound.models import Applied, DeepNetwork, Factors, Graph, PolynomialNetwork, Product, polynomial

GRAPH_METHODS = {
    "auto": ("clean", "interval", "backward", "attack", "corners", "alpha", "generators"),
    "first": ("clean", "interval", "backward", "corners", "alpha", "attack"),
    "crown": ("clean", "interval", "backward"),
    "interval": ("clean", "interval"),
}
"""The methods of `certify` that networks of this kind have, and their stages; generators stand for what follows."""

_MEMORY = 2**27
"""Numbers that the boxes of a chunk of images may have."""

_FEW = (2.0, 1.0, 0.5)
_LEFT = 0.1
"""Steps of the first attack on all images, and the share of the margin that it must leave for the whole to be tried."""

_STEPS = (2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.12, 0.12, 0.06, 0.06, 0.03, 0.03)

_SHORT = _STEPS[6:]
"""Steps from where an attack should not go far."""


class PreparedGraph:
    """A graph in float64, with what the checks of inputs ask of a network.

    Args:
        graph: of a network; its weights are copied.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph.transform(lambda t: t.detach().double().clone())
        self.shape, self.features, self.classes = graph.shape, graph.features, graph.classes
        tensors = [node.map.constant for node in self.graph.nodes if isinstance(node, Applied)]
        if any(tensor.device.type != "cpu" for tensor in tensors):
            raise PolyboundError("certificates are computed on the CPU, whose float64 is known; use model.cpu()")
        weights = torch.cat([self.graph(torch.zeros(1, self.features, dtype=torch.float64)).flatten(), *tensors])
        if not bool(torch.isfinite(weights).all()):
            raise PolyboundError("the network's weights, or its outputs at zero, are not all finite")
        # What zonotopes take: all generators, of as many images as the memory holds, or the largest generators of one.
        count, width = generators_of(self.graph)
        self.generators = max(1, min(count, _MEMORY // width))
        self.group = max(1, _MEMORY // (self.generators * width))
        self.maps = Maps(self.graph)
        # What gradient steps go through: they prove nothing.
        self.dtype = torch.float32 if self.maps.single else torch.float64
        self.quick = self.graph.transform(lambda t: t.to(self.dtype) if t.is_floating_point() else t)

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether this is the shape of one input: the network's own, or flat."""
        return tuple(shape) in (tuple(self.shape), (self.features,))

    @property
    def images(self) -> int:
        """Images whose boxes, and forms against all rivals, fit the memory."""
        return max(1, _MEMORY // (sum(self.graph.sizes) * max(1, self.classes - 1)))


def prepared(
    model: nn.Module | Factors | PreparedNetwork | PreparedGraph, shape: Sequence[int] | None = None
) -> PreparedNetwork | PreparedGraph:
    """What certificates work on: the factors of a chain of products, or the graph of any other network.

    Args:
        model: a polynomial network; or any module that is one, then for inputs of this shape.
        shape: of one input.
    """
    if isinstance(model, PreparedNetwork | PreparedGraph):
        return model
    if isinstance(model, Factors):
        return PreparedNetwork(model)
    network: PolynomialNetwork = polynomial(model, shape)
    if not isinstance(network, DeepNetwork):
        return PreparedNetwork(network)
    graph = network.graph()
    chain = graph.chain()
    if chain is None:
        return PreparedGraph(graph)
    made = PreparedNetwork(chain)
    made.shape = network.shape
    return made


Step = dict[str, Any]
"""A step of a proof, as files have it: see `polybound.certificates.proofs`."""


@dataclass(frozen=True, eq=False)
class GraphMargins:
    """What the stages found, image by image.

    Attributes:
        bound: proven lower bounds of `f_label - f_rival`, (images, classes); infinite for the label itself.
        counterexample: by image, a point and the rival that it is classified as at least as strongly.
        stage: what decided each image, or "".
        spent: seconds of each image, its share of what was done together.
        cost: seconds of each stage.
        proofs: by image and rival, what proves the bound, as files have it; None if proofs are not kept.
    """

    bound: Tensor
    counterexample: dict[int, tuple[Tensor, int]]
    stage: list[str]
    spent: Tensor
    cost: dict[str, float]
    proofs: dict[tuple[int, int], Step] | None = None

    @property
    def keep(self) -> bool:
        """Whether proofs are kept."""
        return self.proofs is not None


def graph_margins(
    net: PreparedGraph,
    inputs: InputSet,
    labels: Tensor,
    method: str,
    keep: bool = False,
) -> GraphMargins:
    """Bound the margins of all images, chunk by chunk; and keep what proves them."""
    if method not in GRAPH_METHODS:
        known = ", ".join(GRAPH_METHODS)
        raise ArgumentError("method", f"{method!r} is for chains of products; deep networks have {known}")
    total = len(labels)
    bound = torch.full((total, net.classes), -torch.inf, dtype=torch.float64)
    found = GraphMargins(bound, {}, [""] * total, torch.zeros(total), {}, {} if keep else None)
    found.bound[torch.arange(total), labels] = torch.inf
    for start in range(0, total, net.images):
        some = torch.arange(start, min(start + net.images, total))
        _Chunk(net, inputs, labels, some, found).run(GRAPH_METHODS[method])
    return found


_NEAR = 0.25
"""Alpha is tried where the bound so far lies below zero by at most this share of the margin at the input."""

_BOXED = 0.5
"""The share at most in which intervals of some rival lie below zero where a network was trained by them."""

_FAR = 100.0
"""Joint bounds are tried where generators' lie below zero by at most this many margins."""

_WRITTEN = 6000
"""Generators up to which the semidefinite bound writes out its matrix."""

_STARTS = 6
"""Random corners that the second search for counterexamples starts from."""


def _places(images: Tensor, some: Tensor) -> Tensor:
    """Where some images stand among images."""
    place = {image: row for row, image in enumerate(images.tolist())}
    return torch.tensor([place[image] for image in some.tolist()], dtype=torch.long)


class _Chunk:
    """Some images, and the stages that are tried on them one after another."""

    def __init__(self, net: PreparedGraph, inputs: InputSet, labels: Tensor, some: Tensor, found: GraphMargins) -> None:
        self.net, self.inputs, self.labels, self.some, self.found = net, inputs, labels, some, found
        self.balls = inputs if isinstance(inputs, Balls) else None

    def run(self, stages: Sequence[str]) -> None:
        """Take the stages, as long as something is open."""
        for name in stages:
            if name != "generators":
                self.take(name, getattr(self, f"by_{name}"))
                continue
            images = torch.unique(self.open()[0])
            for group in torch.split(images, self.net.group) if len(images) else ():
                with torch.no_grad():
                    _Group(self, group, self.values.of(_places(self.some, group))).run()

    def take(self, name: str, stage: Callable[[Tensor, Tensor], None], only: Tensor | None = None) -> None:
        """One stage, for what is open."""
        images, rivals = self.open(only)
        if not len(images):
            return
        begun = time.perf_counter()
        stage(images, rivals)
        taken = time.perf_counter() - begun
        self.found.cost[name] = self.found.cost.get(name, 0.0) + taken
        looked = torch.unique(images)
        self.found.spent[looked] += taken / len(looked)
        for image in looked.tolist():
            if image in self.found.counterexample or bool((self.found.bound[image] > 0).all()):
                self.found.stage[image] = name

    def open(self, only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The images and rivals that nothing is known of: the numbers of both, side by side."""
        some = self.some if only is None else only
        left = self.found.bound[some] <= 0
        left[[image in self.found.counterexample for image in some.tolist()]] = False
        rows, rivals = left.nonzero(as_tuple=True)
        return some[rows], rivals

    def forms(self, images: Tensor, rivals: Tensor) -> Tensor:
        """`f_label - f_rival` as forms of the output, a row a pair."""
        forms = torch.zeros(len(images), self.net.classes, dtype=torch.float64)
        rows = torch.arange(len(images))
        forms[rows, self.labels[images]] = 1.0
        forms[rows, rivals] -= 1.0
        return forms

    def margins(self, images: Tensor, rivals: Tensor) -> Tensor:
        """About `f_label - f_rival` at the inputs."""
        with torch.no_grad():
            logits = self.net.quick(self.inputs.x[images].to(self.net.dtype)).double()
        return logits.gather(1, self.labels[images].unsqueeze(1)).squeeze(1) - logits.gather(
            1, rivals.unsqueeze(1)
        ).squeeze(1)

    def by_clean(self, *_: Tensor) -> None:
        """Images that are classified otherwise as they are."""
        self.confirm(self.inputs.x[self.some], self.some)

    def confirm(self, points: Tensor, images: Tensor) -> None:
        """Keep the points, one an image, at which some rival provably is at least as strong as the label."""
        with torch.no_grad():
            logits = self.net.graph(points)
        margins = logits.gather(1, self.labels[images].unsqueeze(1)) - logits
        margins[torch.arange(len(images)), self.labels[images]] = torch.inf
        least, rivals = margins.min(1)
        likely = (least <= 0).nonzero().squeeze(1)
        if not len(likely):
            return
        # Of a point, intervals are as wide as rounding is: the form of the other sign is bounded from below.
        boxes = GraphBoxes.over(self.net.graph, points[likely], points[likely])
        proven = interval_bounds(boxes, -self.forms(images[likely], rivals[likely])) >= 0
        for row in likely[proven].tolist():
            image, point = int(images[row]), points[row]
            if self.balls is None or self.balls.holds(image, point):
                self.found.counterexample.setdefault(image, (point, int(rivals[row])))

    def by_attack(self, images: Tensor, _: Tensor) -> None:
        """Gradient steps towards the strongest rival; many only where a few come near."""
        images = torch.unique(images)
        left = self.descend(images, None, steps=_FEW)
        self.descend(images[left < _LEFT], None)

    def descend(
        self, images: Tensor, targets: Tensor | None, start: Tensor | None = None, steps: Sequence[float] = _STEPS
    ) -> Tensor:
        """Gradient steps towards targets, or the strongest rival, from the inputs or given points.

        Returns the share that is left of the margins, (images,).
        """
        if not len(images):
            return torch.zeros(0)
        labels = self.labels[images].unsqueeze(1)

        def margin(logits: Tensor) -> Tensor:
            if targets is None:
                rivals = logits.scatter(1, labels, -torch.inf).amax(1)
            else:
                rivals = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
            return logits.gather(1, labels).squeeze(1) - rivals

        first, best, where = _descended(self.net, self.inputs, images, margin, start, steps)
        self.confirm(where, images)
        return best / first

    def search(self, images: Tensor, rivals: Tensor, start: Tensor) -> None:
        """Gradient steps from points, one for each pair, and from random corners."""
        lower, upper = (side[images] for side in self.inputs.inner)
        self.descend(images, rivals, torch.minimum(torch.maximum(start, lower), upper))
        images, rivals = self.open(torch.unique(images))
        if len(images):
            images, rivals = images.repeat(_STARTS), rivals.repeat(_STARTS)
            lower, upper = (side[images] for side in self.inputs.inner)
            coin = torch.rand(lower.shape, generator=torch.Generator().manual_seed(0)) < 0.5
            self.descend(images, rivals, torch.where(coin, lower, upper))

    def by_interval(self, images: Tensor, rivals: Tensor) -> None:
        """Intervals of all values, merged with the margin in the last map."""
        self.values = GraphBoxes.over(self.net.graph, *(side[self.some] for side in self.inputs.outer))
        self._raise(
            images, rivals, lambda boxes, forms, _: (interval_bounds(boxes, forms), lambda _: {"by": "interval"})
        )

    def by_backward(self, images: Tensor, rivals: Tensor) -> None:
        """Planes through the products, halfway between the two of each."""
        near = self.found.bound[images, rivals] > -_BOXED * self.margins(images, rivals)
        self.boxed = torch.unique(images[near])
        self._raise(images, rivals, partial(_planes, self.inputs))

    def by_alpha(self, images: Tensor, rivals: Tensor) -> None:
        """The best planes that some gradient steps find; not for images with a rival far below zero.

        Where intervals came near, steps raise bounds by more than elsewhere: two margins are not far there.
        """
        share = torch.where(torch.isin(images, self.boxed), 2.0, _NEAR)
        far = self.found.bound[images, rivals] <= -share * self.margins(images, rivals)
        near = ~torch.isin(images, images[far])
        self._raise(images[near], rivals[near], partial(_best_planes, self.inputs))

    def by_corners(self, images: Tensor, rivals: Tensor) -> None:
        """Gradient steps from where planes are least.

        A network that was trained by intervals is flat around its inputs: steps from there see little.
        """
        near = self.found.bound[images, rivals] > -_BOXED * self.margins(images, rivals)
        near &= torch.isin(images, self.boxed)
        images, rivals = images[near], rivals[near]
        if not len(images):
            return
        rows = _places(self.some, images)
        lowest = through_planes(self.values.of(rows), self.forms(images, rivals), 0.5)
        self.descend(images, None, self.inputs.inside(images, lowest.lowest(_limits(self.inputs, images))), _SHORT)

    def _raise(self, images: Tensor, rivals: Tensor, bound: Callable[[GraphBoxes, Tensor, Tensor], Proven]) -> None:
        """Raise the bounds of pairs of images and rivals, some at a time."""
        rows = _places(self.some, images)
        size = max(1, _MEMORY // sum(self.net.graph.sizes))
        for start in range(0, len(images), size):
            part = slice(start, start + size)
            boxes, forms = self.values.of(rows[part]), self.forms(images[part], rivals[part])
            self.lift(images[part], rivals[part], *bound(boxes, forms, images[part]))

    def lift(self, images: Tensor, rivals: Tensor, bound: Tensor, written: Callable[[int], Step]) -> None:
        """Keep the larger bounds; of those that become positive, also what proves them, which `written` says by row."""
        if self.found.proofs is not None:
            decided = (self.found.bound[images, rivals] <= 0) & (bound > 0)
            for row in decided.nonzero().flatten().tolist():
                self.found.proofs[int(images[row]), int(rivals[row])] = written(row)
        self.found.bound[images, rivals] = torch.maximum(self.found.bound[images, rivals], bound)


class _Group:
    """Images of a chunk whose zonotopes fit the memory together, and the stages that need them."""

    walked: Walked
    backward: Backward
    pairs: tuple[Tensor, Tensor]
    """The images and rivals of its forms."""

    raised: Tensor
    """Images of which generators raised the bound of some rival, and left none far below zero."""

    joint: tuple[Expansion, Tensor, Tensor, Tensor]
    """Of the image that is being bounded: its terms, the diagonals and where tangents touch, and the rivals."""

    def __init__(self, chunk: _Chunk, images: Tensor, values: GraphBoxes) -> None:
        self.chunk, self.images, self.values = chunk, images, values
        self.last = last_products(values.graph)

    def run(self) -> None:
        """Generators for all images, and then, one at a time, what bounds products together: where they raised a bound.

        Where they did not, the network was trained by intervals, and planes have found what there is to be found. Where
        a bound is still far below zero, no later stage would raise it far enough.
        """
        self.chunk.take("generators", self.generators, self.images)
        for image in torch.split(self.raised, 1):
            self.chunk.take("last", partial(self.layers, self.last), image)
            self.chunk.take("attack", self.attack, image)
            if not all(self.last):
                self.chunk.take("layers", partial(self.layers, [True] * len(self.last)), image)
            self.chunk.take("search", self.search, image)
            if self.walked.count <= _WRITTEN:
                self.chunk.take("semidefinite", self.semidefinite, image)

    def generators(self, images: Tensor, rivals: Tensor) -> None:
        """Affine arithmetic."""
        net, inputs = self.chunk.net, self.chunk.inputs
        self.walked = walked(self.values, net.generators, net.maps, _limits(inputs, self.images))
        rows = _places(self.images, images)
        self.backward, self.pairs = Backward.over(self.walked, rows, self.chunk.forms(images, rivals)), (images, rivals)
        bound = self.backward.expansion(torch.arange(len(rows)), [False] * len(self.last)).bound
        raised = bound > self.chunk.found.bound[images, rivals]
        far = images[bound < -_FAR * self.chunk.margins(images, rivals)]
        self.raised = torch.unique(images[raised & ~torch.isin(images, far)])
        self.chunk.lift(images, rivals, bound, lambda _: {"by": "generators"})

    def attack(self, images: Tensor, rivals: Tensor) -> None:
        """Gradient steps towards each rival that is open."""
        left = self.chunk.descend(images, rivals, steps=_FEW) < _LEFT
        if int(images[0]) not in self.chunk.found.counterexample:
            self.chunk.descend(images[left], rivals[left])

    def layers(self, joint: list[bool], images: Tensor, rivals: Tensor) -> None:
        """The terms of some products together."""
        some = (self.pairs[0] == images[0]) & torch.isin(self.pairs[1], rivals)
        given = self.backward.expansion(some.nonzero().squeeze(1), joint)
        bound, d, touch = layered(given)
        self.chunk.lift(images, rivals, bound, lambda row: _layers_step(self.walked, joint, touch[row]))
        self.joint = given, d, touch, rivals

    def _open(self, rivals: Tensor) -> Tensor:
        return torch.isin(self.joint[3], rivals).nonzero().squeeze(1)

    def search(self, images: Tensor, rivals: Tensor) -> None:
        """Attacks from where the bounds are least."""
        given, _, touch, _ = self.joint
        x = self.walked.start.centre[given.images[0]].repeat(len(images), 1)
        inputs = self.walked.inputs
        x[:, inputs.index] += inputs.values[given.images[0]] * touch[self._open(rivals), : given.inputs]
        self.chunk.search(images, rivals, x)

    def semidefinite(self, images: Tensor, rivals: Tensor) -> None:
        """The terms of all products together, with the diagonal that is best for all; until a rival stays open."""
        given, d, touch, _ = self.joint
        rows, bounds = self._open(rivals), self.chunk.found.bound[images, rivals]
        for index in bounds.argsort().tolist():
            row = rows[index : index + 1]
            bound, diagonal, v = semidefinite(given.rows(row), d[row], touch[row])
            step = partial(_whole_step, self.walked, diagonal[0], v[0])
            self.chunk.lift(images[:1], rivals[index : index + 1], torch.tensor([bound], dtype=torch.float64), step)
            if not bound > 0:
                break


# What proves a bound, as files have it. Nothing of it has to be exact: any numbers prove some bound.

Proven = tuple[Tensor, Callable[[int], Step]]
"""Bounds, and what proves each of them."""


def _intervals(boxes: GraphBoxes, forms: Tensor, _: Tensor) -> Proven:
    return interval_bounds(boxes, forms), lambda _: {"by": "interval"}


def _planes(inputs: InputSet, boxes: GraphBoxes, forms: Tensor, images: Tensor) -> Proven:
    count = sum(isinstance(node, Product) for node in boxes.graph.nodes)
    bound = backward_bounds(boxes, forms, ball=_limits(inputs, images))
    return bound, lambda _: {"by": "planes", "planes": [0.5] * count}


def _best_planes(inputs: InputSet, boxes: GraphBoxes, forms: Tensor, images: Tensor) -> Proven:
    bound, planes = optimised_bounds(boxes, forms, ball=_limits(inputs, images))
    return bound, lambda row: {"by": "planes", "planes": [_rounded(one[row], 3) for one in reversed(planes)]}


def _layers_step(found: Walked, joint: Sequence[bool], v: Tensor) -> Step:
    """Interval arithmetic's diagonal is enough; the check looks for a multiple of it that is as well."""
    scale = [1.0 if kept else None for kept in joint]
    return {"by": "layers", "scale": scale, "v": _blocks(found, v, partial(_rounded, digits=4))}


def _whole_step(found: Walked, d: Tensor, v: Tensor, _: int) -> Step:
    up = _blocks(found, d * (1 + 1e-4), lambda part: [float(f"{value:.5g}") for value in part.tolist()])
    return {"by": "whole", "d": up, "v": _blocks(found, v, partial(_rounded, digits=4))}


def _rounded(values: Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]


def _blocks(found: Walked, values: Tensor, shown: Callable[[Tensor], list[float]]) -> list[list[float] | None]:
    """Numbers of the generators, for every entry of the input and of each product; None where all are zero."""
    blocks: list[list[float] | None] = []
    sizes = [(found.start.centre.shape[1], found.inputs.index)]
    for size, index in sizes + [(one.middle.shape[1], one.index) for one in found.factors]:
        whole = values.new_zeros(size)
        part, values = values[: len(index)], values[len(index) :]
        whole[index[: len(part)]] = part
        blocks.append(shown(whole) if bool(whole.any()) else None)
    return blocks


def graph_ranges(
    net: PreparedGraph,
    inputs: InputSet,
    forms: Tensor,
    constants: Tensor,
    method: str,
    proofs: dict[tuple[int, int], Step] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Proven and attained least values of linear forms of the outputs.

    Args:
        net: the network.
        inputs: boxes or balls.
        forms: (rows, classes).
        constants: (rows,).
        method: how many of the stages of bounds to take, as in `GRAPH_METHODS`.
        proofs: where what proves the bounds goes, by image and row.

    Returns:
        Proven lower bounds (images, rows), values that points of the sets attain, and those points.
    """
    images, rows = len(inputs), len(forms)
    bound = torch.full((images, rows), -torch.inf, dtype=torch.float64)
    value = torch.full_like(bound, torch.inf)
    where = inputs.x.unsqueeze(1).expand(-1, rows, -1).clone()
    size = max(1, _MEMORY // (sum(net.graph.sizes) * rows))
    for start in range(0, images, size):
        some = torch.arange(start, min(start + size, images))
        of = some.repeat_interleave(rows)
        w, c = forms.repeat(len(some), 1), constants.repeat(len(some))
        values = GraphBoxes.over(net.graph, *(side[some] for side in inputs.outer))
        boxes = values.of(torch.arange(len(some)).repeat_interleave(rows))
        found = torch.full((len(w),), -torch.inf, dtype=torch.float64)

        def lift(first: int, new: Tensor, written: Callable[[int], Step], found: Tensor = found) -> None:
            part = found[first : first + len(new)]
            if proofs is not None:
                for row in (new > part).nonzero().flatten().tolist():
                    proofs[divmod(start * rows + first + row, rows)] = written(row)  # noqa: B023  # called at once
            torch.maximum(part, new, out=part)

        lift(0, *_intervals(boxes, w, of))
        if "backward" in GRAPH_METHODS[method]:
            lift(0, *_planes(inputs, boxes, w, of))
        if "alpha" in GRAPH_METHODS[method]:
            lift(0, *_best_planes(inputs, boxes, w, of))
        if "generators" in GRAPH_METHODS[method]:
            for group in torch.split(torch.arange(len(some)), net.group):
                tight = walked(values.of(group), net.generators, net.maps, _limits(inputs, some[group]))
                pairs, joint = torch.arange(len(group)).repeat_interleave(rows), [True] * len(tight.factors)
                back = Backward.over(tight, pairs, forms.repeat(len(group), 1))
                for at, every in zip(group.tolist(), torch.split(torch.arange(len(pairs)), rows), strict=True):
                    single = back.expansion(every, [False] * len(tight.factors)).bound
                    lift(at * rows, single, lambda _: {"by": "generators"})
                    together, _, v = layered(back.expansion(every, joint))
                    step = partial(_layers_step, tight, joint)
                    lift(at * rows, together, lambda row: step(v[row]))  # noqa: B023  # called at once
        # The sum with the constant is rounded once.
        bound[some] = torch.nextafter(found + c, torch.full_like(c, -torch.inf)).reshape(-1, rows)
        points = inputs.inside(of, _descended(net, inputs, of, partial(_total, w))[2])
        reached = -interval_bounds(GraphBoxes.over(net.graph, points, points), -w)
        value[some] = torch.nextafter(reached + c, torch.full_like(c, torch.inf)).reshape(-1, rows)
        where[some] = points.reshape(len(some), rows, -1)
    return bound, value, where


def _total(forms: Tensor, logits: Tensor) -> Tensor:
    return (forms.to(logits.dtype) * logits).sum(1)


def _limits(inputs: InputSet, images: Tensor) -> Ball | None:
    """The balls of some images as bounds take them; None for boxes."""
    return (inputs.x[images], inputs.r[images], inputs.limits(images)) if isinstance(inputs, Balls) else None


def _descended(
    net: PreparedGraph,
    inputs: InputSet,
    images: Tensor,
    objective: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    steps: Sequence[float] = _STEPS,
) -> tuple[Tensor, Tensor, Tensor]:
    """The first and the least objective of the outputs that gradient steps within the sets see, and where that is."""
    lower, upper = (side[images] for side in inputs.inner)
    radius, x = (upper - lower) / 2, inputs.x[images] if start is None else start
    best, where, first = torch.full((len(images),), torch.inf, dtype=net.dtype), x, torch.zeros(0)
    for step in (*steps, 0.0):
        leaf = x.to(net.dtype, copy=True).requires_grad_()
        with torch.enable_grad():
            value = objective(net.quick(leaf))
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        first = first if len(first) else value.detach()
        slope, better = slope.double(), value.detach() < best
        best = torch.where(better, value.detach(), best)
        where = torch.where(better.unsqueeze(1), x, where)
        if isinstance(inputs, Balls):
            slope = slope * inputs.r[images]
            u = inputs.unit(images, x) - step * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
            x = inputs.point(images, nearest(u, inputs.limits(images)) * (1 - 2.0**-30))
            x = torch.minimum(torch.maximum(x, lower), upper)
        else:
            x = torch.minimum(torch.maximum(x - step * radius * slope.sign(), lower), upper)
    return first, best, where
