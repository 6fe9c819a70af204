"""Certificates of deep networks: what each stage decides and costs, and CROWN and alpha-CROWN on the same boxes.

    python bench/certify_graphs.py square --eps 0.025 0.04        # two squares, MNIST
    python bench/certify_graphs.py residual --eps 0.009 0.015     # three product blocks, Fashion-MNIST

    python bench/certify_graphs.py --figure figure.png            # decided share over eps, of all that was measured

Both networks are trained here unless they are in `--folder`: plainly, by cross-entropy. eps is of pixels in [0, 1]; the
data lie in [-1, 1], and eps is doubled. Images are the first of the test split that are classified correctly. The
two sides take turns, image by image, in one process; times are CPU time.

CROWN's planes are McCormick's, which both sides of a product offer; its boxes are computed backwards, layer by layer,
from the planes in the middle, and cut by intervals. alpha-CROWN then optimises the mixture of the planes by Adam, for
all rivals that are open. Nothing is rounded outwards on that side. As it decides fewer images, times are also given
for those alone that it verifies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polybound as pb
from polybound.models import Applied, Bounded, Graph, Intervals, Norm, Product, ProductBlock, Sum


class Squares(nn.Module):
    """A convolution, a square, a dense layer, a square, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 5, stride=2, padding=1)
        self.hidden, self.head = nn.Linear(845, 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).square().flatten(1)
        return self.head(self.hidden(x).square())  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A convolution that halves the image, and three product blocks with average pooling between them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 4, stride=2, padding=1, bias=False), Norm(8), ProductBlock(8)]
        for channels in (8, 16):
            layers += [nn.AvgPool2d(2), nn.Conv2d(channels, 2 * channels, 1, bias=False), ProductBlock(2 * channels)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


BLOCK = 20
"""Images that each side is given in its turn."""

NETWORKS = {"square": ("mnist", 8, 2e-3), "residual": ("fashion-mnist", 4, 4e-3)}


def network(name: str, folder: Path) -> tuple[pb.PolynomialNetwork, pb.data.Dataset]:
    """A trained network, and the test split."""
    dataset, epochs, rate = NETWORKS[name]
    train, test = (pb.data.load(dataset, part) for part in ("train", "test"))
    file = folder / f"{name}.safetensors"
    if file.exists():
        return pb.load(file).eval(), test
    torch.manual_seed(0)
    module = Squares() if name == "square" else Residual()
    steps = epochs * (len(train.x) // 128)
    optimiser = torch.optim.AdamW(module.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    order, begun = torch.Generator().manual_seed(0), time.process_time()
    for epoch in range(epochs):
        module.train()
        for batch in torch.randperm(len(train.x), generator=order)[: len(train.x) // 128 * 128].split(128):
            loss = F.cross_entropy(module(train.x[batch]), train.y[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {float(loss.detach()):.3f}, {time.process_time() - begun:.0f} s", flush=True)
    made = pb.polynomial(module.eval(), train.shape)
    with torch.no_grad():
        right = sum(
            int((made(x).argmax(1) == y).sum()) for x, y in zip(test.x.split(500), test.y.split(500), strict=True)
        )
    print(f"{right} of {len(test.y)} test images right")
    made.save(file)
    return pb.load(file).eval(), test


# The other side: CROWN and alpha-CROWN with McCormick's planes.

Ends = tuple[Tensor, Tensor]


def planes(
    graph: Graph, ends: dict[int, Ends], output: int, forms: Tensor, shares: dict[int, Tensor] | None = None
) -> Tensor:
    """Lower bounds of `forms . value` of a node, one form a row, through planes of all products before it."""
    at, constant = {output: forms}, forms.new_zeros(len(forms))
    for number in range(output, -1, -1):
        node = graph.nodes[number]
        if number not in at or not isinstance(node, Applied | Sum | Product):
            continue
        form = at.pop(number)
        given: list[tuple[int, Tensor]] = []
        if isinstance(node, Applied):
            constant = constant + form @ node.map.constant
            given = [(node.source, node.map.adjoint(form))]
        elif isinstance(node, Sum):
            given = [(source, form) for source in node.sources]
        else:
            share = 0.5 if shares is None else shares[number]
            (low, u), (m, v), up = ends[node.left], ends[node.right], form >= 0
            if node.left == node.right:
                point = u + share * (low - u)
                slope = torch.where(up, 2 * point, low + u)
                constant = constant + (form * torch.where(up, -point.square(), -low * u)).sum(1)
                given = [(node.left, form * slope)]
            else:
                near, far = torch.where(up, m, v), torch.where(up, v, m)
                constant = constant - (form * (u * far + share * (low * near - u * far))).sum(1)
                given = [(node.right, form * (u + share * (low - u))), (node.left, form * (far + share * (near - far)))]
        for source, part in given:
            at[source] = at[source] + part if source in at else part
    low, high = ends[0]
    return constant + at[0] @ ((low + high) / 2).T.squeeze() - at[0].abs() @ ((high - low) / 2).T.squeeze()


def crown(graph: Graph, lower: Tensor, upper: Tensor, forms: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """CROWN's and alpha-CROWN's bounds of forms of the outputs over one box, (1, features) each."""
    values: dict[int, Ends] = {}
    intervals = Intervals(outward=False)
    watched: dict[int, Bounded] = {0: Bounded(lower, upper)}
    graph.evaluate(intervals, watched[0], watch=watched.__setitem__)
    depends = [0] * len(graph.nodes)
    for number, node in enumerate(graph.nodes):
        below = max((depends[source] for source in node.sources), default=0)
        depends[number] = below + isinstance(node, Product)
        values[number] = watched[number].lower, watched[number].upper
        used = any(isinstance(graph.nodes[user], Product) for user in graph.uses[number])
        # Intervals are exact where one map of the input comes before; boxes are needed where a product follows.
        if used and depends[number]:
            eye = torch.eye(graph.sizes[number], dtype=lower.dtype)
            known: dict[int, Ends] = {}
            for source in range(number):
                known[source] = values[source]
            ends = [
                torch.cat([planes(graph, known, number, sign * part) for part in eye.split(256)]) for sign in (1, -1)
            ]
            values[number] = torch.maximum(values[number][0], ends[0]), torch.minimum(values[number][1], -ends[1])
    plain = planes(graph, values, graph.output, forms)
    rows = (plain <= 0).nonzero().squeeze(1)
    best = plain.clone()
    if len(rows) and steps:
        products = [number for number, node in enumerate(graph.nodes) if isinstance(node, Product)]
        shares = {n: torch.full((len(rows), graph.sizes[n]), 0.5, dtype=lower.dtype) for n in products}
        for share in shares.values():
            share.requires_grad_()
        optimiser = torch.optim.Adam(list(shares.values()), 0.1)
        for _ in range(steps):
            with torch.enable_grad():
                bound = planes(graph, values, graph.output, forms[rows], shares)
                optimiser.zero_grad()
                (-bound.sum()).backward()  # type: ignore[no-untyped-call]
            best[rows] = torch.maximum(best[rows], bound.detach())
            if bool((best[rows] > 0).all()):
                break
            optimiser.step()
            with torch.no_grad():
                for share in shares.values():
                    share.clamp_(0, 1)
    return plain, best


def side_by_side(graph: Graph, x: Tensor, y: Tensor, eps: float, steps: int) -> dict[str, object]:
    """Both sides on the same boxes, image by image."""
    stages, ours, falsified, seconds = Counter[str](), 0, 0, Counter[str]()
    cost, theirs, shared = Counter[str](), Counter[str](), Counter[str]()
    net = pb.certificates.graphs.PreparedGraph(graph)
    double = graph.double()
    for start in range(0, len(x), BLOCK):
        some, labels = x[start : start + BLOCK], y[start : start + BLOCK]
        begun = time.process_time()
        found = pb.certify(net, some, labels, 2 * eps)
        taken = time.process_time() - begun
        seconds["ours"] += taken
        for name, part in found.cost.items():  # those are of the clock on the wall
            cost[name] += taken * part / sum(found.cost.values())
        stages.update(f"{status} by {stage}" for status, stage in zip(found.status, found.stage, strict=True) if stage)
        ours, falsified = ours + found.count("verified"), falsified + found.count("falsified")
        parts = (taken * found.seconds / found.seconds.sum()).tolist()  # of each image, its share
        for image, label, part in zip(some.split(1) if steps >= 0 else (), labels.tolist(), parts, strict=False):
            flat = image.double().reshape(1, -1)
            forms = torch.eye(graph.classes, dtype=torch.float64)
            forms = (forms[label] - forms)[[rival for rival in range(graph.classes) if rival != label]]
            begun = time.process_time()
            with torch.no_grad():
                lower, upper = (flat - 2 * eps).clamp(-1, 1), (flat + 2 * eps).clamp(-1, 1)
                plain, best = crown(double, lower, upper, forms, steps)
            spent = time.process_time() - begun
            seconds["theirs"] += spent
            if bool((best > 0).all()):
                shared["images"] += 1
                shared["ours"] += part
                shared["theirs"] += spent
            theirs["CROWN"] += bool((plain > 0).all())
            theirs["alpha-CROWN"] += bool((best > 0).all())
    images = len(x)
    return {
        "eps": eps,
        "images": images,
        "verified": ours,
        "falsified": falsified,
        "undecided": images - ours - falsified,
        "ms an image": round(1000 * seconds["ours"] / images, 1),
        "decided by": dict(stages.most_common()),
        "ms of stages": {name: round(1000 * part / images, 1) for name, part in cost.items()},
        "CROWN": theirs["CROWN"],
        "alpha-CROWN": theirs["alpha-CROWN"],
        "ms of both": round(1000 * seconds["theirs"] / images, 1),
        "ms where alpha-CROWN verifies": [
            round(1000 * shared[side] / max(1, shared["images"]), 1) for side in ("ours", "theirs")
        ],
    }


# The figure.

STAGES = {
    "planes": ("interval", "backward", "alpha"),
    "generators": ("generators",),
    "last layer jointly": ("last",),
    "all layers jointly": ("layers", "semidefinite"),
}


def draw(folder: Path, file: Path) -> None:
    """The shares that each stage verifies and attacks falsify, over eps: a panel for each network."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    found = {name: folder / f"{name}.jsonl" for name in NETWORKS if (folder / f"{name}.jsonl").exists()}
    figure, axes = pyplot.subplots(1, len(found), figsize=(5.2 * len(found), 3.6), squeeze=False, sharey=True)
    for axis, (name, path) in zip(axes[0], found.items(), strict=True):
        lines = {line["eps"]: line for line in map(json.loads, path.read_text().splitlines())}
        radii = sorted(lines)
        shares = [
            [
                100
                * sum(lines[eps]["decided by"].get(f"verified by {stage}", 0) for stage in stages)
                / lines[eps]["images"]
                for eps in radii
            ]
            for stages in STAGES.values()
        ]
        colours = ["#c6dbef", "#6baed6", "#2171b5", "#08306b"]
        axis.stackplot(radii, shares, labels=[f"verified: {stage}" for stage in STAGES], colors=colours)
        falsified = [100 - 100 * lines[eps]["falsified"] / lines[eps]["images"] for eps in radii]
        axis.fill_between(radii, falsified, 100, color="#d9a441", label="falsified", linewidth=0)
        known = [eps for eps in radii if lines[eps]["ms of both"] > 0]
        theirs = [100 * lines[eps]["alpha-CROWN"] / lines[eps]["images"] for eps in known]
        axis.plot(known, theirs, "k.--", label="alpha-CROWN verifies")
        axis.set(xlim=(radii[0], radii[-1]), ylim=(0, 100), xlabel="eps, of pixels in [0, 1]")
        axis.set_title({"square": "two squares, MNIST", "residual": "three product blocks, Fashion-MNIST"}[name])
    axes[0][0].set_ylabel("per cent of images")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3 if len(found) > 1 else 2, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.14 if len(found) > 1 else 0.2, 1, 1))
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", nargs="?", choices=list(NETWORKS))
    parser.add_argument("--eps", type=float, nargs="+", default=[], help="of pixels in [0, 1]")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20, help="of alpha-CROWN; -1 leaves the other side out")
    parser.add_argument("--folder", type=Path, default=Path("certified"))
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.figure:
        draw(options.folder, options.figure)
    if not options.network:
        return
    model, test = network(options.network, options.folder)
    graph = pb.polynomial(model, test.shape).graph()
    with torch.no_grad():
        right = graph.double()(test.x[: 2 * options.images].double()).argmax(1) == test.y[: 2 * options.images]
    rows = right.nonzero().squeeze(1)[: options.images]
    for eps in options.eps:
        line = json.dumps(side_by_side(graph, test.x[rows], test.y[rows], eps, options.steps))
        print(line, flush=True)
        with (options.folder / f"{options.network}.jsonl").open("a") as stream:
            stream.write(line + "\n")


if __name__ == "__main__":
    main()
