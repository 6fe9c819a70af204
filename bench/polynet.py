"""PolyNet beside the same network with ReLU in the place of products: accuracy, and what a step and a trace cost.

    python bench/polynet.py train cifar10 --seed 0
    python bench/polynet.py train cifar10 --seed 0 --relu
    python bench/polynet.py train cifar10 --held-out 5000   # judged by the last training images, to choose options by
    python bench/polynet.py ship cifar10                    # the network of seed 0 as an example, in float16
    python bench/polynet.py table                           # of all trainings, and docs/images/polynet-cifar10.png

A training ends in `polynet.json` beside this file, and in a file of weights in `--folder`. One that was stopped goes on
after its last whole epoch. Accuracies are those of the float32 network on all test images after each epoch; the last
epoch counts, none is chosen. Steps are in bfloat16. Minutes are those of CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import polybound as pb
from polybound.models import ProductBlock
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.training import Callback, Recipe, Trainer

NETWORKS: dict[str, dict[str, Any]] = {
    "cifar10": {"width": 16, "blocks": (1, 1, 2, 1), "epochs": 40, "augment": "flip, crop-4"},
    "fashion-mnist": {"width": 16, "blocks": (1, 2, 2), "epochs": 12, "augment": "flip, crop-2"},
    "mnist": {"width": 8, "blocks": (0, 1, 1, 1), "epochs": 8, "augment": "crop-2"},
}
"""What is trained on each data set, chosen by the last 5,000 training images of CIFAR-10."""
RESULTS = Path(__file__).with_name("polynet.json")


def with_relu(network: pb.PolyNet) -> pb.PolyNet:
    """The network with blocks `relu(x + norm(relu(a(x)) + b(x)))`: the same maps, ReLU in the place of products."""

    def forward(self: ProductBlock, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(F.relu(self.a(x)) + self.b(x)))

    for module in network.modules():
        if isinstance(module, ProductBlock):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    return network


def recipe(dataset: str, epochs: int) -> Recipe:
    return Recipe.from_options(
        optimiser="muon",
        weight_decay=0.1,
        schedule="one-cycle",
        rise=0.2,
        epochs=epochs,
        batch_size=256,
        label_smoothing=0.1,
        augment=NETWORKS[dataset]["augment"],
        precision="bfloat16",
    )


class Watch(Callback):
    """Accuracy after each epoch, and a checkpoint to go on from."""

    def __init__(self, test: pb.Dataset, file: Path) -> None:
        self.test, self.file, self.lines = test, file, list[dict[str, float]]()
        self.clock = time.process_time()

    def resume(self, trainer: Trainer) -> None:
        if not self.file.exists():
            return
        with safe_open(self.file, "pt") as file:
            self.lines = json.loads(file.metadata()["lines"])
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        trainer.model.load_state_dict({name[2:]: one for name, one in kept.items() if name.startswith("w ")})
        trainer.descent.load({name[2:]: one for name, one in kept.items() if name.startswith("m ")})
        trainer.epoch = len(self.lines)
        self.clock -= self.lines[-1]["seconds"]

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        seconds = time.process_time() - self.clock
        trainer.model.eval()
        accuracy = 100 * float(pb.accuracy(trainer.model, self.test))
        trainer.model.train()
        self.clock += time.process_time() - self.clock - seconds  # judging is not training
        line = {"epoch": trainer.epoch, "loss": float(losses), "accuracy": accuracy, "seconds": seconds}
        self.lines.append(line)
        print(json.dumps(line), flush=True)
        tensors = {f"w {name}": tensor for name, tensor in trainer.model.state_dict().items()}
        tensors |= {f"m {name}": tensor for name, tensor in trainer.descent.tensors().items()}
        part = self.file.with_suffix(".part")
        save_file({name: one.contiguous() for name, one in tensors.items()}, part, {"lines": json.dumps(self.lines)})
        part.replace(self.file)


def train(options: argparse.Namespace) -> None:
    plan = NETWORKS[options.dataset]
    width = options.width or plan["width"]
    data, test = pb.data.load(options.dataset, "train"), pb.data.load(options.dataset, "test")
    if options.held_out:
        cut = len(data) - options.held_out
        data, test = (replace(data, x=data.x[part], y=data.y[part]) for part in (slice(cut), slice(cut, None)))
    network = pb.PolyNet(data.shape, data.classes, width, plan["blocks"], seed=options.seed)
    if options.relu:
        with_relu(network)
    name = f"{options.dataset}-{'relu' if options.relu else 'product'}-{options.seed}"
    name += f"-width-{options.width}" * bool(options.width)
    options.folder.mkdir(parents=True, exist_ok=True)
    epochs = options.epochs or plan["epochs"]
    watch = Watch(test, options.folder / f"{name}.checkpoint")
    trainer = Trainer(network, data, recipe(options.dataset, epochs), [options.seed], [watch])
    watch.resume(trainer)
    trainer.run()
    if not options.relu:
        network.eval().save(options.folder / f"{name}.safetensors")
    if not options.held_out and not options.width:
        keep(name, trainer.recipe, network, watch.lines)


def keep(name: str, used: Recipe, network: pb.PolyNet, lines: list[dict[str, float]]) -> None:
    """Add a training to the results, in the place of an earlier one of the same name."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[name] = {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "degree": network.degree,
        "recipe": used.as_dict(),
        "minutes": lines[-1]["seconds"] / 60,
        "accuracy": [round(line["accuracy"], 2) for line in lines],
    }
    RESULTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def ship(options: argparse.Namespace) -> None:
    """Write the network of seed 0 to the package, and where it comes from beside it."""
    name, dataset = f"{options.dataset}-polynet", options.dataset
    trained = pb.load(options.folder / f"{dataset}-product-0.safetensors")
    file = Path(pb.__file__).parent / "models" / "trained" / f"{name}.safetensors"
    pb.load(options.folder / f"{dataset}-product-0.safetensors").half().save(file)
    shipped, test = pb.load(file).float().eval(), pb.data.load(dataset, "test")
    pairs = zip(trained.parameters(), shipped.parameters(), strict=True)
    with torch.no_grad():
        correct = torch.cat([shipped(x).argmax(1) for x in test.x.split(500)]) == test.y
    plan = NETWORKS[dataset]
    model = ModelSpec("polynet", parameters={"width": plan["width"], "blocks": plan["blocks"]})
    origin = {
        "command": f"python bench/polynet.py train {dataset} --seed 0",
        "file": f"build/polynet/{dataset}-product-0.safetensors",
        "difference": max(float((one - other).detach().abs().max()) for one, other in pairs),
        "note": f"In float16, which is the difference. {int(correct.sum())} of {len(test)} test images are classified"
        f" correctly, {int(correct[:200].sum())} of the first 200.",
        "spec": Spec(DataSpec.of(dataset), model, recipe(dataset, plan["epochs"]), 0).as_dict(),
    }
    file.with_suffix(".json").write_text(json.dumps(origin, indent=1) + "\n")
    print(origin["note"])


