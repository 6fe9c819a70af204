"""The paper's experiments and the engines that carry them out."""

from polybound.experiments.stack import Plan, Progress, train_together

__all__ = ["Plan", "Progress", "train_together"]
