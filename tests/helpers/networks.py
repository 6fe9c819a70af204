"""Random small networks, and brute-force oracles that know nothing of the package's formulas."""

from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import nn

import polybound as pb
from polybound.models import Chain

F64 = torch.float64


def randomise(model, seed, scale):
    """Normal weights everywhere: nothing an initialisation would leave at zero or one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=F64))
    return model


class Written(nn.Module):
    """A network in plain torch: parts by name, tensors among them as parameters, and a function of them and the input."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if type(part) is torch.Tensor else part)

    def forward(self, x):
        return self.function(self, x)


def layers(inputs, outputs, names, **options):
    """Linear layers of one size, by names of one letter each."""
    return {name: nn.Linear(inputs, outputs, **options) for name in names}


seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([0.1, 0.5, 1.0, 3.0])


@st.composite
def recursions(draw, make, runs=(None,), max_features=5, max_rank=4, max_degree=4):
    """Networks of a class of dense recursions, a CCP in either form."""
    sizes = [draw(st.integers(1, most)) for most in (max_features, max_rank, 3, max_degree)]
    form = [draw(st.sampled_from(["residual", "product"]))] if make is pb.CCP else []
    model = make(*sizes, *form, runs=draw(st.sampled_from(runs)), dtype=F64)
    return randomise(model, draw(seeds), draw(scales))


def ccps(*args, **options):
    return recursions(pb.CCP, *args, **options)


def ncps(*args, **options):
    return recursions(pb.NCP, *args, **options)


@st.composite
def convs(draw, runs=(None,)):
    dims = draw(st.integers(1, 3))
    degree = draw(st.integers(1, 3))
    pool = draw(st.sets(st.integers(1, degree), max_size=1))
    sizes = st.integers(2, 5 if dims == 1 else (4 if dims == 2 else 3))
    model = pb.ConvCCP(
        (draw(st.integers(1, 2)), *(draw(sizes) for _ in range(dims))),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        degree,
        draw(st.sampled_from([1, 3, 5])),
        pre=draw(st.sampled_from([None, 1, 3])),
        pool=pool,
        runs=draw(st.sampled_from(runs)),
        dtype=F64,
    )
    return randomise(model, draw(seeds), draw(scales))


def networks(runs=(None,)):
    return st.one_of(ccps(runs), ncps(runs), convs(runs))


def unrolled(function, inputs):
    """The matrix of a linear function, column by column."""
    return torch.stack([function(e) for e in torch.eye(inputs, dtype=F64)], dim=1)


def jacobian(model, x):
    """The Jacobian of the logits at one flat input, by autograd."""
    return torch.autograd.functional.jacobian(lambda v: model(v.unsqueeze(0)).squeeze(0), x, create_graph=False)


def exact_map(step):
    """The matrix and the constants of an affine map, in fractions; a chain of maps is multiplied out."""
    if isinstance(step, Chain):
        first, *rest = map(exact_map, step.maps)
        rows, constants = first
        for part in rest:
            columns = list(zip(*rows, strict=True))
            constants = apply_map(part, constants)
            rows = [
                [sum((w * v for w, v in zip(row, c, strict=True) if w), Fraction()) for c in columns] for row in part[0]
            ]
        return rows, [value + Fraction(step.shift) for value in constants]
    return [[Fraction(w) for w in row] for row in step.matrix().tolist()], [Fraction(b) for b in step.constant.tolist()]


def apply_map(step, x):
    """`W x + b` of such a matrix and constants."""
    return [sum((w * v for w, v in zip(row, x, strict=True) if w), b) for row, b in zip(*step, strict=True)]


class ExactChain:
    """The definition of a chain of products in fractions, number by number; it knows nothing of the package's formulas."""

    def __init__(self, factors):
        self.A, self.S = ([exact_map(step) for step in steps] for steps in (factors.A, factors.S))
        self.C, self.s1 = exact_map(factors.C), [Fraction(v) for v in factors.s1.tolist()]

    def __call__(self, x):
        """The logits at a point, whose values are numbers or fractions."""
        x = [Fraction(v) for v in x]
        y = [a * b for a, b in zip(apply_map(self.A[0], x), self.s1, strict=True)]
        for A, S in zip(self.A[1:], self.S, strict=True):
            y = [a * b for a, b in zip(apply_map(A, x), apply_map(S, y), strict=True)]
        return apply_map(self.C, y)
