"""Deep polynomial networks: any module of affine maps, sums and products, and one that is good at images.

A network of these is told by its graph, which is traced from its `forward` in evaluation mode; what trains it is
autograd. Normalisation by batch statistics is affine once its statistics are fixed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from polybound.errors import PolyboundError, check_int
from polybound.models.affine import Conv
from polybound.models.base import Config, ModelOptions, PolynomialNetwork
from polybound.models.factors import Factors, WeightGroup
from polybound.models.graphs.files import graph_from_spec, graph_spec
from polybound.models.graphs.graph import Applied, Graph
from polybound.models.graphs.maps import Convolution
from polybound.models.graphs.trace import trace


class Norm(nn.Module):
    """Batch normalisation of channels; in evaluation mode the affine map of its running statistics.

    Args:
        channels: the second dimension of its inputs.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean: Tensor
        self.var: Tensor
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin again."""
        for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.mean, 0.0), (self.var, 1.0)):
            tensor.fill_(value)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, self.training)


class ProductBlock(nn.Module):
    """`x + norm(a(x) * b(x) + a(x))` with two 3x3 convolutions a and b, or two matrices: a product with a skip.

    The block starts as the map `x + norm(a(x))`, b being small.

    Args:
        channels: of its input and its output.
        image: whether a and b are convolutions.
    """

    def __init__(self, channels: int, image: bool = True) -> None:
        super().__init__()
        make = partial(nn.Conv2d, kernel_size=3, padding=1) if image else nn.Linear
        self.a, self.b = make(channels, channels, bias=False), make(channels, channels)
        self.norm = Norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return x + self.norm(a * self.b(x) + a)  # type: ignore[no-any-return]


def quadratic(x: Tensor, scale: Tensor, shift: Tensor, bias: Tensor) -> Tensor:
    """`scale (x + shift)^2 + bias`; what is no tensor, as a box, may have a rule of its own for it."""
    if has_torch_function_unary(x):
        return handle_torch_function(quadratic, (x,), x, scale, shift, bias)
    return (x + shift).square() * scale + bias


class Quadratic(nn.Module):
    """One learned square per channel, `scale (x + shift)^2 + bias`, or `depth` of them after one another.

    As initialised, two of them are `((x + 2)^2 / 4)^2 / 2`: flat on one side, rising on the other. A `step` is, for
    `u = (x + 1) / 2`, first `1 - (1 - u)^2`, then `u^2`, and so on in turn: a smooth step from (-1, 0) to (1, 1), which
    takes whatever is near to its ends closer to them, boxes as well.

    Args:
        channels: the second dimension of its inputs.
        depth: how many squares.
        step: whether it begins as a step.
    """

    def __init__(self, channels: int, depth: int = 2, step: bool = False) -> None:
        super().__init__()
        self.step = step
        self.scale, self.shift, self.bias = (nn.Parameter(torch.empty(depth, channels)) for _ in range(3))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin again."""
        for n in range(len(self.scale)):
            first, last, odd = n == 0, n == len(self.scale) - 1, n % 2
            if self.step:
                values = (1.0, 0.0, 0.0) if odd else (-0.25 if first else -1.0, -1.0, 1.0)
            else:
                values = (0.5 if last else 0.25, 2.0 if first else 0.0, 0.0)
            for parameter, value in zip((self.scale, self.shift, self.bias), values, strict=True):
                parameter[n] = value

    def forward(self, x: Tensor) -> Tensor:
        sides = (-1, *(1,) * (x.ndim - 2))
        for scale, shift, bias in zip(self.scale, self.shift, self.bias, strict=True):
            x = quadratic(x, scale.reshape(sides), shift.reshape(sides), bias.reshape(sides))
        return x


