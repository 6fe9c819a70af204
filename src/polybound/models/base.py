"""The base of all polynomial networks: stacks of runs, seeds, input shapes, saving."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar, Self, TypedDict

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError, check_int
from polybound.models.factors import Factors, WeightGroup
from polybound.models.graphs.algebras import Numbers
from polybound.models.graphs.graph import Graph, graph_of
from polybound.seeds import check_seed

Config = dict[str, Any]
"""A model's constructor arguments, as JSON can hold them."""


def damping(degree: int) -> float:
    """A factor of the initial weights that keeps every degree from overflowing: `min(1, sqrt(10/k))`.

    A product of k factors `1 + xi`, with xi of variance v, has second moment `(1 + v)^k`. Up to degree 10, the
    highest in the paper, weights are drawn as published; above it v shrinks as 1/k and the moment stays bounded.
    """
    return min(1.0, math.sqrt(10 / degree))


def fill_uniform(target: Tensor, fan_in: int, generator: torch.Generator | None, scale: float = 1.0) -> None:
    """Fill `target` as PyTorch's `Linear` does by default: uniform within `+- scale / sqrt(fan_in)`."""
    limit = scale / fan_in**0.5
    target.uniform_(-limit, limit, generator=generator)


def gather(name: str, tensors: Tensor | Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as one tensor, with a leading dimension that counts them."""
    if isinstance(tensors, Tensor):
        return tensors
    if not tensors or any(tensor.shape != tensors[0].shape for tensor in tensors):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise PolyboundError(f"{name} must be one or more tensors of one shape, got shapes {shapes}")
    return torch.stack(list(tensors))


def with_bias(C: Tensor, bias: Tensor | None) -> Tensor:
    """`[C, bias]`; the bias is zero by default."""
    last = C.new_zeros(len(C)) if bias is None else bias.to(C.dtype)
    if C.ndim != 2 or last.shape != (len(C),):
        shapes = tuple(C.shape), tuple(last.shape)
        raise PolyboundError(f"C must be a matrix with a row for each class and bias a vector, got shapes {shapes}")
    return torch.cat([C, last.unsqueeze(1)], 1)


class ModelOptions(TypedDict, total=False):
    """The keyword arguments that all models share: how many runs, their first weights, and where these live."""

    runs: int | None
    seed: int | Sequence[int] | None
    device: torch.device | str | None
    dtype: torch.dtype | None


class PolynomialNetwork(nn.Module, ABC):
    """The base of `CCP`, `NCP` and `ConvCCP`: a polynomial classifier, or a stack of `runs` independent ones.

    Args:
        shape: shape of one input; `(features,)` for flat ones.
        classes: number of outputs.
        degree: degree of the polynomial.
        runs: None for one model; E for a stack of E models with a leading dimension E on every parameter.
        seed: seed of the initial weights. Run e of a stack takes `seed + e`, or `seed[e]` from a sequence, and is
            then bit-equal to the single model of that seed. None draws from torch's global generator.
        device: where the parameters live.
        dtype: their type.
    """

    has_stacks: ClassVar[bool] = True
    """Whether several runs can be one stack."""

    _arguments: ClassVar[tuple[str, ...]] = ()
    """The attributes that `config` has, in its order."""

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        degree: int,
        runs: int | None = None,
        seed: int | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.shape = tuple(check_int("each size of the input shape", n) for n in shape)
        self.features = math.prod(self.shape)
        self.classes = check_int("classes", classes)
        self.degree = check_int("degree", degree)
        self.runs = None if runs is None else check_int("runs", runs)
        if isinstance(seed, Sequence) and len(seed) != (self.runs or 1):
            raise PolyboundError(f"{len(seed)} seeds for {self.runs or 1} runs")
        for one in seed if isinstance(seed, Sequence) else () if seed is None else (seed,):
            check_seed(one)
        self._seed, self._device, self._dtype = seed, device, dtype

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading dimension of every parameter: `(runs,)` in a stack, else `()`."""
        return () if self.runs is None else (self.runs,)

    @abstractmethod
    def factors(self) -> Factors:
        """The canonical factors of the paper's lemmas, sharing this model's parameters."""

    def graph(self, fused: bool = True) -> Graph:
        """The network as a graph of affine maps, sums and products, sharing this model's parameters.

        Args:
            fused: whether an affine map of an affine map is one, which is what bounds want.
        """
        return graph_of(self.factors(), self.shape, fused)

    @abstractmethod
    def weight_groups(self) -> list[WeightGroup]:
        """The weights as published, as views that a projection may change in place."""

    def config(self) -> Config:
        """The constructor's arguments, without `seed`: `type(model)(**model.config())` is a model of the same shape."""
        values = {name: getattr(self, name) for name in self._arguments}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Logits: (batch, classes), or (runs, batch, classes) of a stack.

        A stack takes inputs shared by its runs, (batch, ...), or one batch for each, (runs, batch, ...).
        """

    @abstractmethod
    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        """Draw the weights of one run, in place."""

    def reset_parameters(self) -> None:
        """Draw the initial weights from the seed that the model was made with."""
        if next(self.parameters()).is_meta:
            return  # a hollow model has no room for weights
        seeds: Sequence[int | None] = [None] * (self.runs or 1)
        if self._seed is not None:
            seeds = self._seed if isinstance(self._seed, Sequence) else [self._seed + e for e in range(len(seeds))]
        weights = {name: parameter.detach() for name, parameter in self.named_parameters()}
        for e, seed in enumerate(seeds):
            own = weights if self.runs is None else {name: weight[e] for name, weight in weights.items()}
            self._initialise(own, None if seed is None else torch.Generator().manual_seed(seed))

    def _parameter(self, *shape: int) -> nn.Parameter:
        """An empty parameter, if the machine can hold it: the system might grant it, and end the process later."""
        shape = *self.lead, *shape
        size = math.prod(shape) * (self._dtype or torch.get_default_dtype()).itemsize
        message = f"a parameter of shape {shape} needs {size / 1e9:,.0f} GB: more than there is"
        try:
            most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):  # not every system says how much memory there is
            most = size
        if torch.device(self._device or "cpu").type == "cpu" and size > most:
            raise PolyboundError(message)
        try:
            return nn.Parameter(torch.empty(*shape, device=self._device, dtype=self._dtype))
        except (RuntimeError, TypeError) as error:
            if size > 2**30:
                raise PolyboundError(message) from error
            raise

    def _flat(self, x: Tensor) -> Tensor:
        """The inputs as (batch, features), or (runs, batch, features) where each run has its own."""
        leads = []
        if tuple(x.shape[-len(self.shape) :]) == self.shape:
            leads.append(x.shape[: -len(self.shape)])
        if x.shape[-1:] == (self.features,):
            leads.append(x.shape[:-1])
        for lead in leads:
            if len(lead) == 1 or (len(lead) == 2 and lead[0] == self.runs):
                return x.reshape(*lead, self.features)
        before = "(batch,)" if self.runs is None else f"(batch,) or ({self.runs}, batch)"
        raise PolyboundError(f"inputs must have shape {before} + {self.shape}, got {tuple(x.shape)}")

    def run(self, index: int) -> Self:
        """Run `index` of a stack as a single model of its own, bit for bit."""
        if self.runs is None or not -self.runs <= index < self.runs:
            of = "single model" if self.runs is None else f"stack of {self.runs}"
            raise PolyboundError(f"no run {index} in a {of}")
        return self._rebuild(None, {name: tensor[index] for name, tensor in self.state_dict().items()})

    @classmethod
    def hollow(cls, config: Config) -> Self:
        """A model of that config without storage, to be filled by `load_state_dict(..., assign=True)`."""
        make: Any = cls
        model: Self = make(**config, device="meta")
        return model

    @classmethod
    def _filled(cls, config: Config, state: dict[str, Tensor]) -> Self:
        """A model of that config with copies of the given weights, of the first one's type, which must fit it."""
        model, (first, *_) = cls.hollow(config), state.values()
        for name, empty in model.state_dict().items():
            if state[name].shape != empty.shape:
                found, wanted = tuple(state[name].shape), tuple(empty.shape)
                raise PolyboundError(f"the weights do not fit together: {name} has shape {found}, not {wanted}")
        if not first.is_floating_point():
            raise PolyboundError("weights must be floating-point tensors")
        copies = {name: tensor.detach().to(first.dtype).clone() for name, tensor in state.items()}
        model.load_state_dict(copies, assign=True)
        return model.requires_grad_()

    def _rebuild(self, runs: int | None, state: dict[str, Tensor]) -> Self:
        model = self.hollow(self.config() | {"runs": runs})
        # Contiguous copies: neither a view that keeps a whole stack alive, nor weights shared with it.
        model.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
        for name, parameter in self.named_parameters():
            model.get_parameter(name).requires_grad_(parameter.requires_grad)
        return model.train(self.training)

    def stored(self) -> PolynomialNetwork:
        """The network as files hold it; a module of a user's own becomes its graph."""
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a safetensors file, its config as JSON in the metadata; `polybound.load` reads it."""
        from polybound.models.files import save

        save(self, path)

    def explain_nonfinite(self, x: Tensor) -> str:
        """Where the values stop being finite for the inputs x, as one clause; empty if they are all finite."""
        for name, parameter in self.named_parameters():
            if bad := int((~torch.isfinite(parameter)).sum()):
                return f"{bad} of {parameter.numel()} values of parameter {name} are not finite"
        x = self._flat(x)
        if not torch.isfinite(x).all():
            return "the input is not finite"
        graph, largest, failed = self.graph(), 0.0, ""

        def watch(number: int, value: Tensor) -> None:
            nonlocal largest, failed
            if not failed and torch.isfinite(value).all():
                largest = max(largest, float(value.abs().max()))
            elif not failed:
                failed = f"the values overflow at {graph.label(number)} (largest value before it {largest:.3g})"

        with torch.no_grad():
            graph.evaluate(Numbers(), x, watch=watch)
        return failed

    def extra_repr(self) -> str:
        """The config, for `repr`."""
        return ", ".join(f"{key}={value!r}" for key, value in self.config().items())


def polynomial(model: object, shape: Sequence[int] | None = None) -> PolynomialNetwork:
    """Any module made of affine maps, sums and products as a polynomial network; it shares the module's parameters.

    Args:
        model: a polynomial network, which is returned as it is, or a `torch.nn.Module` that maps (batch, *shape) to
            (batch, classes); it is traced, and what is no polynomial is refused with its place in the code.
        shape: of one input of such a module.

    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b, self.c = torch.nn.Linear(4, 8), torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
    ...     def forward(self, x):
    ...         return self.c(self.a(x) * self.b(x))
    >>> polynomial(Net(), (4,)).degree
    2
    """
    if isinstance(model, PolynomialNetwork):
        return model
    if isinstance(model, nn.Module) and shape is not None:
        from polybound.models.deep import TracedNetwork

        return TracedNetwork(model, shape)
    what = "needs a polynomial network (pb.CCP, pb.NCP, pb.ConvCCP, pb.PolyNet, a model of pb.load or pb.from_onnx)"
    hint = "; pb.polynomial(module, shape) takes modules" if isinstance(model, nn.Module) else ""
    raise PolyboundError(f"{what}, got {type(model).__name__}{hint}")


def factors_of(model: object) -> Factors:
    """The factors of a polynomial network, or factors themselves."""
    return model if isinstance(model, Factors) else polynomial(model).factors()


def stack(models: Sequence[PolynomialNetwork]) -> PolynomialNetwork:
    """Put models of one architecture together as one stack, bit for bit; stacks among them contribute all their runs.

    >>> import polybound as pb
    >>> models = [pb.CCP(4, 3, 2, degree=2, seed=s) for s in (7, 8)]
    >>> both = pb.stack(models)
    >>> both.runs, bool((both.run(1).V == models[1].V).all())
    (2, True)
    """
    if not models:
        raise PolyboundError("nothing to stack")
    first = polynomial(models[0])
    if not first.has_stacks:
        raise PolyboundError(f"a {type(first).__name__} has no stacks: its runs are trained one by one")
    plan = first.config() | {"runs": None}
    for model in models:
        if type(model) is not type(first) or model.config() | {"runs": None} != plan:
            raise PolyboundError(f"cannot stack different architectures: {first!r} and {model!r}")
    states = [
        {name: tensor if model.runs else tensor.unsqueeze(0) for name, tensor in model.state_dict().items()}
        for model in models
    ]
    joined = {name: torch.cat([state[name] for state in states]) for name in states[0]}
    return first._rebuild(sum(model.runs or 1 for model in models), joined)
