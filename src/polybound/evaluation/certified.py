"""Certified accuracy: what no attack within a ball can bring the accuracy below."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from polybound.certificates import certify
from polybound.data import Dataset
from polybound.errors import PolyboundError
from polybound.evaluation.score import Score
from polybound.models import PolynomialNetwork

__all__ = ["certified_column", "certified_scores"]

BUDGET = 1.0
"""Seconds of branch and bound for an image; what is undecided after that does not count as certified."""


def certified_column(eps: float) -> tuple[str, str]:
    """What the certified accuracy at a radius is called, and its protocol: perturbations stay in the data's domain.

    >>> certified_column(0.05)
    ('certified-0.05', 'sound')
    """
    return f"certified-{eps:g}", "sound"


def certified_scores(
    model: nn.Module, data: Dataset, eps: float, *, total: int, names: Sequence[str], seed: int = 0
) -> list[Score]:
    """The certified accuracy of each run of a model, on the first `total` inputs."""
    if not isinstance(model, PolynomialNetwork):
        raise PolyboundError(f"{type(model).__name__} is no polynomial network: only those have certificates")
    x, y = data.x[:total], data.y[:total]
    totals = torch.bincount(y, minlength=data.classes)
    scores = []
    for run, name in enumerate(names):
        single = model if model.runs is None else model.run(run)
        found = certify(single, x, y, eps, domain=data.domain, budget=BUDGET).status
        verified = torch.tensor([word == "verified" for word in found])
        counts = torch.bincount(y[verified], minlength=data.classes)
        scores.append(Score.of(name, certified_column(eps), seed, counts, counts, totals))
    return scores