class DeepNetwork(PolynomialNetwork):
    """A polynomial network that is told by its graph, and trained by autograd.

    Its weights start uniform, of variance `1 / (2 fan_in)`. Maps that a product multiplies by have half of that
    standard deviation, so that the products start small.

    Args:
        shape: of one input.
        classes: number of outputs.
        **options: `seed`, `device` and `dtype`; see `PolynomialNetwork`. It has no stacks.
    """

    has_stacks = False

    _gates: tuple[str, ...] = (".b.weight",)
    """Ends of the names of such maps' weights."""

    def __init__(self, shape: Sequence[int], classes: int, **options: Unpack[ModelOptions]) -> None:
        if options.get("runs") is not None:
            raise PolyboundError(f"a {type(self).__name__} has no stacks: its runs are trained one by one")
        super().__init__(shape, classes, 1, **options)

    def _place(self) -> torch.device:
        """Where new parameters go: in `with self._place():`."""
        return torch.device(self._device or "cpu")

    def _finish(self) -> None:
        """Draw the first weights, in the type that was asked for."""
        if self._dtype is not None:
            self.to(self._dtype)
        self.reset_parameters()

    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        for name, weight in weights.items():
            if weight.ndim >= 2:
                limit = (1.5 / weight[0].numel()) ** 0.5 * (0.5 if name.endswith(self._gates) else 1.0)
                weight.uniform_(-limit, limit, generator=generator)
            else:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in self._arguments or ("shape", "classes", "degree")]
        return f"{type(self).__name__}({', '.join(parts)})"

    def graph(self, fused: bool = True) -> Graph:
        """The network in evaluation mode, as a graph that shares its weights."""
        return trace(self._forward_module(), self.shape, fused)

    def _forward_module(self) -> nn.Module:
        """The module that the graph is traced from."""
        return self

    def factors(self) -> Factors:
        """The factors, if the graph is one chain of products."""
        factors = self.graph().chain()
        if factors is None:
            raise PolyboundError(
                f"a {type(self).__name__} is no single chain of products: this takes CCP, NCP, ConvCCP and what is one"
            )
        return factors

    def weight_groups(self) -> list[WeightGroup]:
        """Every matrix and kernel, by the name of its parameter, each with its bias; the scales of normalisations."""
        parameters = dict(self.named_parameters())
        deviations = {}
        for name, part in self.named_modules():
            var = part.var if isinstance(part, Norm) else getattr(part, "running_var", None)
            if isinstance(part, Norm | nn.modules.batchnorm._BatchNorm) and var is not None:
                deviations[f"{name}.weight"] = (var.double() + getattr(part, "eps", 1e-5)).sqrt()
        found = []
        for name, weight in parameters.items():
            if name in deviations:
                scale = 1.0 / deviations[name].reshape(1, -1, 1)
                found.append(WeightGroup((name,), weight.reshape(1, -1, 1), scale=scale))
            elif weight.ndim >= 2:
                bias = parameters.get(f"{name.removesuffix('weight')}bias")
                fits = bias is not None and bias.shape == weight.shape[:1]
                found.append(
                    WeightGroup(
                        (name,),
                        weight.unsqueeze(0),
                        bias.unsqueeze(0) if bias is not None and fits else None,
                        (0.0,),
                        dims=weight.ndim - 2,
                    )
                )
        return found

    def image_sizes(self) -> dict[str, tuple[int, ...]]:
        """For each kernel of plain convolutions, by the name of its parameter, the sizes of the image it runs over.

        Kernels with groups or dilation, of transposed convolutions, and of images of several sizes are not among them.
        """
        names = {(weight.data_ptr(), weight.shape): name for name, weight in self.named_parameters()}
        found: dict[str, set[tuple[int, ...]]] = {}
        for node in self.graph(fused=False).nodes:
            step = node.map if isinstance(node, Applied) else None
            plain = isinstance(step, Convolution) and step.groups == 1 and {*step.dilation} == {1}
            if isinstance(step, Conv | Convolution):
                name = names.get((step.weight.data_ptr(), step.weight.shape))
                if name is not None:
                    fits = isinstance(step, Conv) or (plain and not step.transposed)
                    found.setdefault(name, set()).add(tuple(step.shape[1:]) if fits else ())
        return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1 and () not in sizes}


class TracedNetwork(DeepNetwork):
    """A user's own module as a polynomial network: `pb.polynomial(module, shape)`.

    Args:
        module: maps (batch, *shape) to (batch, classes) by affine maps, sums and products; its parameters are shared.
        shape: of one input.
    """

    def __init__(self, module: nn.Module, shape: Sequence[int]) -> None:
        graph = trace(module, shape)
        super().__init__(shape, graph.classes)
        self.module, self.degree, self.training = module, graph.degree, module.training

    def _forward_module(self) -> nn.Module:
        return self.module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self._flat(x).reshape(-1, *self.shape))  # type: ignore[no-any-return]

    def config(self) -> Config:
        return self.stored().config()

    def extra_repr(self) -> str:
        return f"shape={self.shape}, classes={self.classes}, degree={self.degree}"

    def stored(self) -> GraphNetwork:
        """The network as files hold it: its graph, with copies of the weights and without the module's code."""
        return GraphNetwork.of(trace(self.module, self.shape, fused=False))

    def _initialise(self, *_: object) -> None:
        raise PolyboundError("a module of your own draws its own weights")

    def _rebuild(self, runs: int | None, state: dict[str, Tensor]) -> TracedNetwork:
        del runs
        other = copy.deepcopy(self)
        other.load_state_dict(state)
        return other


