"""Training steps against bare matrix products, plain PyTorch and a DataLoader; losses of derivatives; PN-Conv."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polybound as pb
from polybound.data import Dataset
from polybound.runs import DataSpec, Spec, train_runs
from polybound.training import JacobianPenalty, Recipe, Trainer
from polybound.training import Plain as PlainMethod
from polybound.training.engine import AutogradEngine, Engine, StepRandom, engine_for
from projection_l1 import sorting_projection

BOUNDS = [1e5, 1e3, 100.0, 20.0, 10.0, 5.0, 2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2]
SAMPLES = 6400
BATCH = 64
NOTHING = StepRandom(1, [0], 0, 0)
"""For steps in which nothing is random."""


def interleaved(*sides: Callable[[], object], repetitions: int = 7) -> list[float]:
    """Median seconds of each side, all measured in turns."""
    times: list[list[float]] = [[] for _ in sides]
    for repetition in range(repetitions + 1):
        for side, run in enumerate(sides):
            begin = time.perf_counter()
            run()
            if repetition:
                times[side].append(time.perf_counter() - begin)
    return [median(side) for side in times]


def synthetic() -> Dataset:
    """Noise in the shape of Fashion-MNIST: speed does not depend on what the pixels are."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(SAMPLES, 1, 28, 28, generator=generator) - 1
    y = torch.randint(10, (SAMPLES,), generator=generator)
    return Dataset("noise", "train", x, y, tuple("0123456789"))


def row(name: str, ours: float, reference: float, goal: float, lower: bool = False) -> dict[str, Any]:
    ratio = ours / reference if lower else reference / ours
    met = ratio <= goal if lower else ratio >= goal
    return {"name": name, "ours": 1e6 * ours, "reference": 1e6 * reference, "ratio": ratio, "goal": goal, "met": met}


class Bare:
    """The two matrix products that no training step of a stack can do without, on tensors of the same sizes."""

    def __init__(self, degree: int, data: Dataset) -> None:
        rank = pb.models.paper_rank(f"pn-{degree}")
        self.weight = torch.randn(len(BOUNDS) * degree * rank, 784) * 0.03
        self.gradient = torch.randn(len(self.weight), BATCH)
        self.x = data.x.flatten(1)

    def epoch(self) -> None:
        for x in self.x.split(BATCH):
            torch.mm(self.weight, x.t())
            self.weight.addmm_(self.gradient, x, alpha=-1e-9)


class Plain(nn.Module):
    """PN-k as one writes it: separate Linear layers and autograd."""

    def __init__(self, degree: int) -> None:
        super().__init__()
        rank = pb.models.paper_rank(f"pn-{degree}")
        self.V = nn.ModuleList(nn.Linear(784, rank, bias=False) for _ in range(degree))
        self.C = nn.Linear(rank, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.V[0](x)
        for layer in self.V[1:]:
            y = layer(x) * y + y
        return self.C(y)


def plain_epoch(model: Plain, batches: Callable[[], Any], bound: float) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.001)
    for step, (x, y) in enumerate(batches(), 1):
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 10 == 0:
            for layer in (*model.V, model.C):
                layer.weight.data = sorting_projection(layer.weight.data, bound)


def indexed(data: Dataset) -> Callable[[], Any]:
    x = data.x.flatten(1)

    def batches() -> Any:
        order = torch.randperm(len(x))
        return ((x[i], data.y[i]) for i in order.split(BATCH))

    return batches


