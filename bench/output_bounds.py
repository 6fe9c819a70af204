"""How tight `output_bounds` is and what it costs: the package's trained PN-4 networks on Fashion-MNIST, one core.

For each network, radius and budget: the gap as a share of the attained width (mean and largest over images and
outputs), and CPU seconds an image. A table in Markdown.

    python bench/output_bounds.py --images 10
    python bench/output_bounds.py --images 3 --norm 2
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import polybound as pb
from polybound.certificates import PreparedNetwork

EPS = {"inf": (0.01, 0.05, 0.1), "2": (0.25, 0.5, 1.0)}
RUNS: tuple[dict[str, Any], ...] = (
    {"method": "interval"},
    {"method": "crown"},
    {"method": "first"},
    {"method": "auto", "budget": 1.0},
    {"method": "auto", "budget": 10.0},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--norm", choices=sorted(EPS), default="inf")
    parser.add_argument("--budget", type=float, default=10.0, help="the largest budget to try")
    options = parser.parse_args()
    boxes_only = ("interval", "crown") if options.norm == "2" else ()
    runs = [run for run in RUNS if run["method"] not in boxes_only and run.get("budget", 0.0) <= options.budget]
    torch.set_num_threads(1)
    test = pb.data.load("fashion-mnist", "test")
    x = test.x[: options.images]
    print("| network | eps | method | mean gap | largest gap | CPU seconds an image |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("pn-4-bound-1", "pn-4"):
        net = PreparedNetwork(pb.example(name))
        _ = net.stretch, net.norms_S, net.norms_A
        for eps in EPS[options.norm]:
            best = pb.output_bounds(net, x, eps, norm=options.norm, domain=test.domain, budget=0.5)
            width = best.highest - best.lowest
            for run in runs:
                begun = time.process_time()
                found = pb.output_bounds(net, x, eps, norm=options.norm, domain=test.domain, **run)
                spent = (time.process_time() - begun) / len(x)
                # All are measured against the same attained values, since the baselines seek none.
                share = (found.upper - found.lower) / width - 1
                label = run["method"] + (f", budget {run['budget']:g}" if "budget" in run else "")
                shares = f"{100 * float(share.mean()):.2f} % | {100 * float(share.max()):.2f} %"
                print(f"| {name} | {eps:g} | {label} | {shares} | {spent:.3f} |", flush=True)


if __name__ == "__main__":
    main()
