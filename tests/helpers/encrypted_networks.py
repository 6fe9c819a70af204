"""Small networks for encrypted inference, and an engine of plain slots as an oracle of packings and layouts."""

import numpy as np
import torch

import polybound as pb
from polybound.deploy.encrypted.engine import Engine


def network(degree=2, rank=4, features=12, classes=3, seed=0, scale=1.0, form="residual"):
    model = pb.CCP(features, rank, classes, degree=degree, form=form, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def graph_network():
    return pb.PolyNet((1, 4, 3), 3, width=2, blocks=(1, 1), seed=0).eval()


def images(features=12, count=5, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, features))


class PlainSlots:
    """An engine of plain vectors of slots: it computes what the server does on ciphertexts, where rotations are np.roll.

    Args:
        slots: their number.
    """

    total = Engine.total

    def __init__(self, slots):
        self.slots = slots

    def nothing(self, *_):
        return np.zeros(self.slots)

    def encode(self, slots, *_):
        return slots if slots.any() else None

    def rotate(self, value, step):
        return np.roll(value, -step)

    def conjugate(self, value):
        return value.conj()

    def times(self, value, plain):
        return value * plain

    def factor(self, value, *_):
        return value.copy()

    def product(self, left, right):
        return left * right

    def add(self, total, value):
        return value if total is None else total + value

    def shift(self, value, slots):
        return value + slots

    def same(self, value, *_):
        return value

    lower = rescaled = scaled = same
