"""Training loops."""

from polybound.training.loop import accuracy, fit

__all__ = ["accuracy", "fit"]
