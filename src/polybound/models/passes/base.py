"""What all passes by hand can do: forward and backward, for E runs, without a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

LogitGradient = Callable[[Tensor, slice, slice], Tensor]
"""A loss by its derivative: from logits (runs, classes, samples), and which runs and samples these are."""

Pairs = list[tuple[Tensor, Tensor]]
"""Parameters with their gradients."""


class ManualGradients(ABC):
    """The passes of E runs (E = 1 for a single model), for inputs of shape (groups, batch, features).

    The runs of a stack lie in `groups` of equal size, one after another; the runs of a group share their inputs. Call
    `logits`, then any of the others: they use what `logits` left behind. `descend_` and `gradients_of` need no call
    before them. Tensors have units before samples, (E, classes, batch), as the matrix products make them.
    """

    runs: int
    batch: int | None = None
    """How many samples are best taken at a time, where it matters."""
    frozen: bool = False

    def freeze(self, frozen: bool) -> None:
        """Cache values derived from the parameters until `freeze(False)`."""
        self.frozen = frozen

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Logits (E, classes, batch) of inputs (groups, batch, features)."""

    @abstractmethod
    def input_gradient(self, d: Tensor) -> Tensor:
        """The gradient of each run by its inputs, (E, batch, features), from the logits' gradient d."""

    @abstractmethod
    def gradients_of(self, x: Tensor, logit_grad: LogitGradient) -> Pairs:
        """Every parameter with its gradient, for a loss that may be called for some runs and samples at a time.

        The next call may overwrite the gradients.
        """

    def descend_(self, x: Tensor, logit_grad: LogitGradient, rate: float, decay: float = 0.0) -> None:
        """A step of gradient descent, in place: `w <- (1 - rate * decay) w - rate * gradient`."""
        for parameter, gradient in self.gradients_of(x, logit_grad):
            parameter.mul_(1.0 - rate * decay).sub_(gradient, alpha=rate)


class JacobianGradients(ManualGradients):
    """Gradients of losses that depend on the derivatives by the inputs as well, such as a penalty on them."""

    @abstractmethod
    def rows(self, v: Tensor) -> Tensor:
        """`v^T J(x)`, (E, D, batch, features), for D directions v of every input's logits, (E, D, classes, batch)."""

    @abstractmethod
    def gradients_by_rows(self, d: Tensor, r: Tensor) -> Pairs:
        """As `gradients_of`, for a loss whose gradient is d by the logits and r by the `rows` before this."""

    def update_by_rows_(self, d: Tensor, r: Tensor, rate: float, decay: float = 0.0) -> None:
        """As `descend_`, for such a loss."""
        for parameter, gradient in self.gradients_by_rows(d, r):
            parameter.mul_(1.0 - rate * decay).sub_(gradient, alpha=rate)
