"""What a projection every ten steps adds to training, as the paper does it."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.nn.functional as F

import polybound as pb

REPETITIONS = 60
STEPS = 10


def measure(runs: int | None) -> tuple[float, float]:
    """Median seconds of ten training steps with and without a projection after them, in turns."""
    torch.manual_seed(0)
    x, y = 2 * torch.rand(64, 784) - 1, torch.randint(10, (64,))
    sides = []
    for _ in range(2):
        model = pb.paper_model("pn-4", runs=runs, seed=0)
        projection = pb.Projection(model, bound=1.0)
        projection.apply_()
        sides.append((model, projection, torch.optim.SGD(model.parameters(), lr=2e-4)))
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(REPETITIONS + 5):
        for side, (model, projection, optimiser) in enumerate(sides):
            begin = time.perf_counter()
            for _ in range(STEPS):
                logits = model(x).flatten(0, -2)
                loss = F.cross_entropy(logits, y.repeat(runs or 1), reduction="sum") / len(x)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
            if side == 0:
                projection.apply_()
            if repetition >= 5:
                times[side].append(time.perf_counter() - begin)
            if side == 1:
                projection.apply_()  # outside the clock: both sides train alike
    return median(times[0]), median(times[1])


def rows() -> list[dict[str, object]]:
    torch.set_num_threads(1)
    result = []
    for runs, name in ((None, "one PN-4"), (14, "a stack of 14 PN-4")):
        ours, reference = (1e6 * seconds / STEPS for seconds in measure(runs))
        ratio = ours / reference
        result.append(
            {
                "name": f"step with a projection every 10 / without, {name} (lower is better)",
                "ours": ours,
                "reference": reference,
                "ratio": ratio,
                "goal": 1.05,
                "met": ratio <= 1.05,
            }
        )
    return result
