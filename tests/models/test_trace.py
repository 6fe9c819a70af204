"""Modules in plain PyTorch, as people write them, and what is refused."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import polybound as pb
from polybound.errors import PolyboundError
from polybound.models import Product, trace


class Sequential(nn.Sequential):
    shape = (1, 8, 8)

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            Square(),
            nn.BatchNorm2d(4),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        )


class Square(nn.Module):
    def forward(self, x):
        return torch.square(x)


class Functional(nn.Module):
    shape = (6,)

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(5, 6))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return F.linear(x, self.first, self.bias) * F.linear(x, self.second) + 2


class Einsum(nn.Module):
    shape = (4, 3)

    def __init__(self):
        super().__init__()
        self.kernel, self.out = nn.Parameter(torch.randn(3, 5, 4)), nn.Parameter(torch.randn(5, 2))

    def forward(self, x):
        y = torch.einsum("btc,cot->bo", x, self.kernel)
        return torch.einsum("bo,ok->bk", y * y, self.out)


class Powers(nn.Module):
    shape = (4,)

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = self.inner(x)
        return self.outer(y**3 - 0.5 * y**2 + torch.pow(y, 1) / 3 - 1)


class Nested(nn.Module):
    shape = (2, 6, 6)

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Residual(4), Residual(4)])
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Sequential(nn.BatchNorm2d(4)))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(-1, -2)))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.b = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        a = self.a(x)
        return x + self.norm(a * self.b(x) + a)


class Buffers(nn.Module):
    shape = (5,)

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("order", torch.tensor([4, 0, 2]))
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        x = (x - self.mean) / 0.25
        return x[:, self.order] * x.flip(1)[:, ::2] * self.weight


class Grouped(nn.Module):
    shape = (4, 9)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3, groups=2, dilation=2, padding=2)
        self.up = nn.ConvTranspose1d(6, 2, 4, stride=2, padding=1)

    def forward(self, x):
        y = self.conv(x)
        y = torch.addcmul(y, y, y, value=0.5)
        return self.up(y).flatten(1).reshape(x.shape[0], 2, -1).sum(-1)


class Volumes(nn.Module):
    shape = (1, 4, 4, 4)

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv3d(1, 3, 3, padding="same"), nn.Linear(24, 2)

    def forward(self, x):
        return self.head(F.avg_pool3d(self.conv(x) * x, 2).view(len(x), -1))


class Shuffled(nn.Module):
    """Concatenation, padding, up-sampling, chunks, pixel shuffle, in place."""

    shape = (4, 4, 4)

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(6, 2, 3), nn.LazyLinear(3)
        self.head(torch.zeros(1, 8))

    def forward(self, x):
        one, other = x.chunk(2, dim=1)
        x = torch.cat([one * other, x], 1)
        x = F.pad(F.interpolate(F.avg_pool2d(x, 2), scale_factor=2), (0, 1, 1, 0))
        x = F.avg_pool2d(self.conv(x), 3, stride=1, padding=1, count_include_pad=False)
        x = F.pixel_shuffle(torch.stack([x, x], 2).flatten(1, 2)[:, :, :2, :2], 2)
        x *= x
        x.add_(1.0)
        return self.head(x.permute(0, 2, 3, 1).contiguous().view(x.size(0), -1)[:, :8])


class Attention(nn.Module):
    """Linear attention: a product of two matrices of values."""

    shape = (3, 4)

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 2, bias=False) for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        mixed = self.query(x) @ (self.key(x).transpose(1, 2) @ self.value(x)) / 3
        return self.head(mixed.flatten(1))


class PiNet(nn.Module):
    """The product of polynomials of Pi-nets: CCP recursions, the output of one the input of the next."""

    shape = (1, 6, 6)

    def __init__(self, width=5, degree=3):
        super().__init__()
        self.sizes = [36, width, width]
        self.U = nn.ModuleList(nn.ModuleList(nn.Linear(n, width) for _ in range(degree)) for n in (36, width))
        self.C = nn.ModuleList(nn.Linear(width, n) for n in (width, 3))

    def forward(self, z):
        z = z.flatten(1)
        for maps, out in zip(self.U, self.C, strict=True):
            x = maps[0](z)
            for layer in maps[1:]:
                x = layer(z) * x + x
            z = out(x)
        return z


class RPolyNet(nn.Module):
    """A block of R-PolyNets: normalised factors, `x_n = (A z) * (S x + B) / rank + x`, here with its batch norms."""

    shape = (2, 6, 6)

    def __init__(self, width=4):
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.A = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.S = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(width, 3)

    def forward(self, z):
        z = x = self.stem(z)
        for n, (a, s) in enumerate(zip(self.A, self.S, strict=True)):
            x = self.norms[2 * n](a(z)) * self.norms[2 * n + 1](s(x)) * self.gain + x
        return self.head(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1))


class MONet(nn.Module):
    """A block of MONet without its layer norm: a Mu-layer on tokens with a spatial shift, products of two branches."""

    shape = (4, 4, 4)

    def __init__(self, width=4, rank=3):
        super().__init__()
        self.A, self.B, self.D = nn.Linear(width, rank), nn.Linear(width, 2), nn.Linear(2, rank)
        self.C = nn.Linear(rank, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        tokens = x.permute(0, 2, 3, 1)
        shifted = torch.cat([torch.roll(tokens[..., :2], 1, dims=1), tokens[..., 2:]], -1)
        a = self.A(shifted)
        tokens = tokens + self.C(a * self.D(self.B(tokens)) + a)
        return self.head(tokens.mean((1, 2)))


class CryptoNets(nn.Module):
    """The square network of CryptoNets."""

    shape = (1, 12, 12)

    def __init__(self):
        super().__init__()
        self.conv, self.dense, self.out = nn.Conv2d(1, 5, 5, stride=2, padding=2), nn.Linear(180, 20), nn.Linear(20, 10)

    def forward(self, x):
        x = self.conv(x).square()
        x = self.dense(x.flatten(1)).square()
        return self.out(x)


GOOD = [
    *(Sequential, Functional, Einsum, Powers, Nested, Buffers, Grouped, Volumes, Shuffled, Attention),
    *(PiNet, RPolyNet, MONet, CryptoNets),
]


def filled(kind):
    torch.manual_seed(1)
    module = kind()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return module


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("fused", [True, False])
def test_a_graph_is_its_module(kind, fused):
    module = filled(kind)
    graph = trace(module, kind.shape, fused)
    assert module.training
    assert any(isinstance(node, Product) for node in graph.nodes)
    x = torch.randn(7, *kind.shape)
    torch.testing.assert_close(graph(x), module.eval()(x), rtol=1e-4, atol=1e-4)
    double = module.double().eval()(x.double())
    torch.testing.assert_close(trace(module, kind.shape, fused)(x.double()), double, rtol=1e-9, atol=1e-9)


def test_weights_are_shared():
    module = filled(CryptoNets)
    graph, x = trace(module, (1, 12, 12)), torch.randn(2, 1, 12, 12)
    with torch.no_grad():
        module.conv.weight.mul_(2)
        module.out.weight.zero_()
    torch.testing.assert_close(graph(x), module(x))


def test_origins_name_the_module_and_the_line():
    graph = trace(filled(Nested), Nested.shape)
    origins = [node.origin for node in graph.nodes if isinstance(node, Product)]
    line = Residual.forward.__code__.co_firstlineno + 2
    assert origins == [f"blocks.0.forward, line {line}", f"blocks.1.forward, line {line}"]


class Refused(nn.Module):
    def __init__(self, forward, shape=(4,)):
        super().__init__()
        self.layer, self.shape, self.calls = nn.Linear(4, 4), shape, forward

    def forward(self, x):
        return self.calls(self, x)


class Recurrent(nn.Module):
    shape = (4,)

    def __init__(self):
        super().__init__()
        self.unit = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        return self.unit(x.unsqueeze(1))[0][:, 0]


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
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_polynomial_is_refused_with_its_place(what):
    forward, message = BAD[what]
    module = Refused(forward)
    with pytest.raises(PolyboundError, match=message) as caught:
        trace(module, (4,))
    assert "\n" not in str(caught.value)
    assert module.training and not torch.nn.modules.module._global_forward_pre_hooks


def test_recurrent_layers_are_refused():
    with pytest.raises(PolyboundError):
        trace(Recurrent(), (4,))


def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(
        PolyboundError, match=r"a product of matrices .n, 5. and .4, 4. in layer.*: their shapes do not fit"
    ):
        trace(Refused(lambda m, x: m.layer(x)), (5,))


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


def change_hook(net):
    net.a.register_forward_hook(lambda module, given, found: found * 2)


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
    "a hook": change_hook,
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
