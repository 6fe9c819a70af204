"""The steps of an optimiser on a model's parameters, with all that it remembers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polybound.models import PolynomialNetwork
from polybound.training.optimisers import SGD, Optimiser

__all__ = ["Descent"]


class Descent:
    """Steps of an optimiser, for a model or for all runs of a stack.

    What is remembered has a name and the shape of a parameter, so that engines that see the parameters differently
    share it.

    Attributes:
        steps: how many were made.
    """

    def __init__(self, model: PolynomialNetwork, optimiser: Optimiser) -> None:
        self.optimiser, self.steps, self._runs = optimiser, 0, model.runs or 1
        # Closed forms hand out views of parameters; they are known by where they lie.
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.numel()}
        self._names = {parameter.data_ptr(): name for name, parameter in named.items()}
        self._memory = [
            {name: torch.zeros_like(parameter, requires_grad=False) for name, parameter in named.items()}
            for _ in optimiser.remembers
        ]

    @property
    def plain(self) -> bool:
        """Whether it is plain SGD, whose steps engines fuse with the gradients."""
        return type(self.optimiser) is SGD

    def step_(self, pairs: Sequence[tuple[Tensor, Tensor]], rate: float, decay: float) -> None:
        """Make a step, in place, along the gradients of a mean loss plus `decay ||w||^2 / 2`.

        Args:
            pairs: every parameter, or a view of all of it, and its gradient.
            rate: the present learning rate.
            decay: weight of the penalty, which is the method's; an optimiser's own decay comes on top.
        """
        self.steps += 1
        pairs = [pair for pair in pairs if pair[0].numel()]  # an NCP of degree 1 has no matrices in between
        weights = [weight.detach() for weight, _ in pairs]
        # A fused kernel goes through memory, whatever the strides: autograd's gradients may lie otherwise than weights.
        gradients = [gradient.contiguous() for _, gradient in pairs]
        if decay:
            gradients = [gradient.add(weight, alpha=decay) for weight, gradient in zip(weights, gradients, strict=True)]
        names = [self._names[weight.data_ptr()] for weight in weights]
        memory = [
            [kept[name].view_as(weight) for name, weight in zip(names, weights, strict=True)] for kept in self._memory
        ]
        # Fused kernels round the last few numbers of a tensor otherwise than the rest. So each run has tensors of its
        # own: its weights are the same to the bit alone and anywhere in a stack.
        kept = [self._by_run(tensors) for tensors in memory]
        self.optimiser.update_(self._by_run(weights), self._by_run(gradients), kept, rate, self.steps)

    def _by_run(self, tensors: list[Tensor]) -> list[Tensor]:
        """Each tensor as one for each run."""
        if self._runs == 1:
            return tensors
        return [part for tensor in tensors for part in tensor.view(self._runs, -1).unbind()]

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered, by name; empty for plain SGD."""
        if self.plain:
            return {}
        found = {
            f"{what} {name}": tensor
            for what, kept in zip(self.optimiser.remembers, self._memory, strict=True)
            for name, tensor in kept.items()
        }
        return found | {"steps": torch.tensor(self.steps)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what another descent remembered."""
        if self.plain or not tensors:
            return
        self.steps = int(tensors["steps"])
        for name, tensor in self.tensors().items():
            if name != "steps":
                tensor.copy_(tensors[name])

    def forget(self, run: int | None) -> None:
        """Forget all about a run of the stack, or about the model: its weights were set anew."""
        for kept in self._memory:
            for tensor in kept.values():
                (tensor if run is None else tensor[run]).zero_()
