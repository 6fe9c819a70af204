"""Certificates of l_2 balls: the package's trained PN-4 networks on Fashion-MNIST, one core.

For each network and radius: the share of images verified by the ladder, by its first rung and by the global Lipschitz
constant, what an l_2 attack leaves, and the time of the ladder.

    python bench/certify_balls.py --images 50
"""

from __future__ import annotations

import argparse
import time

import torch

import polybound as pb

EPS = (0.25, 0.5, 1.0)


def main() -> None:
    """Print a row for each network and radius."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--eps", type=float, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    test = pb.data.load("fashion-mnist", "test")
    x, y = test.x[: options.images], test.y[: options.images]
    print("| network | eps | clean | attacked | verified | falsified | undecided | first | lipschitz | ms | rungs |")
    print("| --- " * 11 + "|")
    for name in ("pn-4-bound-1", "pn-4"):
        model = pb.example(name)
        net = pb.certificates.Network(model)
        _ = net.stretch, net.norms_S, net.norms_A  # once for a model
        for eps in options.eps or EPS:
            clean = model(x).argmax(1) == y
            left = clean
            for name_of_attack in (f"apgd-{eps}-100:norm=2", f"apgdt-100:eps={eps}:norm=2"):
                attack = pb.attacks.parse_attack(name_of_attack)
                left = left & (model(attack(model, x, y, domain=test.domain)).argmax(1) == y)
            begun = time.process_time()
            found = pb.certify(net, x, y, eps, norm="2", domain=test.domain, budget=1.0)
            taken = 1000 * (time.process_time() - begun) / len(x)
            others = [
                pb.certify(net, x, y, eps, norm="2", domain=test.domain, method=method).count("verified")
                for method in ("first", "lipschitz")
            ]
            counts = [found.count(status) for status in ("verified", "falsified", "undecided")]
            cells = [name, eps, int(clean.sum()), int(left.sum()), *counts, *others, f"{taken:.0f}"]
            cells.append(found.summary()["rungs"])
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
