"""The paper's experiments and the engines that carry them out."""

from polybound.experiments.plan import Plan
from polybound.experiments.stack import Progress, interrupted, train_together

__all__ = ["Plan", "Progress", "interrupted", "train_together"]
