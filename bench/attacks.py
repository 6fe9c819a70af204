"""PGD on a PN-4 and 10,000 images: against torchattacks, foolbox and bare matrix products; on a stack of 14."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import polybound as pb
from polybound.data import Dataset
from training import BOUNDS, interleaved, row, synthetic

STEPS, BATCH = 20, 250
NOTE = "PN-4, 10,000 images, PGD of 20 steps"


def images() -> Dataset:
    """Noise in the shape of Fashion-MNIST, 10,000 of it: speed does not depend on what the pixels are."""
    data = synthetic()
    x, y = torch.cat([data.x, data.x])[:10000], torch.cat([data.y, data.y])[:10000]
    return Dataset("noise", "test", x, y, data.class_names)


class Scaled(nn.Module):
    """The model for images in [0, 1], which is all that torchattacks knows."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(2 * x - 1)


def bare(x: Tensor) -> None:
    """The two matrix products of every step, on tensors of the same sizes."""
    weight = torch.randn(64, 784) * 0.03
    gradient = torch.randn(64, 320)
    for batch in x.flatten(1).split(320):
        for _ in range(STEPS):
            torch.mm(weight, batch.t())
            torch.mm(gradient[:, : len(batch)].t(), weight)


def convolution_row(torchattacks: Any) -> dict[str, Any]:
    """PN-Conv under attack; torchattacks goes through the same model's closed form, under autograd."""
    data = images()
    x, y = data.x[:BATCH], data.y[:BATCH]
    model = pb.paper_model("pn-conv", seed=0).eval()
    attack = pb.PGD(0.1, STEPS, 0.01)
    theirs = torchattacks.PGD(Scaled(model), eps=0.05, alpha=0.005, steps=STEPS)
    ours, judged = interleaved(
        lambda: attack(model, x, y, domain=(-1, 1)), lambda: theirs((x + 1) / 2, y), repetitions=3
    )
    return row("PN-Conv, 250 images, PGD of 20 steps, against torchattacks", ours, judged, 2.0)


def rows() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox
        import torchattacks

    data = images()
    model = pb.paper_model("pn-4", seed=0).eval()
    stack = pb.paper_model("pn-4", runs=len(BOUNDS), seed=0).eval()
    attack = pb.PGD(0.1, STEPS, 0.01)
    unit = ((data.x + 1) / 2).split(BATCH)
    theirs = torchattacks.PGD(Scaled(model), eps=0.05, alpha=0.005, steps=STEPS)
    other = foolbox.attacks.LinfPGD(abs_stepsize=0.01, steps=STEPS)
    wrapped = foolbox.PyTorchModel(model, bounds=(-1, 1))
    part = data.x[:1280], data.y[:1280]

    def foolbox_pgd() -> None:
        for x, y in zip(data.x.split(BATCH), data.y.split(BATCH), strict=True):
            other(wrapped, x, y, epsilons=0.1)

    ours, judged, fooled, products, stacked, alone = interleaved(
        lambda: attack(model, data.x, data.y, domain=(-1, 1)),
        lambda: [theirs(x, y) for x, y in zip(unit, data.y.split(BATCH), strict=True)],
        foolbox_pgd,
        lambda: bare(data.x),
        lambda: attack(stack, *part, domain=(-1, 1)),
        lambda: attack(model, *part, domain=(-1, 1)),
        repetitions=5,
    )
    return [
        row(f"{NOTE}, against torchattacks", ours, judged, 1.5),
        row(f"{NOTE}, against foolbox", ours, fooled, 2.0),
        row(f"{NOTE} / bare matrix products (lower is better)", ours, products, 1.5, True),
        row("PN-4, PGD of 20 steps, per model of a stack of 14, against one model", stacked / len(BOUNDS), alone, 1.0),
        convolution_row(torchattacks),
    ]
