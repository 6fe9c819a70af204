"""Any polynomial network as a graph: inputs, affine maps, sums and products, and nothing else.

    Input(shape)    Applied(map, source)    Sum(sources)    Product(left, right)

Nodes are immutable, hold no state, and name their sources by number; every source stands before what uses it. Every
value is a flat vector. What can be said of a network by induction over its nodes is an *algebra*: what an affine map,
a sum and a product do to its values. `Graph.evaluate` is the one loop that walks.

A builder keeps graphs in canonical form: equal nodes are one node, moves of numbers are composed, an affine map of an
affine map is one `Chain`, and what the output does not depend on is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models.affine import Affine, Chain, Identity
from polybound.models.factors import Factors
from polybound.models.graphs.chains import Chains, Link, NoChainError, chain_of
from polybound.models.graphs.maps import Scale, Select, key

V = TypeVar("V")

_HIGHEST = 2**20
_LONGEST = 50
"""The highest degree, and how many maps in a row become one; files take a hundred."""


@dataclass(frozen=True, eq=False)
class Input:
    """The input of a network.

    Attributes:
        shape: of one input.
        origin: where in the user's program the node comes from; for messages and drawings.
    """

    shape: tuple[int, ...]
    origin: str = "input"

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the nodes that this one uses."""
        return ()


@dataclass(frozen=True, eq=False)
class Applied:
    """An affine map of another node."""

    map: Affine
    source: int
    origin: str = ""

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the nodes that this one uses."""
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of other nodes, which have one size."""

    sources: tuple[int, ...]
    origin: str = ""


