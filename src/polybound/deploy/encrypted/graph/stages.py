"""A graph as stages: every value is a sum of products of affine forms of earlier values, and of such forms.

    value = sum_i l_i * r_i + rest,      l, r, rest = sum_j M_j value_j + c

Under encryption only values are rescaled: affine maps are composed, as many as stand between two products, and weights
of single entries (normalisation) go into one side of a product. `a * b + a` becomes `a * (b + 1)`. So a value costs
one multiplication's depth, and a skip costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from polybound.deploy.encrypted.graph.entries import Array, Maps, apply
from polybound.errors import PolyboundError
from polybound.models import (
    Affine,
    Applied,
    AveragePool,
    Chain,
    Conv,
    Convolution,
    Graph,
    Identity,
    Input,
    Pool,
    Product,
    Scale,
    Sum,
)


@dataclass(frozen=True, eq=False)
class Term:
    """A linear map of a value; no maps: the value itself."""

    value: int
    maps: Maps


@dataclass(frozen=True, eq=False)
class Form:
    """`sum_j M_j value_j + c`.

    Attributes:
        terms: the maps of values.
        constant: c.
        number: of the graph's node that it is, for messages.
    """

    terms: tuple[Term, ...]
    constant: Array
    number: int

    def mapped(self, step: Affine, number: int) -> Form:
        """The form of a map of this one."""
        maps = step.maps if isinstance(step, Chain) else (step,)
        kept = tuple(part for part in maps if not isinstance(part, Identity))
        constant = step.double()(torch.from_numpy(self.constant).unsqueeze(0)).squeeze(0).numpy()
        return Form(tuple(Term(term.value, (*term.maps, *kept)) for term in self.terms), constant, number)

    def scaled(self, weight: Array | None) -> Form:
        """The form with a weight for each entry; None is one."""
        return self if weight is None else self.mapped(Scale(torch.from_numpy(weight)), self.number)

    def shifted(self, constant: Array | float) -> Form:
        """The form and a constant."""
        return Form(self.terms, self.constant + constant, self.number)


@dataclass(frozen=True, eq=False)
class Value:
    """What is kept encrypted at one place.

    Attributes:
        products: pairs of forms; a square has one form twice.
        rest: what is added to them.
        shape: of the value as an image, where it is known to be one.
        depth: how many products stand between it and the input, at most.
        number: of the graph's node.
    """

    products: tuple[tuple[Form, Form], ...]
    rest: Form
    shape: tuple[int, ...]
    depth: int
    number: int

    @property
    def forms(self) -> list[Form]:
        """All forms, each once."""
        found = [form for pair in self.products for form in pair]
        return list({id(form): form for form in (*found, self.rest)}.values())


@dataclass(frozen=True, eq=False)
class Stages:
    """A network as stages.

    Attributes:
        values: the input first.
        output: the logits.
        depth: the number of products in a row.
        graph: what it was made of.
    """

    values: tuple[Value, ...]
    output: Form
    depth: int
    graph: Graph = field(repr=False)

    def forms(self, number: int) -> list[Form]:
        """The forms of a value, or at the end of the output."""
        return self.values[number].forms if number < len(self.values) else [self.output]

    def run(self, x: Array, watch: Callable[[Form, Array], None] = lambda *_: None) -> tuple[list[Array], Array]:
        """All values (images, size) and the logits at images (images, features), in float64.

        Args:
            x: the images.
            watch: sees every form and its numbers.
        """
        values: list[Array] = []

        def numbers(form: Form) -> Array:
            total = np.tile(form.constant, (len(x), 1))
            for term in form.terms:
                total = total + apply(term.maps, torch.from_numpy(values[term.value])).numpy()
            watch(form, total)
            return total

        for value in self.values:
            if not value.depth and not value.products:
                values.append(np.asarray(x, dtype=np.float64))
                continue
            known = {id(form): numbers(form) for form in value.forms}
            total = known[id(value.rest)]
            for left, right in value.products:
                total = total + known[id(left)] * known[id(right)]
            values.append(total)
        return values, numbers(self.output)


def shapes_of(graph: Graph) -> list[tuple[int, ...]]:
    """What is known of the shape of every node: (size,) where nothing is."""
    shapes: list[tuple[int, ...]] = []
    for number, node in enumerate(graph.nodes):
        if isinstance(node, Input):
            shapes.append(node.shape)
        elif isinstance(node, Applied):
            shapes.append(_shape_after(node.map, shapes[node.source]))
        else:
            known = [shapes[source] for source in node.sources if len(shapes[source]) > 1]
            shapes.append(known[0] if known else (graph.sizes[number],))
    for number in range(len(shapes) - 1, -1, -1):
        for user in graph.uses[number]:
            if len(shapes[number]) > 1:
                break
            step = graph.nodes[user]
            first = step.map.maps[0] if isinstance(step, Applied) and isinstance(step.map, Chain) else None
            first = step.map if isinstance(step, Applied) and first is None else first
            if isinstance(first, Conv | Pool | Convolution | AveragePool):
                shapes[number] = first.shape
            elif isinstance(step, Sum | Product):
                shapes[number] = shapes[user]
    return shapes


def _shape_after(step: Affine, shape: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(step, Chain):
        for part in step.maps:
            shape = _shape_after(part, shape)
        return shape
    if isinstance(step, Conv | Pool | Convolution | AveragePool):
        return tuple(step.out_shape)
    return shape if isinstance(step, Scale | Identity) else (step.outputs,)


def _weights(step: Affine) -> tuple[Array, Array] | None:
    """The weights and constants of a map that treats every entry alone; None if it does not."""
    parts = step.maps if isinstance(step, Chain) else (step,)
    if not all(isinstance(part, Scale | Identity) for part in parts):
        return None
    weight = step.double().linear(torch.ones(1, step.inputs, dtype=torch.float64)).squeeze(0).numpy()
    return weight, step.double().constant.numpy()


def stages_of(graph: Graph) -> Stages:
    """The stages of a graph.

    Raises:
        PolyboundError: it has several inputs, or weights that are not finite.
    """
    if len(graph.inputs) != 1:
        raise PolyboundError(f"encrypted inference takes one input: this network has {len(graph.inputs)}")
    graph = graph.double()
    for node in graph.nodes:
        if isinstance(node, Applied) and not bool(torch.isfinite(node.map.constant).all()):
            raise PolyboundError(f"the network's weights are not finite ({node.origin or 'a map'})")
    made = _Maker(graph)
    output = made.form(graph.output)
    depth = max((made.values[term.value].depth for term in output.terms), default=0)
    return Stages(tuple(made.values), output, depth, graph)


class _Maker:
    """Walks a graph from its output, and makes a value wherever products are added up."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.shapes = graph, shapes_of(graph)
        self.values = [Value((), Form((), np.zeros(graph.features), 0), graph.shape, 0, 0)]
        self._forms: dict[int, Form] = {}

    def form(self, number: int) -> Form:
        """The form of a node."""
        # Sources stand before what uses them: no recursion deeper than one stage.
        if number not in self._forms:
            self._forms[number] = self._made(number)
        return self._forms[number]

    def _made(self, number: int) -> Form:
        node, size = self.graph.nodes[number], self.graph.sizes[number]
        if isinstance(node, Input):
            return Form((Term(0, ()),), np.zeros(size), number)
        if isinstance(node, Applied) and _weights(node.map) is None:
            return self.form(node.source).mapped(node.map, number)
        constant = np.zeros(size)
        products: list[tuple[Array | None, Product]] = []
        others: list[tuple[Array | None, int]] = []
        open_: list[tuple[Array | None, int, bool]] = [(None, number, True)]
        while open_:
            weight, at, root = open_.pop()
            below = self.graph.nodes[at]
            inside = root or len(self.graph.uses[at]) == 1
            if inside and isinstance(below, Product):
                products.append((weight, below))
            elif inside and isinstance(below, Sum):
                open_ += [(weight, source, False) for source in below.sources]
            elif inside and isinstance(below, Applied) and (entries := _weights(below.map)) is not None:
                constant = constant + (entries[1] if weight is None else weight * entries[1])
                open_.append((entries[0] if weight is None else weight * entries[0], below.source, False))
            else:
                others.append((weight, at))
        pairs = [self._sides(weight, product, others) for weight, product in products]
        forms = [self.form(at).scaled(weight) for weight, at in others]
        constant = constant + sum(form.constant for form in forms)
        rest = Form(tuple(term for form in forms for term in form.terms), constant, number)
        if not pairs:
            return rest
        used = [term.value for pair in pairs for form in pair for term in form.terms]
        used += [term.value for term in rest.terms]
        depth = 1 + max((self.values[value].depth for value in used), default=0)
        self.values.append(Value(tuple(pairs), rest, self.shapes[number], depth, number))
        return Form((Term(len(self.values) - 1, ()),), np.zeros(size), number)

    def _sides(self, weight: Array | None, node: Product, others: list[tuple[Array | None, int]]) -> tuple[Form, Form]:
        """The sides of a product with its weight; `a * b + a` among what is added to it becomes `a * (b + 1)`."""
        left, right = node.left, node.right
        if left == right and weight is None:
            return (self.form(left),) * 2
        if not self.form(left).terms or any(not term.maps for term in self.form(left).terms):
            left, right = right, left  # a map takes the weight for nothing, a value would need one
        shift = 0.0
        for a in (left, right):
            b = right if a == left else left
            for other in others:
                if other[1] == a and np.array_equal(np.asarray(other[0]), np.asarray(weight)) and a != b:
                    others.remove(other)
                    shift, left, right = 1.0, a, b
                    break
            if shift:
                break
        return self.form(left).scaled(weight), self.form(right).shifted(shift)
