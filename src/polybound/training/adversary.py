"""The adversary inside Algorithm 2."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.attacks.ball import ball_around
from polybound.attacks.protocol import clip_range
from polybound.seeds import drawn
from polybound.training.engine import Engine, Generators
from polybound.training.recipe import Recipe

__all__ = ["perturb"]


def perturb(
    engine: Engine, x: Tensor, y: Tensor, recipe: Recipe, domain: tuple[float, float], generators: Generators
) -> Tensor:
    """Adversarial examples of each run's own: (E, batch, features) from inputs (groups, batch, features).

        x_adv <- clip(Pi_{||x' - x||_inf <= eps}(x_adv + alpha sign(gradient of the loss at x_adv)))

    FGSM is one such step of size eps. The clip is to the data's domain, or to [0, 1] under the published protocol,
    which moves pixels below 0 by more than eps.
    """
    clean = x.repeat_interleave(engine.runs // len(x), 0)
    ball = ball_around(clean, recipe.eps, "inf", clip_range(recipe.protocol, domain))
    # Where all runs of a group are still at the same point, one forward pass serves them all.
    point, at = clean, x
    if recipe.random_start:
        noise = drawn(torch.rand, generators, engine.runs, clean.shape[1:], clean)
        point = at = ball.inside(noise, noise)
    steps, size = (
        (1, recipe.eps) if recipe.adversary == "fgsm" else (recipe.adversary_steps, recipe.adversary_step_size)
    )
    for _ in range(steps):
        labels = y.repeat_interleave(len(at) // len(y), 0)
        point = at = ball.ascend(point, engine.input_gradient(at, labels), size)
    return point