def table() -> None:
    """Print the table of the docs, and draw accuracy over epochs on CIFAR-10."""
    import matplotlib.pyplot as plt

    kept = json.loads(RESULTS.read_text())
    print("| data | blocks | seed | parameters | epochs | minutes | accuracy |\n| --- " + "| --- " * 6 + "|")
    for name, one in kept.items():
        dataset, kind, seed = name.rsplit("-", 2)
        cells = dataset, kind, seed, f"{one['parameters']:,}", len(one["accuracy"]), f"{one['minutes']:.1f}"
        print("|", " | ".join(map(str, cells)), f"| {one['accuracy'][-1]:.2f} % |")
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, one in kept.items():
        if name.startswith("cifar10-"):
            _, kind, seed = name.rsplit("-", 2)
            style: dict[str, Any] = {"color": "C1" if kind == "relu" else "C0", "ls": "--" if seed != "0" else "-"}
            label = f"{'ReLU' if kind == 'relu' else 'products'}, seed {seed}: {one['accuracy'][-1]:.1f} %"
            axes.plot(range(1, len(one["accuracy"]) + 1), one["accuracy"], label=label, **style)
    axes.set(xlabel="epoch", ylabel="accuracy on CIFAR-10's test images, %", ylim=(50, 92))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "polynet-cifar10.png", dpi=150)


