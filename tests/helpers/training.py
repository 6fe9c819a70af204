"""Small trainings that several tests share."""

import pytest
import torch

import polybound as pb
from polybound.training import Callback, Trainer


def digits(samples):
    return pb.data.load_digits("train").subset(samples)


def weights_of(model):
    """All weights of a model as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class _StopAfter(Callback):
    """Interrupts a training after a number of steps; one that is asked to stop would project once more."""

    def __init__(self, steps):
        self.left = steps

    def after_step(self, trainer):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def in_one_go_and_in_two(make, data, recipe, seeds, steps):
    """Two models: one trained in one go, one interrupted after some steps and trained on by another trainer."""
    whole, half, resumed = make(), make(), make()
    Trainer(whole, data, recipe, seeds).run()
    first = Trainer(half, data, recipe, seeds, [_StopAfter(steps)])
    with pytest.raises(KeyboardInterrupt):
        first.run()
    resumed.load_state_dict(half.state_dict())
    second = Trainer(resumed, data, recipe, seeds)
    second.epoch, second.step, second.sums = first.epoch, first.step, first.sums
    second.descent.load(first.descent.tensors())
    second.run()
    return whole, resumed