class PerSample(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples as image data sets give them: bytes, converted and normalised one by one."""

    def __init__(self, data: Dataset) -> None:
        self.pixels = ((data.x + 1) * 127.5).round().to(torch.uint8).numpy()
        self.labels = data.y.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.pixels[index]).float().div(255)
        return image.sub(0.5).div(0.5).flatten(), self.labels[index]


def one_epoch(trainer: Trainer) -> None:
    """The first epoch, once more."""
    trainer.epoch = 0
    trainer.run(1)


def stacked_rows(degree: int, data: Dataset) -> list[dict[str, Any]]:
    model = pb.paper_model(f"pn-{degree}", runs=len(BOUNDS), seed=[0] * len(BOUNDS))
    recipe = Recipe.from_options(method="projection", bound=BOUNDS, start=0)
    trainer = Trainer(model, data, recipe, [0] * len(BOUNDS))
    unconstrained = Trainer(model, data, Recipe(), [0] * len(BOUNDS))
    bare, plain = Bare(degree, data), Plain(degree)
    one_by_one = indexed(data)

    ours, free, products, autograd = interleaved(
        partial(one_epoch, trainer),
        partial(one_epoch, unconstrained),
        bare.epoch,
        lambda: plain_epoch(plain, one_by_one, 1.0),
    )
    share = SAMPLES / BATCH * len(BOUNDS)
    name = f"PN-{degree}, per run and step"
    return [
        row(f"{name}: stack of 14 / bare matrix products (lower is better)", free / share, products / share, 1.6, True),
        row(f"{name}: stack of 14, against plain autograd", ours / share, autograd / (SAMPLES / BATCH), 4.0),
    ]


def optimiser_rows(degree: int, data: Dataset) -> list[dict[str, Any]]:
    """An epoch of a stack and of one model by AdamW, against plain SGD."""
    found = []
    for runs in (len(BOUNDS), 1):
        model = pb.paper_model(f"pn-{degree}", runs=runs, seed=[0] * runs)
        adamw, plain = (
            Trainer(model, data, Recipe.from_options(optimiser=name, learning_rate=1e-9), [0] * runs)
            for name in ("adamw", "sgd")
        )
        times = interleaved(partial(one_epoch, adamw), partial(one_epoch, plain))
        what = f"PN-{degree}, per run and step: {f'stack of {runs}' if runs > 1 else 'one model'}"
        share = SAMPLES / BATCH * runs
        found.append(row(f"{what}, AdamW / SGD (lower is better)", *(time / share for time in times), 1.5, True))
    return found


def curve_row(data: Dataset) -> dict[str, Any]:
    """All of `polybound train` but loading the data: half of the epochs before the first projection, and all files.

    Measured on 2 and on 4 epochs, and scaled to 100: what is done once, such as making folders, counts once. There are
    half as many samples as in Fashion-MNIST, so that what is done once an epoch, like a checkpoint, is in proportion.
    """
    data = replace(data, x=data.x.repeat(5, 1, 1, 1), y=data.y.repeat(5))
    plain, loader = Plain(4), torch.utils.data.DataLoader(PerSample(data), batch_size=BATCH, shuffle=True)

    def curve(epochs: int) -> None:
        recipes = [
            Recipe.from_options(method="projection", epochs=epochs, start=epochs // 2, bound=bound) for bound in BOUNDS
        ]
        with TemporaryDirectory() as folder:
            specs = [Spec(DataSpec("noise", data.digest), recipe=recipe) for recipe in recipes]
            train_runs(specs, Path(folder), data=data)

    short, long, one_epoch = interleaved(
        lambda: curve(2), lambda: curve(4), lambda: plain_epoch(plain, lambda: loader, 1.0), repetitions=3
    )
    name = "PN-4: 100 epochs of the 14-bound curve, against one by one through a DataLoader"
    return row(name, short + 98 / 2 * (long - short), len(BOUNDS) * 100 * one_epoch, 30.0)


class BareConvolutions:
    """The two matrix products of each factor of PN-Conv that no step can do without: kernels by unfolded images.

    Eight images at a time, which is when they are fastest: images, factors and gradients then stay in the cache.
    """

    def __init__(self, runs: int, shape: tuple[int, int, int], images: int = 8) -> None:
        inputs, height, width = shape
        self.parts = BATCH // images
        self.products = []
        for stride, size in ((1, 9), (1, 9), (2, 10), (4, 12)):
            unfolded = torch.randn(inputs * size**2, height * width // stride**2 * images)
            factor = torch.randn(16 * runs, unfolded.shape[1])
            self.products.append((unfolded, factor, *torch.zeros(2, len(unfolded), 16 * runs)))

    def step(self) -> None:
        for _ in range(self.parts):
            for unfolded, factor, kernel, gradient in self.products:
                torch.mm(kernel.t(), unfolded, out=factor)
                gradient.addmm_(unfolded, factor.t())


def convolution_rows(name: str, shape: tuple[int, int, int], runs: int) -> list[dict[str, Any]]:
    """Steps of a stack of PN-Conv and of one: against its bare products, and against its layers under autograd."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(1, BATCH, prod(shape), generator=generator) - 1
    y = torch.randint(10, (1, BATCH), generator=generator)
    stack = engine_for(pb.paper_model("pn-conv", shape, runs=runs, seed=[0] * runs))
    alone = engine_for(pb.paper_model("pn-conv", shape, seed=0))
    layers = AutogradEngine(pb.paper_model("pn-conv", shape, seed=0), PlainMethod())
    bare = BareConvolutions(runs, shape)

    def layered() -> None:
        by_layers = {"apply": lambda model, x, *weights: model._by_layers(x, *weights)}
        with mock.patch.multiple("polybound.models.conv._ByHand", **by_layers):
            layers.step_(x, y, 1e-3, NOTHING)

    stacked, one, products, autograd = interleaved(
        lambda: stack.step_(x, y, 1e-3, NOTHING), lambda: alone.step_(x, y, 1e-3, NOTHING), bare.step, layered
    )
    each = stacked / runs
    found = [
        row(
            f"{name}, per run: stack of {runs} / bare matrix products (lower is better)",
            each,
            products / runs,
            1.4,
            True,
        )
    ]
    if shape[0] == 1:
        found += [
            row(f"{name}, per run: stack of {runs}, against layer by layer", each, autograd, 10.0),
            row(f"{name}: one model, against layer by layer", one, autograd, 7.0),
        ]
    return found


def nested_row(data: Dataset) -> dict[str, Any]:
    """A step of a stack of NCP-4 that has the matrices of small bounds, all but zero, in half of its runs."""
    engine = engine_for(pb.paper_model("ncp-4", runs=len(BOUNDS), seed=[0] * len(BOUNDS)))
    with torch.no_grad():
        engine.model.S[::2, ..., :-1] *= 1e-20
    bare, labels = Bare(4, data), data.y.unsqueeze(0)
    x = bare.x.unsqueeze(0)

    def epoch() -> None:
        for part, y in zip(x.split(BATCH, 1), labels.split(BATCH, 1), strict=True):
            engine.step_(part, y, 1e-9, NOTHING)

    times = [seconds / (SAMPLES / BATCH * len(BOUNDS)) for seconds in interleaved(epoch, bare.epoch)]
    return row("NCP-4, per run and step: stack of 14 / bare matrix products (lower is better)", *times, 1.5, True)


def derivative_row(label: str, data: Dataset, goal: float) -> dict[str, Any]:
    """A step with the Jacobian penalty, by the closed form and by autograd."""
    x, y = data.x[:BATCH].flatten(1).unsqueeze(0), data.y[:BATCH].unsqueeze(0)
    engines = [
        engine(pb.paper_model(label.lower(), seed=0), JacobianPenalty()) for engine in (engine_for, AutogradEngine)
    ]
    count = 2 if label == "PN-Conv" else 10

    def steps(engine: Engine) -> None:
        for _ in range(count):
            engine.step_(x, y, 1e-3, StepRandom(1, [0], 0, 0))

    times = [
        seconds / count for seconds in interleaved(*(partial(steps, engine) for engine in engines), repetitions=15)
    ]
    return row(f"{label}, a step with the Jacobian penalty, against autograd", *times, goal)


def fitted_row(data: Dataset) -> dict[str, Any]:
    """A step once the data is fitted, and products with the gradients by most logits would be subnormal."""
    x, y = data.x[:BATCH].flatten(1).unsqueeze(0), torch.zeros(1, BATCH, dtype=torch.long)
    engines = [engine_for(pb.paper_model("pn-10", seed=0)) for _ in range(2)]
    with torch.no_grad():
        engines[0].model.C[0, -1] = 80.0  # the bias of the label

    def steps(engine: Engine) -> None:
        for _ in range(20):
            engine.step_(x, y, 1e-9, NOTHING)

    fitted, fresh = interleaved(*(partial(steps, engine) for engine in engines), repetitions=15)
    return row("PN-10: a step on fitted / on new data (lower is better)", fitted / 20, fresh / 20, 1.1, True)


def rows() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    data = synthetic()
    return [
        *stacked_rows(4, data),
        *optimiser_rows(4, data),
        curve_row(data),
        *stacked_rows(10, data),
        *optimiser_rows(10, data),
        fitted_row(data),
        derivative_row("PN-4", data, 1.5),
        derivative_row("PN-Conv", data, 3.0),
        nested_row(data),
        *convolution_rows("PN-Conv, a step", (1, 28, 28), 9),
        *convolution_rows("PN-Conv for CIFAR-10, a step", (3, 32, 32), 4),
    ]
