"""The table of larger networks in docs/certificates.md: what is decided, in how much CPU time and memory.

    python bench/certify_large.py pn-10 --images 200
    python bench/certify_large.py vpn --images 1000
    python bench/certify_large.py pn-conv --images 100 --weights runs/NAME/model.safetensors
    python bench/certify_large.py pn-conv-cifar --images 50 --data-dir DIR

`pn-10` (degree 10, rank 64) and `vpn` (degree 4, rank 100) are trained on MNIST in [0, 1] by the recipes of
`certify_mnist.py`. The two convolutional ones are the paper's PN-Conv with 16 channels on Fashion-MNIST and CIFAR-10 in
[-1, 1]; without `--weights` they are trained here for one epoch, by AdamW. Radii are in the units of the data: of
CIFAR-10, 2/255 of [-1, 1] are 1/255 of [0, 1]. Times are CPU time of this process on one thread, divided by the number
of images; the memory is the most that the process ever held, torch and the data included. Every row is appended to
`certify-large.jsonl` in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import polybound as pb
from certify_mnist import trained, unit
from polybound.certificates import PreparedNetwork
from polybound.data import Dataset


@dataclass(frozen=True)
class Case:
    """A network and the radii that it is asked about."""

    dataset: str
    eps: tuple[float, ...]
    recipe: str | None  # of certify_mnist.py; None for PN-Conv


CASES = {
    "pn-10": Case("mnist", (0.02, 0.026), "ccp10-64"),
    "vpn": Case("mnist", (0.05,), "ccp4-88"),
    "pn-conv": Case("fashion-mnist", (0.01, 0.02), None),
    "pn-conv-cifar": Case("cifar10", (2 / 255, 4 / 255), None),
}


def train_convolutional(data: Dataset, seed: int = 0, rate: float = 2e-3, batch: int = 64) -> pb.PolynomialNetwork:
    """PN-Conv after one epoch of AdamW on images that are flipped at random."""
    model = pb.paper_model("pn-conv", shape=data.shape, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    steps = len(data.x) // batch - 1
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.2)
    order = torch.randperm(len(data.x), generator=generator)
    for step in range(steps):
        chosen = order[step * batch : (step + 1) * batch]
        flip = torch.rand(batch, 1, 1, 1, generator=generator) < 0.5
        x = torch.where(flip, data.x[chosen], data.x[chosen].flip(-1))
        loss = F.cross_entropy(model(x), data.y[chosen])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model


def network(name: str, options: argparse.Namespace) -> pb.PolynomialNetwork:
    """The network of a case, from its file or trained."""
    case = CASES[name]
    if options.weights is not None:
        return pb.load(options.weights)
    if case.recipe is not None:
        return trained(case.recipe, options.folder, options.data_dir)
    file = options.folder / f"{name}.safetensors"
    if not file.exists():
        train_convolutional(pb.data.load(case.dataset, "train", data_dir=options.data_dir)).save(file)
    return pb.load(file)


def measure(
    name: str, net: PreparedNetwork, data: Dataset, eps: float, options: argparse.Namespace
) -> dict[str, object]:
    """One row: counts, and CPU time an image."""
    some = slice(options.start, options.start + options.images)
    x, y = data.x[some], data.y[some]
    begun = time.process_time()
    found = pb.certify(net, x, y, eps, domain=data.domain, method=options.method, budget=options.budget)
    spent = time.process_time() - begun
    correct = len(x) - found.stage.count("clean")
    row = {"network": name, "eps": eps, "images": len(x), "start": options.start, "correct": correct}
    row |= {"verified": found.count("verified"), "falsified": found.count("falsified") - (len(x) - correct)}
    row |= {"undecided": found.count("undecided"), "cpu seconds": spent, "cpu ms": 1000 * spent / len(x)}
    row |= {"method": options.method, "budget": options.budget, "rungs": found.summary()["rungs"]}
    left = {options.start + i: float(found.margin[i]) for i, status in enumerate(found.status) if status == "undecided"}
    return row | {"undecided margins": left, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def main() -> None:
    """Measure one network, print its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=list(CASES))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--start", type=int, default=0, help="the first test image")
    parser.add_argument("--eps", nargs="+", type=float, help="by default those of the table")
    parser.add_argument("--method", default="auto", choices=["auto", "second", "first"])
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of branch and bound for an image")
    parser.add_argument("--weights", type=Path, help="a model's file, in the place of training one")
    parser.add_argument("--folder", type=Path, default=Path("certify-mnist"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    case = CASES[options.network]
    model = network(options.network, options)
    test = pb.data.load(case.dataset, "test", data_dir=options.data_dir)
    test = test if case.recipe is None else unit(test)
    accuracy = float(pb.accuracy(model, test))
    begun = time.process_time()
    net = PreparedNetwork(model)
    _ = net.stretch, net.norms_S
    ready = time.process_time() - begun
    print(f"{options.network}: {100 * accuracy:.2f} % of all test images; made ready in {ready:.1f} s\n")
    heads = [
        "eps",
        "correct",
        "verified",
        "falsified",
        "undecided",
        "decided",
        "CPU ms an image",
        "peak MB",
        "decided by",
    ]
    print(f"| {' | '.join(heads)} |\n| {' | '.join('---' for _ in heads)} |", flush=True)
    for eps in options.eps or case.eps:
        row = measure(options.network, net, test, eps, options) | {"accuracy": accuracy, "ready": ready}
        counts = " | ".join(str(row[key]) for key in ("correct", "verified", "falsified", "undecided"))
        decided = 100 * (1 - row["undecided"] / max(1, row["correct"]))  # type: ignore[operator]
        print(f"| {eps:.4g} | {counts} | {decided:.1f} % | {row['cpu ms']:.1f} | {row['peak MB']} | {row['rungs']} |")
        with (options.folder / "certify-large.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
