"""Modules in plain PyTorch, as people write them, and what is refused."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import Written, layers
from polybound.models import Product, trace


class Square(nn.Module):
    def forward(self, x):
        return torch.square(x)


def sequential():
    head = (nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), Square(), *head)


def functional(m, x):
    return F.linear(x, m.first, m.bias) * F.linear(x, m.second) + 2


def einsum(m, x):
    y = torch.einsum("btc,cot->bo", x, m.kernel)
    return torch.einsum("bo,ok->bk", y * y, m.out)


def powers(m, x):
    y = m.inner(x)
    return m.outer(y**3 - 0.5 * y**2 + torch.pow(y, 1) / 3 - 1)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.b = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        a = self.a(x)
        return x + self.norm(a * self.b(x) + a)


def nested(m, x):
    x = m.stem(x)
    for block in m.blocks:
        x = block(x)
    return m.head(x.mean(dim=(-1, -2)))


def stem():
    return nn.Sequential(nn.Conv2d(2, 4, 1), nn.Sequential(nn.BatchNorm2d(4)))


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("order", torch.tensor([4, 0, 2]))
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        x = (x - self.mean) / 0.25
        return x[:, self.order] * x.flip(1)[:, ::2] * self.weight


def grouped(m, x):
    y = m.conv(x)
    y = torch.addcmul(y, y, y, value=0.5)
    return m.up(y).flatten(1).reshape(x.shape[0], 2, -1).sum(-1)


def volumes(m, x):
    return m.head(F.avg_pool3d(m.conv(x) * x, 2).view(len(x), -1))


def shuffled(m, x):
    """Concatenation, padding, up-sampling, chunks, pixel shuffle, in place."""
    one, other = x.chunk(2, dim=1)
    x = torch.cat([one * other, x], 1)
    x = F.pad(F.interpolate(F.avg_pool2d(x, 2), scale_factor=2), (0, 1, 1, 0))
    x = F.avg_pool2d(m.conv(x), 3, stride=1, padding=1, count_include_pad=False)
    x = F.pixel_shuffle(torch.stack([x, x], 2).flatten(1, 2)[:, :, :2, :2], 2)
    x *= x
    x.add_(1.0)
    return m.head(x.permute(0, 2, 3, 1).contiguous().view(x.size(0), -1)[:, :8])


def lazy():
    head = nn.LazyLinear(3)
    head(torch.zeros(1, 8))
    return head


def attention(m, x):
    """Linear attention: a product of two matrices of values."""
    return m.head((m.query(x) @ (m.key(x).transpose(1, 2) @ m.value(x)) / 3).flatten(1))


def pi_net(m, z):
    """The product of polynomials of Pi-nets: CCP recursions, the output of one the input of the next."""
    z = z.flatten(1)
    for maps, out in zip(m.U, m.C, strict=True):
        x = maps[0](z)
        for layer in maps[1:]:
            x = layer(z) * x + x
        z = out(x)
    return z


def r_poly_net(m, z):
    """A block of R-PolyNets: normalised factors, `x_n = (A z) * (S x + B) / rank + x`, here with its batch norms."""
    z = x = m.stem(z)
    for n, (a, s) in enumerate(zip(m.A, m.S, strict=True)):
        x = m.norms[2 * n](a(z)) * m.norms[2 * n + 1](s(x)) * m.gain + x
    return m.head(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1))


def mo_net(m, x):
    """A block of MONet without its layer norm: a Mu-layer on tokens with a spatial shift, products of two branches."""
    tokens = x.permute(0, 2, 3, 1)
    a = m.A(torch.cat([torch.roll(tokens[..., :2], 1, dims=1), tokens[..., 2:]], -1))
    tokens = tokens + m.C(a * m.D(m.B(tokens)) + a)
    return m.head(tokens.mean((1, 2)))


def crypto_nets(m, x):
    """The square network of CryptoNets."""
    return m.out(m.dense(m.conv(x).square().flatten(1)).square())


def some(count, make):
    return nn.ModuleList(make() for _ in range(count))


Conv, Linear, randn = nn.Conv2d, nn.Linear, torch.randn
GOOD = {
    # the shape of an input, and how the module is made
    "sequential": ((1, 8, 8), sequential),
    "functional": ((6,), lambda: Written(functional, first=randn(5, 6), second=randn(5, 6), bias=randn(5))),
    "einsum": ((4, 3), lambda: Written(einsum, kernel=randn(3, 5, 4), out=randn(5, 2))),
    "powers": ((4,), lambda: Written(powers, inner=Linear(4, 4), outer=Linear(4, 2))),
    "nested": (
        (2, 6, 6),
        lambda: Written(nested, blocks=some(2, lambda: Residual(4)), stem=stem(), head=Linear(4, 3)),
    ),
    "buffers": ((5,), Buffers),
    "grouped": (
        (4, 9),
        lambda: Written(
            grouped,
            conv=nn.Conv1d(4, 6, 3, groups=2, dilation=2, padding=2),
            up=nn.ConvTranspose1d(6, 2, 4, stride=2, padding=1),
        ),
    ),
    "volumes": ((1, 4, 4, 4), lambda: Written(volumes, conv=nn.Conv3d(1, 3, 3, padding="same"), head=Linear(24, 2))),
    "shuffled": ((4, 4, 4), lambda: Written(shuffled, conv=Conv(6, 2, 3), head=lazy())),
    "attention": (
        (3, 4),
        lambda: Written(attention, **layers(4, 2, ("query", "key", "value"), bias=False), head=Linear(6, 2)),
    ),
    "Pi-net": (
        (1, 6, 6),
        lambda: Written(
            pi_net,
            U=nn.ModuleList(some(3, lambda n=n: Linear(n, 5)) for n in (36, 5)),
            C=nn.ModuleList(Linear(5, n) for n in (5, 3)),
        ),
    ),
    "R-PolyNet": (
        (2, 6, 6),
        lambda: Written(
            r_poly_net,
            stem=Conv(2, 4, 3, padding=1),
            A=some(2, lambda: Conv(4, 4, 3, padding=1, bias=False)),
            S=some(2, lambda: Conv(4, 4, 1)),
            norms=some(4, lambda: nn.BatchNorm2d(4)),
            gain=torch.tensor(0.5),
            head=Linear(4, 3),
        ),
    ),
    "MONet": (
        (4, 4, 4),
        lambda: Written(mo_net, A=Linear(4, 3), B=Linear(4, 2), C=Linear(3, 4), D=Linear(2, 3), head=Linear(4, 3)),
    ),
    "CryptoNets": (
        (1, 12, 12),
        lambda: Written(
            crypto_nets, conv=Conv(1, 5, 5, stride=2, padding=2), dense=Linear(180, 20), out=Linear(20, 10)
        ),
    ),
}


def filled(name):
    torch.manual_seed(1)
    module = GOOD[name][1]()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return module


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("fused", [True, False])
def test_a_graph_is_its_module(name, fused):
    module, (shape, _) = filled(name), GOOD[name]
    graph = trace(module, shape, fused)
    assert module.training
    assert any(isinstance(node, Product) for node in graph.nodes)
    x = torch.randn(7, *shape)
    torch.testing.assert_close(graph(x), module.eval()(x), rtol=1e-4, atol=1e-4)
    double = module.double().eval()(x.double())
    torch.testing.assert_close(trace(module, shape, fused)(x.double()), double, rtol=1e-9, atol=1e-9)


def test_weights_are_shared():
    module = filled("CryptoNets")
    graph, x = trace(module, (1, 12, 12)), torch.randn(2, 1, 12, 12)
    with torch.no_grad():
        module.conv.weight.mul_(2)
        module.out.weight.zero_()
    torch.testing.assert_close(graph(x), module(x))


def test_origins_name_the_module_and_the_line():
    graph = trace(filled("nested"), (2, 6, 6))
    origins = [node.origin for node in graph.nodes if isinstance(node, Product)]
    line = Residual.forward.__code__.co_firstlineno + 2
    assert origins == [f"blocks.0.forward, line {line}", f"blocks.1.forward, line {line}"]


def _write(x):
    x[:, :2].mul_(3.0)
    return x


BAD = {
    "relu": (lambda m, x: F.relu(m.layer(x)), "relu in <lambda>, line .*: no polynomial; `x \\* x` or a product"),
    "max pooling": (lambda m, x: F.max_pool1d(m.layer(x).unsqueeze(1), 2)[:, 0], "average pooling is"),
    "softmax": (lambda m, x: m.layer(x).softmax(-1), "softmax .*: it divides"),
    "layer norm": (lambda m, x: F.layer_norm(m.layer(x), (4,)), "layer_norm .*: it divides by a statistic"),
    "division": (lambda m, x: m.layer(x) / (1 + x * x), "a division by a value"),
    "root": (lambda m, x: m.layer(x) ** 0.5, "a power in"),
    "negative power": (lambda m, x: x**-2, "a power with a whole exponent|exponents from 1"),
    "control flow": (lambda m, x: m.layer(x) if (m.layer(x) > 0).any() else x, "a comparison is no polynomial"),
    "item": (lambda m, x: x * float(x[0, 0]), "control flow that depends on values"),
    "dropout": (lambda m, x: F.dropout(m.layer(x), 0.5, training=True), "random|no polynomial"),
    "batch norm in training": (lambda m, x: F.batch_norm(x, None, None, training=True), "batch norm in training mode"),
    "mixed samples": (lambda m, x: m.layer(x) - m.layer(x).mean(0), "across the batch"),
    "one sample": (lambda m, x: m.layer(x) * x[:1], "the batch must stay whole"),
    "no output": (lambda m, x: torch.ones(3, 2), "does not depend on its input"),
    "no vector": (
        lambda m, x: m.layer(x).reshape(-1, 2, 2),
        r"must have shape \(batch, classes\), got \(batch, 2, 2\)",
    ),
    "randomness": (lambda m, x: m.layer(x) * torch.rand(()) * 9, "something else on other inputs"),
    "batch size": (lambda m, x: m.layer(x) * (1 if len(x) == 3 else 2), "something else on other inputs"),
    "a tuple": (lambda m, x: (m.layer(x), x), "is a tuple"),
    "writing into a part": (lambda m, x: _write(m.layer(x)), "in place, into a part of a tensor"),
    "complex": (lambda m, x: m.layer(x) * 1j, "complex"),
    "recurrent": (lambda m, x: m.unit(x.unsqueeze(1))[0][:, 0], "in unit, called in .*: no polynomial"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_polynomial_is_refused_with_its_place(what):
    forward, message = BAD[what]
    module = Written(forward, layer=nn.Linear(4, 4), unit=nn.LSTM(4, 3, batch_first=True))
    refuses(message, trace, module, (4,))
    assert module.training and not torch.nn.modules.module._global_forward_pre_hooks


def test_a_shape_that_does_not_fit_is_refused():
    message = r"a product of matrices .n, 5. and .4, 4. in layer.*: their shapes do not fit"
    refuses(message, trace, Written(lambda m, x: m.layer(x), layer=nn.Linear(4, 4)), (5,))


class Changing(nn.Module):
    """Many things that may change: weights, statistics, settings, parts, what it computes with."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        self.factor, self.plain, self.parts = 2.0, torch.tensor(3.0), [1.0]
        self.squared = False

    def forward(self, x):
        y = self.norm(self.a(x) * (self.b(x) * 0.5 + self.plain)) * self.factor + self.parts[0]
        return self.c(y * y if self.squared else y)


