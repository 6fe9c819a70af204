"""Small networks for encrypted inference, and the circuit on plain slots as an oracle of the packing."""

import numpy as np
import torch

import polybound as pb
from polybound.deploy.encrypted import packing


def network(degree=2, rank=4, features=12, classes=3, seed=0, scale=1.0, form="residual"):
    model = pb.CCP(features, rank, classes, degree=degree, form=form, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def images(features=12, count=5, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, features))


def slots_of_logits(layout, polynomial, image):
    """What the server computes, on plain numbers: rotations are np.roll."""
    pixels = packing.pack(layout, image)
    total = np.zeros(layout.slots, dtype=complex)
    for g, partial in reversed(list(enumerate(packing.factor_diagonals(layout, polynomial)))):
        if g < layout.giant - 1:
            total = np.roll(total, -layout.uploads * layout.baby)
        for b, row in enumerate(partial):
            for one, weights in zip(pixels, row, strict=True):
                total = total + np.roll(one, -layout.uploads * b) * weights
    for step in layout.folds:
        total = total + np.roll(total, -step)
    values = (total + total.conj()).real + packing.constants(layout, polynomial)
    for step in layout.tree:
        values = values * np.roll(values, -step)
    logits = np.zeros(layout.slots)
    for g, partial in reversed(list(enumerate(packing.output_diagonals(layout, polynomial)))):
        if g < layout.out_giant - 1:
            logits = np.roll(logits, -layout.out_baby)
        for b, weights in enumerate(partial):
            logits = logits + np.roll(values, -b) * weights
    for step in layout.out_folds:
        logits = logits + np.roll(logits, -step)
    return logits + packing.output_constants(layout, polynomial)