class GraphNetwork(DeepNetwork):
    """A graph as a network of its own: what files hold of a module that is nobody's class.

    Args:
        graph: what `graph_spec` says of it; `GraphNetwork.of(graph)` is the usual way.
        device: where the parameters live.
        dtype: their type.
    """

    def __init__(
        self, graph: Config, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        nodes, tensors = graph.get("nodes"), graph.get("tensors")
        if not isinstance(nodes, list) or not nodes or not isinstance(nodes[0], dict) or not isinstance(tensors, dict):
            raise PolyboundError("a graph needs nodes, the input first, and tensors")
        super().__init__(nodes[0].get("input", ()), 1)
        self.spec = graph
        for name, (shape, floating) in tensors.items():
            kind = (dtype or torch.get_default_dtype()) if floating else torch.int64
            empty = torch.empty(shape, device=device, dtype=kind)
            if floating:
                self.register_parameter(f"t{name}", nn.Parameter(empty))
            else:
                self.register_buffer(f"t{name}", empty)

    @classmethod
    def of(cls, graph: Graph) -> GraphNetwork:
        """A network of a graph, with copies of its weights."""
        spec, tensors = graph_spec(graph)
        network = cls(spec, device="meta")
        network.load_state_dict({f"t{name}": t.detach().clone() for name, t in tensors.items()}, assign=True)
        return network.requires_grad_().settled()

    def settled(self) -> GraphNetwork:
        """The network, now that it has its weights: its graph is checked."""
        graph = self.graph()
        self.shape, self.classes, self.degree = graph.shape, graph.classes, graph.degree
        return self

    def graph(self, fused: bool = True) -> Graph:
        del fused  # the maps are those of its file
        tensors = {name[1:]: tensor for name, tensor in (*self.named_parameters(), *self.named_buffers())}
        floating = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
        like = (floating[0].detach() if floating else torch.zeros(())).new_zeros(())
        return graph_from_spec(self.spec, tensors, like)

    def config(self) -> Config:
        return {"graph": self.spec}

    extra_repr = TracedNetwork.extra_repr

    def _initialise(self, *_: object) -> None:
        raise PolyboundError("a graph has the weights that it was made with")

    def forward(self, x: Tensor) -> Tensor:
        return self.graph()(self._flat(x))


class PolyNet(DeepNetwork):
    """A residual product network for images: a stem, product blocks with average pooling between them, a linear head.

    The width doubles with every pooling. Each block multiplies the degree by two. With `blocks` that begin with 0 the
    blocks see images of half the size, which takes a quarter of the time and costs accuracy.

    Args:
        shape: (channels, height, width) of the input.
        classes: number of outputs.
        width: channels of the first blocks.
        blocks: how many product blocks there are before each pooling and at the end.
        **options: see `DeepNetwork`.

    >>> import torch, polybound as pb
    >>> net = pb.PolyNet((1, 28, 28), width=8, blocks=(1, 1), seed=0)
    >>> net(torch.zeros(2, 1, 28, 28)).shape, net.degree
    (torch.Size([2, 10]), 4)
    """

    _arguments = ("shape", "classes", "width", "blocks")

    def __init__(
        self,
        shape: Sequence[int],
        classes: int = 10,
        width: int = 32,
        blocks: Sequence[int] = (1, 1, 1),
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(shape, classes, **options)
        self.width = check_int("width", width)
        self.blocks = tuple(check_int("blocks", count, 0) for count in blocks)
        if len(self.shape) != 3 or min(self.shape[1:]) < 2 ** (len(self.blocks) - 1):
            poolings = len(self.blocks) - 1
            raise PolyboundError(
                f"PolyNet takes images (channels, height, width) to pool {poolings} times, got {self.shape}"
            )
        if not 1 <= sum(self.blocks) <= 20:
            raise PolyboundError(f"PolyNet takes from 1 to 20 blocks, got {sum(self.blocks)}")
        self.degree = 2 ** sum(self.blocks)
        with self._place():
            layers: list[nn.Module] = [nn.Conv2d(self.shape[0], width, 3, padding=1, bias=False), Norm(width)]
            channels = width
            for stage, count in enumerate(self.blocks):
                if stage > 0:
                    layers += [nn.AvgPool2d(2), nn.Conv2d(channels, 2 * channels, 1, bias=False)]
                    channels *= 2
                layers += [ProductBlock(channels) for _ in range(count)]
            self.body, self.head = nn.Sequential(*layers), nn.Linear(channels, classes)
        self._finish()

    def forward(self, x: Tensor) -> Tensor:
        x = self._flat(x).reshape(-1, *self.shape).contiguous(memory_format=torch.channels_last)  # faster on CPUs
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]