CHANGES = {
    "a weight": lambda net: net.a.weight.data.mul_(1.01),
    "a weight's least bit": lambda net: net.b.bias.data.copy_(torch.nextafter(net.b.bias.data, torch.tensor(9.0))),
    "memory of a weight": lambda net: net.c.weight.detach().numpy().__setitem__((0, 0), 5.0),
    "a statistic": lambda net: net.norm.running_var.mul_(2),
    "a setting": lambda net: setattr(net, "factor", 3.0),
    "a tensor that is no parameter": lambda net: setattr(net, "plain", torch.tensor(1.0)),
    "an entry of a list": lambda net: net.parts.__setitem__(0, 7.0),
    "what it computes": lambda net: setattr(net, "squared", True),
    "a part": lambda net: setattr(net, "c", nn.Linear(4, 2)),
    "a parameter": lambda net: setattr(net.a, "weight", nn.Parameter(net.a.weight.detach() * 2)),
    "a hook": lambda net: net.a.register_forward_hook(lambda module, given, found: found * 2),
    "the precision": lambda net: net.double(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_module_is_traced_again_if_anything_of_it_changed(name):
    torch.manual_seed(0)
    net = Changing()
    first = pb.polynomial(net, (4,)).graph()
    assert pb.polynomial(net, (4,)).graph() is first  # as long as nothing has changed, it is traced once
    CHANGES[name](net)
    second = pb.polynomial(net, (4,)).graph()
    assert second is not first
    x = torch.randn(5, 4).to(net.b.weight.dtype)
    torch.testing.assert_close(second(x), net.eval()(x))


def test_traces_end_with_their_modules():
    from polybound.models.graphs import trace as traces

    net = Changing()
    pb.polynomial(net, (4,)).graph()
    kept = weakref.ref(net)
    assert net in traces._KNOWN
    del net
    gc.collect()
    assert kept() is None
