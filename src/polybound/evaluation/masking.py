"""Gradient masking: robust only against those who follow the gradient."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polybound.attacks import Attack, RandomSearch, Square
from polybound.attacks.classifier import Classifier, right
from polybound.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["masking_notes"]

QUERIES = 300
TRIES = 20


def masking_notes(
    model: nn.Module, data: Dataset, robust: dict[tuple[Attack, str], Tensor], names: Sequence[str], seed: int
) -> list[str]:
    """One line for each run and ball in which black-box attacks break more images than gradient attacks do.

    A gradient attack sees all that a black-box attack sees, and more. If it is the weaker one all the same, gradients
    are zero, or point nowhere, and its robust accuracy says nothing. Compared are, for each ball and protocol, the
    images robust against its gradient attacks, and those robust against random corners and the square attack.

    Args:
        model: what was attacked.
        data: the images, in the order they were attacked in.
        robust: for each attack and protocol, which of the first images were robust, (runs, n).
        names: of the runs.
        seed: of the black-box attacks.
    """
    balls: dict[tuple[float, str, str], list[tuple[Attack, Tensor]]] = {}
    for (attack, protocol), hits in robust.items():
        if attack.uses_gradients and not attack.only_sound:
            balls.setdefault((attack.eps, attack.norm, protocol), []).append((attack, hits))
    notes, n = [], 0
    for (eps, norm, protocol), attacked in balls.items():
        gradient = torch.stack([hits for _, hits in attacked]).all(0)
        n = gradient.shape[1]
        blind = _blackbox(model, data, eps, norm, protocol, n, seed)
        for run, name in enumerate(names):
            missed = int((gradient[run] & ~blind[run]).sum())
            missing = int((blind[run] & ~gradient[run]).sum())
            # McNemar's test: by chance alone the two differ by the root of their sum.
            if missed - missing > 2 * sqrt(missed + missing):
                kinds = ", ".join(attack.name for attack, _ in attacked)
                notes.append(
                    f"{name}: gradient masking? Within eps {eps:.4g} ({norm}, {protocol}) black-box attacks leave "
                    f"{int(blind[run].sum())} of {n} images robust, {kinds} {int(gradient[run].sum())}"
                )
    if balls and not notes:
        notes.append(
            f"no sign of gradient masking: on the first {n} images no black-box attack ({TRIES} random points, "
            f"{QUERIES} queries of the square attack) is stronger than the gradient attacks in its ball"
        )
    return notes


def _blackbox(model: nn.Module, data: Dataset, eps: float, norm: str, protocol: str, n: int, seed: int) -> Tensor:
    """Which of the first n images are robust against all black-box attacks, (runs, n)."""
    attacks: list[Attack] = [RandomSearch(eps, TRIES, norm=norm)]
    if norm == "inf":
        attacks.append(Square(eps, QUERIES))
    x, y = data.x[:n], data.y[:n]
    with Classifier(model, data.shape) as victim:
        flat = x.flatten(1).unsqueeze(0).to(victim.device)
        standing = right(victim.logits(flat).cpu(), y)
        for attack in attacks:
            found = attack(model, x, y, domain=data.domain, protocol=protocol, seed=seed)
            found = found.reshape(victim.runs, n, -1).to(victim.device)
            standing &= right(victim.logits(found).cpu(), y)
    return standing