# Ratios, for `make bench`.

REPETITIONS = 9


class Block(nn.Module):
    """A product block as one writes it in plain PyTorch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.b = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return x + self.norm(a * self.b(x) + a)  # type: ignore[no-any-return]


def by_hand(x: Tensor, y: Tensor) -> Any:
    """A step of the same network in plain PyTorch."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), Block(16)]
    for channels, count in ((32, 1), (64, 2), (128, 1)):
        layers += [nn.AvgPool2d(2), nn.Conv2d(channels // 2, channels, 1, bias=False)]
        layers += [Block(channels) for _ in range(count)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    x = x.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.003, weight_decay=0.01)

    def step() -> None:
        loss = F.cross_entropy(network(x), y, label_smoothing=0.1)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def by_fit(network: pb.PolyNet, x: Tensor, y: Tensor) -> Any:
    """A step of `fit`: an epoch of one batch."""
    own = Recipe.from_options(
        optimiser="adamw", learning_rate=0.003, label_smoothing=0.1, epochs=10_000, batch_size=len(x)
    )
    trainer = Trainer(network, pb.training.training_set(network, x, y, loss=own.loss), own, [0])
    return lambda: trainer.run(trainer.epoch + 1)


def rows() -> list[dict[str, object]]:
    torch.set_num_threads(1)
    plan = NETWORKS["cifar10"]
    x, y = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
    network = pb.PolyNet((3, 32, 32), 10, plan["width"], plan["blocks"], seed=0)
    steps = [by_fit(network, x, y), by_hand(x, y)]
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(REPETITIONS + 1):
        for side, step in enumerate(steps):
            begin = time.perf_counter()
            step()
            if repetition:
                times[side].append(time.perf_counter() - begin)
    network.eval().graph()  # the first trace of a process also pays for what PyTorch sets up once
    traces = []
    for seed in range(REPETITIONS):
        fresh = pb.PolyNet((3, 32, 32), 10, plan["width"], plan["blocks"], seed=seed).eval()  # others are remembered
        begin = time.perf_counter()
        fresh.graph()
        traces.append(time.perf_counter() - begin)
    ours, reference = (1e6 * median(side) for side in times)
    return [
        {
            "name": "training step of a PolyNet for CIFAR-10, fit / plain PyTorch (lower is better)",
            "ours": ours,
            "reference": reference,
            "ratio": ours / reference,
            "goal": 1.1,
            "met": ours / reference <= 1.1,
        },
        {
            "name": "trace of a PolyNet for CIFAR-10 / one second (lower is better)",
            "ours": 1e6 * median(traces),
            "reference": 1e6,
            "ratio": median(traces),
            "goal": 1.0,
            "met": median(traces) <= 1.0,
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("train")
    one.add_argument("dataset", choices=NETWORKS)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--relu", action="store_true")
    one.add_argument("--epochs", type=int, default=0)
    one.add_argument("--held-out", type=int, default=0)
    one.add_argument("--width", type=int, default=0, help="another one, which the results leave out")
    two = commands.add_parser("ship")
    two.add_argument("dataset", choices=NETWORKS)
    for each in (one, two):
        each.add_argument("--folder", type=Path, default=Path("build/polynet"))
    commands.add_parser("table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "table":
        table()
    else:
        {"train": train, "ship": ship}[options.command](options)


if __name__ == "__main__":
    main()