@dataclass(frozen=True, eq=False)
class Product:
    """The product of two nodes of one size, entry by entry; a square if they are the same."""

    left: int
    right: int
    origin: str = ""

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the nodes that this one uses."""
        return (self.left, self.right)


Node = Input | Applied | Sum | Product


class Algebra(Protocol[V]):
    """What affine maps, sums and products do to values of some kind: numbers, intervals, degrees, ciphertexts, ...

    The two values of a square are one object: `left is right`.
    """

    def affine(self, step: Affine, value: V, /) -> V:
        """The value of an affine map."""

    def sum(self, values: Sequence[V], /) -> V:
        """The value of a sum."""

    def product(self, left: V, right: V, /) -> V:
        """The value of a product."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A polynomial network, as nodes in topological order.

    Attributes:
        nodes: the inputs first; every source of a node stands before it.
        output: number of the node that is the network's output, a vector of `classes` entries.

    >>> import torch
    >>> from polybound.models import Builder, Dense
    >>> graph = Builder()
    >>> x = graph.input((3,))
    >>> y = graph.affine(Dense(torch.eye(3)[:2]), x)
    >>> square = graph.finish(graph.product(y, y))
    >>> square(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[1., 4.]])
    """

    nodes: tuple[Node, ...]
    output: int

    def __repr__(self) -> str:
        counts = {kind.__name__: sum(isinstance(node, kind) for node in self.nodes) for kind in (Applied, Sum, Product)}
        found = ", ".join(f"{name.lower()}={count}" for name, count in counts.items())
        return f"Graph(shape={self.shape}, classes={self.classes}, degree={self.degree}, {found})"

    @property
    def inputs(self) -> list[int]:
        """Numbers of the input nodes."""
        return [number for number, node in enumerate(self.nodes) if isinstance(node, Input)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.nodes[0].shape  # type: ignore[union-attr]  # the first node is an input

    @property
    def features(self) -> int:
        """How many numbers one input has."""
        return prod(self.shape)

    @property
    def classes(self) -> int:
        """How many outputs there are."""
        return self.sizes[self.output]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The length of every node's vector."""
        sizes: list[int] = []
        for node in self.nodes:
            if isinstance(node, Input):
                sizes.append(prod(node.shape))
            else:
                sizes.append(node.map.outputs if isinstance(node, Applied) else sizes[node.sources[0]])
        return tuple(sizes)

    @cached_property
    def degree(self) -> int:
        """The degree of the polynomial, at most: what products and sums give without any cancellation."""
        degrees: list[int] = []
        for node in self.nodes:
            of = [degrees[source] for source in node.sources]
            degrees.append(1 if not of else sum(of) if isinstance(node, Product) else max(of))
        return degrees[self.output]

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the numbers of the nodes that use it."""
        uses: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in node.sources:
                uses[source].append(number)
        return tuple(tuple(of) for of in uses)

    @cached_property
    def _spent(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the nodes whose values nothing needs after it."""
        spent: list[list[int]] = [[] for _ in self.nodes]
        for number, users in enumerate(self.uses):
            if number != self.output and users:
                spent[max(users)].append(number)
        return tuple(tuple(of) for of in spent)

    def evaluate(self, algebra: Algebra[V], *inputs: V, watch: Callable[[int, V], None] | None = None) -> V:
        """The output's value in an algebra. Values are let go as soon as nothing needs them any more.

        Args:
            algebra: what maps, sums and products do.
            inputs: the value of each input.
            watch: sees every node's number and value.
        """
        given = self.inputs
        if len(inputs) != len(given):
            raise PolyboundError(f"the network has {len(given)} inputs, got {len(inputs)}")
        values: dict[int, V] = dict(zip(given, inputs, strict=True))
        for number, node in enumerate(self.nodes):
            if isinstance(node, Applied):
                values[number] = algebra.affine(node.map, values[node.source])
            elif isinstance(node, Sum):
                values[number] = algebra.sum([values[source] for source in node.sources])
            elif isinstance(node, Product):
                values[number] = algebra.product(values[node.left], values[node.right])
            if watch is not None:
                watch(number, values[number])
            for source in self._spent[number]:
                del values[source]
        return values[self.output]

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) for inputs (batch, *shape) or (batch, features), straight from the definition."""
        from polybound.models.graphs.algebras import Numbers

        return self.evaluate(Numbers(), x.reshape(len(x), self.features))

    def transform(self, change: Callable[[Tensor], Tensor]) -> Graph:
        """The same graph with `change` applied to every tensor of its maps."""
        nodes = tuple(replace(n, map=n.map.transform(change)) if isinstance(n, Applied) else n for n in self.nodes)
        return Graph(nodes, self.output)

    def double(self) -> Graph:
        """The same graph in float64, cut off from autograd."""
        return self.transform(lambda t: t.detach().double())

    def chain(self) -> Factors | None:
        """The network as one chain of products, if it is one: `y_n = A_n(x) * S_n(y_(n-1))`, `f = C(y_k)`.

        `A(x) * y + y`, the residual form, counts as a product with `A(x) + 1`.
        """
        if len(self.inputs) != 1:
            return None
        like = next((node.map.constant for node in self.nodes if isinstance(node, Applied)), torch.zeros(()))
        zero = like.new_zeros(self.features)
        try:
            return chain_of(self.evaluate(Chains(zero), Link(None, (), 1, 0)), zero)
        except NoChainError:
            return None

    def label(self, number: int, short: bool = False) -> str:
        """What messages call a node: what it is and where it comes from; `short`, in tables, without who called it."""
        node = self.nodes[number]
        name = type(node.map).__name__ if isinstance(node, Applied) else type(node).__name__
        origin = node.origin.partition(", called in ")[0] if short else node.origin
        return f"{name} {number}" + (f" ({origin})" if origin else "")

    @cached_property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of the nodes and all weights; origins do not count."""
        found = hashlib.sha256()
        for node in self.nodes:
            head: list[Any] = [type(node).__name__, node.sources]
            head += [node.shape] if isinstance(node, Input) else []
            found.update(json.dumps(head).encode())
            if isinstance(node, Applied):
                _hash_map(found, node.map)
        found.update(str(self.output).encode())
        return found.hexdigest()


def graph_of(factors: Factors, shape: Sequence[int] | None = None, fused: bool = True) -> Graph:
    """A chain of products as a graph that shares its weights; of one run, for inputs of that shape."""
    if factors.lead:
        raise PolyboundError(f"a graph is of one network, and this is a stack of {factors.lead[0]}: take one run")
    builder = Builder()
    x = builder.input(shape or (factors.features,))
    y = builder.affine(factors.A[0], x, "A1")
    if not (not factors.s1.requires_grad and bool((factors.s1 == 1).all())):
        y = builder.affine(Scale(factors.s1), y, "s1")
    for n, (a, s) in enumerate(zip(factors.A[1:], factors.S, strict=True), 2):
        y = builder.product(builder.affine(a, x, f"A{n}"), builder.affine(s, y, f"S{n}"), f"product {n}")
    return builder.finish(builder.affine(factors.C, y, "C"), fused)


def _hash_map(found: Any, step: Affine) -> None:
    found.update(type(step).__name__.encode())
    if isinstance(step, Chain):
        found.update(f"{len(step.maps)} {step.shift!r}".encode())
        for part in step.maps:
            _hash_map(found, part)
        return
    for name, value in sorted(vars(step).items()):
        if name.startswith("_") or isinstance(getattr(type(step), name, None), cached_property):
            continue  # derived from the others
        if isinstance(value, Tensor):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(f"{name} {value!r}".encode())


