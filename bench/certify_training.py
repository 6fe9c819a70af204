"""Training for certificates (`method="certified"`): what it certifies, what AutoAttack leaves, and what it costs.

    python bench/certify_training.py --dataset mnist --eps 0.2
    python bench/certify_training.py --dataset fashion-mnist --eps 0.1
    python bench/certify_training.py --dataset mnist --eps 0.2 --validation 0.1 --images 400    # to choose options by
    python bench/certify_training.py --network boxnet --dataset mnist --eps 0.6 --ramp 0.5 --epochs 30

Data lie in [-1, 1], so eps 0.2 is 0.1 of the [0, 1] scale. A CCP in product form, or a `BoxNet`, is trained unless it
is in `--folder`, and then judged by the verifier on test images (with `--validation` on a share of the training images
that it does not see). Judging goes on where it was stopped. AutoAttack is run on the images that are classified
correctly and not verified: it cannot break the others. Its columns need the extra `attacks`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import polybound as pb
from polybound.data import Dataset

BLOCK = 250
"""Images between two lines of the file."""


def split(options: argparse.Namespace) -> tuple[Dataset, Dataset]:
    """What to train on, and what to judge by."""
    train = pb.data.load(options.dataset, "train", data_dir=options.data_dir)
    if not options.validation:
        return train, pb.data.load(options.dataset, "test", data_dir=options.data_dir)
    left = len(train) - round(options.validation * len(train))
    return replace(train, x=train.x[:left], y=train.y[:left]), replace(train, x=train.x[left:], y=train.y[left:])


def trained(options: argparse.Namespace, data: Dataset, file: Path) -> pb.PolynomialNetwork:
    """The network of a file, or a new one."""
    if file.exists():
        return pb.load(file)
    model: pb.PolynomialNetwork
    if options.network == "boxnet":
        model = pb.BoxNet(data.shape, data.classes, options.pixels, seed=options.seed)
        recipe: dict[str, Any] = {"schedule": "one-cycle", "rise": 0.02, "clip": 1.0, "batch_size": 64}
        recipe |= {"augment": options.augment} if options.augment else {}
    else:
        sizes: dict[str, Any] = {"rank": options.rank, "classes": data.classes, "degree": options.degree}
        model = pb.CCP(data.x[0].numel(), form="product", shape=data.shape, seed=options.seed, **sizes)
        recipe = {"schedule": "cosine", "batch_size": 128, "remainder": options.remainder, "rivals": options.rivals}
    begun = time.process_time()
    pb.fit(
        model,
        data,
        method="certified",
        eps=options.eps,
        weight=options.weight,
        ramp=options.ramp,
        optimiser="adamw",
        learning_rate=options.learning_rate,
        weight_decay=0.0,
        epochs=options.epochs,
        seed=options.seed,
        **recipe,
        on_epoch=lambda epoch, loss: print(f"epoch {epoch}, loss {float(loss):.3f}", flush=True),
    )
    print(f"trained in {time.process_time() - begun:.0f} s of CPU time", flush=True)
    model.save(file)
    return model.eval()


def judged(options: argparse.Namespace, model: pb.PolynomialNetwork, data: Dataset, file: Path) -> dict[str, Any]:
    """Counts over the first images, block by block; what the file has is not done again."""
    images = min(options.images, len(data))
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for start in range(sum(line["images"] for line in lines), images, BLOCK):
        x, y = (t[start : min(start + BLOCK, images)] for t in (data.x, data.y))
        begun = time.process_time()
        by_intervals = pb.certify(model, x, y, options.eps, domain=data.domain, method="interval")
        # Planes decide what can be decided of networks that were trained by intervals; generators take seconds more.
        method: Any = "first" if options.network == "boxnet" else "auto"
        found = pb.certify(model, x, y, options.eps, domain=data.domain, method=method, budget=options.budget)
        seconds = time.process_time() - begun
        correct = model(x).argmax(1) == y
        verified = torch.tensor([status == "verified" for status in found.status])
        left = torch.nonzero(correct & ~verified).flatten() + start
        counts = {"images": len(x), "clean": int(correct.sum()), "verified": int(verified.sum())}
        counts["intervals"] = by_intervals.count("verified")
        lines.append(counts | {"undecided": found.count("undecided"), "seconds": seconds, "left": left.tolist()})
        with file.open("a") as stream:
            stream.write(json.dumps(lines[-1]) + "\n")
    total = {name: sum(line[name] for line in lines) for name in lines[0] if name != "left"}
    return total | {"left": [index for line in lines for index in line["left"]]}


def attacked(options: argparse.Namespace, model: pb.PolynomialNetwork, data: Dataset, found: dict[str, Any]) -> int:
    """How many images are right under AutoAttack: those that are verified, and what it leaves of the others."""
    if not found["left"]:
        return int(found["verified"])
    attack = pb.attacks.AutoAttack(options.eps)
    rest = replace(data, x=data.x[found["left"]], y=data.y[found["left"]])
    return int(found["verified"]) + pb.evaluate(model, rest, [attack]).find(attack.name).correct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=("ccp", "boxnet"), default="ccp")
    parser.add_argument("--pixels", type=int, default=6, help="of boxnet: squares of each pixel")
    parser.add_argument("--augment", default="", help="of boxnet")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--eps", type=float, default=0.2)
    parser.add_argument("--weight", type=float, default=1.0)
    parser.add_argument("--remainder", type=float, default=0.3)
    parser.add_argument("--ramp", type=float, default=0.6)
    parser.add_argument("--rivals", type=int, default=3)
    parser.add_argument("--degree", type=int, default=3)
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", type=float, default=0.0)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of branch and bound an image")
    parser.add_argument("--no-attack", dest="attack", action="store_false")
    parser.add_argument("--folder", type=Path, default=Path("certified"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    skip = ("images", "budget", "attack", "folder", "data_dir")
    name = "-".join(str(value) for key, value in vars(options).items() if key not in skip)
    data, test = split(options)
    model = trained(options, data, options.folder / f"{name}.safetensors")
    found = judged(options, model, test, options.folder / f"{name}.jsonl")
    counts = [found[key] for key in ("clean", "intervals", "verified", "undecided")]
    counts += [attacked(options, model, test, found)] if options.attack else []
    shares = [f"{100 * count / found['images']:.2f} %" for count in counts] + ["-"] * (5 - len(counts))
    ms = 1000 * found["seconds"] / found["images"]
    print("| data, eps | images | clean | by intervals | certified | undecided | AutoAttack | verifier, an image |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    print(f"| {options.dataset}, {options.eps:g} | {found['images']:,} | {' | '.join(shares)} | {ms:.0f} ms |")


if __name__ == "__main__":
    main()
