"""Gradient masking: robust only against those who follow the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from polybound.attacks import Attack, RandomSearch, Square
from polybound.data import Dataset
from polybound.evaluation.measure import Measuring

__all__ = ["masking_notes"]

QUERIES = 300
TRIES = 20


def masking_notes(
    networks: Sequence[tuple[Sequence[str], nn.Module]],
    data: Dataset,
    attacks: Sequence[Attack],
    wanted: Sequence[str],
    count: int,
    seed: int = 0,
) -> list[str]:
    """One line for each run and ball in which black-box attacks break more images than gradient attacks do.

    A gradient attack sees all that a black-box attack sees, and more. If it is the weaker one all the same, gradients
    are zero, or point nowhere, and its robust accuracy says nothing. Compared are, for each ball and protocol, the
    images robust against its gradient attacks, and those robust against random corners and the square attack.

    Args:
        networks: what is attacked, classifiers or stacks of them, behind their denoisers; each with its runs' names.
        data: the images.
        attacks: the attacks to judge.
        wanted: the protocols to judge them under.
        count: on how many of the first images to look.
        seed: of all attacks.
    """
    judged = [attack for attack in attacks if attack.uses_gradients and not attack.only_sound]
    balls: dict[tuple[float, str, str], list[Attack]] = {}
    for attack in judged:
        for protocol in wanted:
            balls.setdefault((attack.eps, attack.norm, protocol), []).append(attack)
    notes = []
    for names, model in networks:
        measuring = Measuring(model, data, count, seed=seed)
        for (eps, norm, protocol), mine in balls.items():
            seeing = _robust(measuring, mine, protocol)
            blind = _robust(measuring, _blackbox(eps, norm), protocol)
            for run, name in enumerate(names):
                missed = int((seeing[run] & ~blind[run]).sum())
                missing = int((blind[run] & ~seeing[run]).sum())
                # McNemar's test: by chance alone the two differ by the root of their sum.
                if missed - missing > 2 * sqrt(missed + missing):
                    kinds = ", ".join(attack.name for attack in mine)
                    notes.append(
                        f"{name}: gradient masking? Within eps {eps:.4g} ({norm}, {protocol}) black-box attacks leave "
                        f"{int(blind[run].sum())} of {count} images robust, {kinds} {int(seeing[run].sum())}"
                    )
    if balls and not notes:
        notes.append(
            f"no sign of gradient masking: on the first {count} images no black-box attack ({TRIES} random points, "
            f"{QUERIES} queries of the square attack) is stronger than the gradient attacks in its ball"
        )
    return notes


def _blackbox(eps: float, norm: str) -> list[Attack]:
    attacks: list[Attack] = [RandomSearch(eps, TRIES, norm=norm)]
    return [*attacks, Square(eps, QUERIES)] if norm == "inf" else attacks


def _robust(measuring: Measuring, attacks: Sequence[Attack], protocol: str) -> Tensor:
    """Which of the images are right as they are and under all attacks, (runs, n)."""
    y = measuring.data.y[: measuring.total]
    return torch.stack([measuring.clean() == y, *(measuring.attacked(a, protocol) == y for a in attacks)]).all(0)