@dataclass
class Builder:
    """Makes a graph node by node; every method returns the number of its node."""

    nodes: list[Node] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _degrees: list[int] = field(default_factory=list)
    _known: dict[Any, int] = field(default_factory=dict)

    def _add(self, node: Node, size: int, degree: int, key: Any) -> int:
        if key not in self._known:
            if degree > _HIGHEST:
                where = f" at {node.origin}" if node.origin else ""
                raise PolyboundError(f"the network has degree {degree:,}{where}; at most 2^20 is taken")
            self._known[key] = len(self.nodes)
            self.nodes.append(node)
            self._sizes.append(size)
            self._degrees.append(degree)
        return self._known[key]

    def size(self, number: int) -> int:
        """The length of a node's vector."""
        return self._sizes[number]

    def input(self, shape: Sequence[int]) -> int:
        """An input of this shape; all inputs come before all other nodes."""
        return self._add(Input(tuple(shape)), prod(shape), 1, ("input", len(self.nodes)))

    def affine(self, step: Affine, source: int, origin: str = "") -> int:
        """A map of a node."""
        if step.inputs != self.size(source):
            raise PolyboundError(
                f"a map of {step.inputs} numbers was given {self.size(source)} ({origin or 'no origin'})"
            )
        if _is_identity(step):
            return source
        below = self.nodes[source]
        if isinstance(below, Applied) and isinstance(step, Select) and isinstance(below.map, Select):
            index = torch.where(step.index < 0, -1, below.map.index[step.index.clamp_min(0)])
            return self.affine(Select(index, below.map.inputs, step.like), below.source, origin or below.origin)
        node, degree = Applied(step, source, origin), self._degrees[source]
        return self._add(node, step.outputs, degree, ("affine", source, key(step)))

    def sum(self, sources: Sequence[int], origin: str = "") -> int:
        """The sum of nodes."""
        self._same_size("a sum", sources, origin)
        if len(sources) == 1:
            return sources[0]
        degree = max(self._degrees[source] for source in sources)
        return self._add(Sum(tuple(sorted(sources)), origin), self.size(sources[0]), degree, ("sum", *sorted(sources)))

    def product(self, left: int, right: int, origin: str = "") -> int:
        """The product of two nodes, entry by entry."""
        self._same_size("a product", (left, right), origin)
        degree = self._degrees[left] + self._degrees[right]
        node = Product(left, right, origin)
        return self._add(node, self.size(left), degree, ("product", *sorted((left, right))))

    def _same_size(self, what: str, sources: Sequence[int], origin: str) -> None:
        if len({self.size(source) for source in sources}) != 1:
            sizes = ", ".join(str(self.size(source)) for source in sources)
            raise PolyboundError(f"{what} of vectors of different lengths: {sizes}{origin and f' ({origin})'}")

    def finish(self, output: int, fused: bool = True) -> Graph:
        """The graph of one output: without what it does not need; `fused`, an affine map of an affine map is one."""
        nodes = list(self.nodes)
        needed = {output} | {number for number, node in enumerate(nodes) if isinstance(node, Input)}
        for number in range(len(nodes) - 1, -1, -1):
            if number in needed:
                if fused:
                    nodes[number] = self._fused(number)
                needed |= set(nodes[number].sources)
        place = {old: new for new, old in enumerate(sorted(needed))}
        kept: list[Node] = []
        for old in sorted(needed):
            node = nodes[old]
            if isinstance(node, Applied):
                node = replace(node, source=place[node.source])
            elif isinstance(node, Sum):
                node = replace(node, sources=tuple(place[source] for source in node.sources))
            elif isinstance(node, Product):
                node = replace(node, left=place[node.left], right=place[node.right])
            kept.append(node)
        return Graph(tuple(kept), place[output])

    def _fused(self, number: int) -> Node:
        """A node; of a map, with the maps right below it as one."""
        node = self.nodes[number]
        if not isinstance(node, Applied):
            return node
        maps, source, origin = _opened(node.map), node.source, node.origin
        while isinstance(below := self.nodes[source], Applied) and len(maps) < _LONGEST:
            maps = _opened(below.map) + maps
            source, origin = below.source, origin or below.origin
        return node if source == node.source else Applied(Chain(maps), source, origin)


def _is_identity(step: Affine) -> bool:
    if isinstance(step, Identity):
        return True
    return (
        isinstance(step, Select)
        and step.inputs == step.outputs
        and bool((step.index == torch.arange(step.inputs)).all())
    )


def _opened(step: Affine) -> list[Affine]:
    return list(step.maps) if isinstance(step, Chain) and step.shift == 0.0 else [step]
