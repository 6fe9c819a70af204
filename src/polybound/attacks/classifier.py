"""Any classifier, or stack of classifiers, as the attacks see it: logits, and gradients by the input."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from polybound.attacks.ball import repeat_for_runs
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork, closed_form, has_closed_form


class Classifier:
    """A classifier for flat inputs of shape (G, n, d): one batch for each of G groups of neighbouring runs.

    G is 1, the number of runs E, or a divisor of it.

    Logits come as (E, classes, n), units before samples, as the closed forms of polynomial networks make them. CCP,
    NCP and PN-Conv go through those; everything else goes through autograd. By `with`, the model is in evaluation
    mode, its weights are taken not to change, and afterwards it is as it was. Elsewhere the weights are those that the
    model has at the time of a call.

    Args:
        model: a module that maps (n, *shape) to (n, classes); with an attribute `runs` of E also to (E, n, classes).
        shape: of one input.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        runs = getattr(model, "runs", None)
        self.model, self.shape = model, shape
        self.stacked = isinstance(runs, int) and not isinstance(runs, bool)
        self.runs: int = runs if self.stacked and isinstance(runs, int) else 1
        like = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.dtype = None if like is None else like.dtype
        self.device = torch.device("cpu") if like is None else like.device
        if isinstance(model, PolynomialNetwork) and math.prod(shape) != model.features:
            raise PolyboundError(f"inputs must have shape {model.shape}, got {shape}")
        polynomial = isinstance(model, PolynomialNetwork) and has_closed_form(model)
        self.form = closed_form(model) if polynomial else None  # type: ignore[arg-type]

    def __enter__(self) -> Classifier:
        self._was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        if self.form is not None:
            self.form.freeze(True)
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._was_training:
            module.training = True
        if self.form is not None:
            self.form.freeze(False)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Logits (E, classes, n) of inputs (G, n, d)."""
        x = self._cast(x)
        if self.form is not None:
            return self.form.logits(x)
        return self._forward(x)

    def gradient(self, x: Tensor, logit_grad: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Logits, and the gradient by the input, (E, n, d), of a loss that is given by its gradient by the logits.

        `logit_grad` maps logits to that gradient, both (E, classes, n); it must not change its argument.
        """
        cast = self._cast(x)
        if self.form is not None:
            with torch.no_grad():
                logits = self.form.logits(cast)
                return logits, self.form.input_gradient(logit_grad(logits)).to(x.dtype)
        # A gradient for each run: where runs share an input, each needs a copy of it.
        leaf = cast.detach().repeat_interleave(self.runs // len(cast), 0).requires_grad_()
        with torch.enable_grad():
            logits = self._forward(leaf)
            if not logits.requires_grad:
                return logits.detach(), torch.zeros_like(leaf).to(x.dtype)
        (gradient,) = torch.autograd.grad(logits, leaf, logit_grad(logits.detach()), allow_unused=True)
        found = torch.zeros_like(leaf) if gradient is None else gradient
        return logits.detach(), found.to(x.dtype)

    def alone(self, run: int) -> Callable[[Tensor], Tensor]:
        """One run as other libraries want a classifier: (n, d) to (n, classes), through autograd."""
        if self.stacked and isinstance(self.model, PolynomialNetwork):
            single = Classifier(self.model.run(run), self.shape)
            return lambda x: single._forward(single._cast(x).unsqueeze(0))[0].transpose(0, 1)
        return lambda x: self._forward(self._cast(x).unsqueeze(0))[run].transpose(0, 1)

    def correct(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether each run classifies each input right, (E, n); an output that is not finite is never right."""
        return is_correct(self.logits(x), y)

    def _cast(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else x.to(self.dtype)

    def _forward(self, x: Tensor) -> Tensor:
        x = repeat_for_runs(x, self.runs)
        lead = x.shape[:2] if self.stacked and len(x) == self.runs else x.shape[1:2]
        try:
            logits = self.model(x.reshape(*lead, *self.shape))
        except PolyboundError:
            raise
        except RuntimeError as error:
            raise PolyboundError(f"the model does not take inputs of shape {self.shape}: {error}") from error
        if not isinstance(logits, Tensor) or logits.shape[-2:-1] != x.shape[1:2]:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise PolyboundError(f"a classifier must give (samples, classes), got {shape} for {x.shape[1]} samples")
        return logits.reshape(self.runs, x.shape[1], logits.shape[-1]).transpose(1, 2)


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """Whether the largest logit is the label's, (E, n), for logits (E, classes, n) and labels (n,) or (E, n)."""
    return (logits.argmax(1) == y) & torch.isfinite(logits).all(1)
