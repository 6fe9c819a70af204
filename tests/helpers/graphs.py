"""Random graphs of all nodes and all maps, small enough to be judged by brute force."""

from math import prod

import torch
from hypothesis import strategies as st

from polybound.models import AveragePool, Builder, Chain, Collect, Conv, Convolution, Dense, Repeated, Scale, Select

F64 = torch.float64


def random_map(pick, size, shapes, generator, dtype):
    """A map of a vector of that size, and the image shape of its result if it has one."""

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=F64).to(dtype)

    like = torch.zeros((), dtype=dtype)
    kinds = ["dense", "scale", "select", "collect", "repeated"]
    image = shapes.get(size)
    if image is not None:
        kinds += ["conv", "convolution", "transposed", "pool"] * 2
    kind = pick(kinds)
    if kind == "dense":
        out = pick(range(1, 8 + 1))
        return Dense(normal(out, size) / size**0.5, normal(out) if pick((False, True)) else None)
    if kind == "scale":
        return Scale(normal(size), normal(size) if pick((False, True)) else None)
    if kind == "select":
        out = pick(range(1, 10 + 1))
        return Select(torch.randint(-1, size, (out,), generator=generator), size, like)
    if kind == "collect":
        out = pick(range(1, 6 + 1))
        return Collect(torch.randint(-1, out, (size,), generator=generator), out, like)
    if kind == "repeated":
        rows = pick([n for n in range(1, size + 1) if size % n == 0])
        out = pick(range(1, 3 + 1))
        return Repeated(normal(out, size // rows), normal(out) if pick((False, True)) else None, rows)
    channels, *space = image
    if kind == "conv":
        return Conv(normal(pick((1, 2)), channels, *(3,) * len(space)) / 3, None, image)
    if kind == "pool":
        window = [pick(range(1, min(3, n) + 1)) for n in space]
        return AveragePool(image, window, [pick(range(1, 3 + 1)) for _ in space], [w // 2 for w in window], like)
    groups = pick([n for n in (1, 2, 3) if channels % n == 0])
    kernel = [pick(range(1, min(3, n) + 1)) for n in space]
    options = {
        "stride": [pick(range(1, 2 + 1)) for _ in space],
        "padding": [pick(range(0, k - 1 + 1)) for k in kernel],
        "dilation": [1] * len(space)
        if kind == "transposed"
        else [pick(range(1, 2 + 1)) if n > 2 * k else 1 for n, k in zip(space, kernel, strict=True)],
        "groups": groups,
    }
    of_group = pick(range(1, 2 + 1))
    if kind == "transposed":
        weight = normal(channels, of_group, *kernel)
        options |= {"transposed": True, "output_padding": [pick(range(0, s - 1 + 1)) for s in options["stride"]]}
    else:
        weight = normal(of_group * groups, channels // groups, *kernel)
    bias = normal(of_group * groups) if pick((False, True)) else None
    made = Convolution(weight / prod(kernel) ** 0.5, bias, image, **options)
    return made if 0 < made.outputs <= 64 else Scale(normal(size))


@st.composite
def graphs(draw, most=14, dtype=F64, degree=64):
    """A graph of up to `most` nodes with one output vector."""
    return random_graph(lambda options: draw(st.sampled_from(options)), most, dtype, degree)


def random_graph(pick, most=14, dtype=F64, degree=64):
    """The same with whatever picks one of several options."""
    generator = torch.Generator().manual_seed(pick(range(2**32)))
    shape = pick([(3,), (5,), (1, 4), (2, 3, 3), (1, 5, 4), (3, 2, 2)])
    builder, shapes = Builder(), {}
    if len(shape) > 1:
        shapes[prod(shape)] = shape
    nodes, degrees = [builder.input(shape)], {0: 1}
    for _ in range(pick(range(1, most + 1))):
        source = pick(nodes)
        alike = [n for n in nodes if builder.size(n) == builder.size(source)]
        kind = pick(["affine", "affine", "affine", "sum", "product", "product"])
        if kind == "sum":
            chosen = [pick(alike) for _ in range(pick((2, 3)))]
            node, of = builder.sum(chosen), max(degrees[n] for n in chosen)
        elif kind == "product" and degrees[source] + max(degrees[n] for n in alike) <= degree:
            other = pick(alike)
            node, of = builder.product(source, other), degrees[source] + degrees[other]
        else:
            step = random_map(pick, builder.size(source), shapes, generator, dtype)
            if pick(range(5)) == 0:
                step = Chain([step, Scale(torch.randn(step.outputs, generator=generator, dtype=F64).to(dtype))])
            node, of = builder.affine(step, source), degrees[source]
            if isinstance(step, Conv | Convolution | AveragePool):
                shapes.setdefault(step.outputs, step.out_shape)
        degrees[node] = max(of, degrees.get(node, 0))
        nodes.append(node)
    return builder.finish(nodes[-1], fused=pick((False, True)))


def two_products(seed):
    """Three inputs, a product, and a second one of it with a skip."""
    generator, builder = torch.Generator().manual_seed(seed), Builder()

    def dense(rows, columns):
        weights = torch.randn(rows, columns, generator=generator, dtype=F64) / (columns / 3)
        return Dense(weights, torch.randn(rows, generator=generator, dtype=F64))

    x = builder.input((3,))
    y = builder.product(builder.affine(dense(6, 3), x), builder.affine(dense(6, 3), x))
    z = builder.sum([y, builder.product(builder.affine(dense(6, 6), y), builder.affine(dense(6, 6), y))])
    return builder.finish(builder.affine(dense(2, 6), z))
