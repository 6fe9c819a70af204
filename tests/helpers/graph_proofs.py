"""Small deep networks with honest files of proofs, and mutants of those: see `proof_mutants`."""

from fractions import Fraction

import torch

import polybound as pb
from helpers.graphs import F64
from helpers.proof_mutants import Mutator, Subject, made
from polybound.certificates.proofs.files import graph_claims
from polybound.certificates.proofs.graphs import GraphChecker
from polybound.models import AveragePool, Builder, Chain, Convolution, Dense, Fractions, GraphNetwork, Scale


def small_graphs():
    """A skip over a product, squares of squares, convolutions in float32, and a product as the output."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape, size=1.0):
        return size * torch.randn(shape, generator=generator, dtype=F64)

    def dense(rows, columns):
        return Dense(normal(rows, columns, size=columns**-0.5), normal(rows))

    builder = Builder()
    x = builder.input((3,))
    y = builder.product(builder.affine(dense(5, 3), x), builder.affine(dense(5, 3), x))
    z = builder.product(builder.affine(dense(5, 5), y), builder.affine(dense(5, 5), y))
    yield "skip", builder.finish(builder.affine(dense(2, 5), builder.sum([y, z])))

    builder = Builder()
    y = builder.affine(dense(6, 2), builder.input((2,)))
    for rows in (6, 4):
        y = builder.affine(dense(rows, 6), builder.product(y, y))
    yield "squares", builder.finish(builder.affine(dense(3, 4), builder.product(y, y)))

    builder, like = Builder(), torch.zeros((), dtype=torch.float32)
    x = builder.input((1, 2, 2))
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    a, b = (Convolution(normal(2, 1, 3, 3, size=0.6).float(), normal(2).float(), (1, 2, 2), **options) for _ in "ab")
    y = builder.product(builder.affine(a, x), builder.affine(b, x))
    y = builder.affine(AveragePool((2, 2, 2), (1, 2), (1, 2), (0, 0), like), y)
    y = builder.product(y, builder.affine(Scale(normal(4).float(), normal(4).float()), y))
    yield "convolutions", builder.finish(builder.affine(Dense(normal(3, 4).float(), normal(3).float()), y))

    builder = Builder()
    x = builder.input((2,))
    y = builder.product(builder.affine(dense(4, 2), x), builder.affine(dense(4, 2), x))
    z = builder.affine(Chain([dense(3, 4), Scale(normal(3)), dense(3, 3)], 0.3), y)
    yield "last product", builder.finish(builder.product(builder.affine(dense(3, 4), y), z))


class GraphSubject(Subject):
    """A deep network with the honest entries of one file."""

    def prepare(self):
        self.graph, self.mutator = self.model.graph(), GraphMutator
        self.double, self.features, self.classes = self.graph.double(), self.graph.features, self.graph.classes

    def check(self, content):
        claims = graph_claims(content, self.graph)
        checker = GraphChecker(self.graph, claims)
        return [checker.check(image) for image in claims.images]

    def values(self, points):
        return self.double(points)

    def exact(self, point):
        return self.graph.evaluate(Fractions(), [Fraction(v) for v in point])


def graph_subjects(images=12):
    """Honest files of all kinds: boxes, sides, balls, cut boxes, intervals over both, counterexamples."""
    for number, (name, graph) in enumerate(small_graphs()):
        model = GraphNetwork.of(graph)
        generator = torch.Generator().manual_seed(5)
        x = torch.rand(images, *model.shape, generator=generator, dtype=F64) * 2 - 1
        x.reshape(images, -1)[::3, 0] = 1.0
        y, domain = graph.double()(x.flatten(1)).argmax(1), (-1.0, 1.0)
        down, up = (torch.rand(x.shape, generator=generator, dtype=F64) * 0.3 for _ in range(2))
        # A number of cells, and not seconds: the same on any machine.
        options = {"keep": True, "nodes": 20}
        for eps in (0.05, 0.15):
            found = pb.certify(model, x, y, eps, domain=domain, **options)
            yield made(GraphSubject, f"{name} boxes of {eps}", model, found, x, domain)
        found = pb.certify(model, x, y, box=(x - down, x + up), domain=None, **options)
        yield made(GraphSubject, f"{name} sides", model, found, x, None)
        found = pb.certify(model, x, y, 0.2, norm="2", domain=domain, **options)
        yield made(GraphSubject, f"{name} balls", model, found, x, domain)
        found = pb.certify(model, x, y, down, norm="2", domain=None, **options)
        yield made(GraphSubject, f"{name} ellipsoids", model, found, x, None)
        few = x[: images // 2]
        forms = {"weights": torch.eye(model.classes, dtype=F64)[:2], "constant": [0.5, -1.0]}
        norm = ("inf", "2")[number % 2]
        found = pb.output_bounds(model, few, 0.2, norm=norm, domain=domain, keep=True, **forms)
        yield made(GraphSubject, f"{name} intervals, {norm}", model, found, few, domain)


class GraphMutator(Mutator):
    """Changes the contents of files about deep networks."""

    trivial = ({"by": "interval"}, {"by": "generators"})

    def step(self, _node, _entry, subject):
        """A step with numbers of its own, which are good for nothing or for little."""
        pick = self.random
        sizes = [
            subject.graph.sizes[n] for n, node in enumerate(subject.graph.nodes) if type(node).__name__ == "Product"
        ]
        every = [subject.features, *sizes]

        def blocks(low, high):
            return [pick.choice((None, [pick.uniform(low, high) for _ in range(size)])) for size in every]

        scales = [pick.choice((None, 0.0, 0.1, 0.5, 0.9, 1.0)) for _ in sizes]
        return pick.choice(
            (
                {"by": "interval"},
                {"by": "generators"},
                {"by": "planes", "planes": [pick.choice((0.0, 0.5, 1.0, pick.random())) for _ in sizes]},
                {"by": "layers", "scale": scales, "v": blocks(-1, 1)},
                {"by": "whole", "d": blocks(0, pick.choice((1e-3, 0.1, 1.0))), "v": blocks(-1, 1)},
            )
        )

    def made(self, entry, subject):
        """Steps of any kind over cells of any kind."""
        pick, node = self.random, self.step(None, entry, subject)
        for _ in range(pick.randrange(3) if "norm" not in entry else 0):
            d = pick.randrange(subject.features)
            node = {"split": [d, entry["x"][d]], "low": node, "high": self.step(None, entry, subject)}
        return node
