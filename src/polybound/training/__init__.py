"""Training: the paper's Algorithms 1 and 2 and its baselines, for one model or for a stack of runs."""

from polybound.training.recipe import METHODS, Recipe
from polybound.training.trainer import Trainer, accuracy, fit

__all__ = ["METHODS", "Recipe", "Trainer", "accuracy", "fit"]
