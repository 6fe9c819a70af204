"""In one to four dimensions brute force knows what a network does over an l_2 ball: verdicts and intervals agree."""

import pytest
import torch

import polybound as pb
from helpers.networks import F64, randomise

ENOUGH = 600.0
NETWORKS = {
    "ccp-1": lambda: pb.CCP(1, 3, 3, 5, dtype=F64),
    "ncp-2": lambda: pb.NCP(2, 3, 3, 4, dtype=F64),
    "ccp-3": lambda: pb.CCP(3, 3, 3, 4, "product", dtype=F64),
    "ccp-4": lambda: pb.CCP(4, 4, 3, 3, dtype=F64),
    "ncp-4": lambda: pb.NCP(4, 3, 3, 3, dtype=F64),
    "conv-4": lambda: pb.ConvCCP((1, 2, 2), 2, 3, 3, 3, dtype=F64),
}


def inputs(model, images=12):
    """Inputs of which many lie on the domain's sides, and radii of their own for every feature of some."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    x[::3, 0] = 1.0
    r = torch.full_like(x, 0.35)
    r[1::2] = 0.6 * torch.rand(r[1::2].shape, generator=generator, dtype=F64)
    return x, r


def least(form, x, r, count=4000):
    """The least value of a form over the ball around x, within [-1, 1]: samples, then steps from the best of them."""
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(count, len(x), generator=generator, dtype=F64)
    u = u / u.norm(dim=1, keepdim=True)
    u[1::2] *= torch.rand(len(u[1::2]), 1, generator=generator, dtype=F64) ** (1 / len(x))
    low, high = ((torch.full_like(x, side) - x) / r for side in (-1.0, 1.0))

    def inside(u):
        # Both sets in turn: near the edge where they meet, a few times.
        for _ in range(6):
            u = torch.minimum(torch.maximum(u, low), high)
            u = u / u.norm(dim=1, keepdim=True).clamp_min(1.0)
        return torch.minimum(torch.maximum(u, low), high)

    u = inside(u)
    best = form(x + r * u).detach()
    u = u[best.argsort()[:40]]
    found = float(best.min())
    for step in [0.1] * 10 + [0.03] * 10 + [0.01] * 10 + [0.003] * 10 + [0.001] * 10:
        u = u.detach().requires_grad_()
        value = form(x + r * u)
        found = min(found, float(value.detach().min()))
        slope = torch.autograd.grad(value.sum(), u)[0]
        u = inside((u - step * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)).detach())
    return min(found, float(form(x + r * u).detach().min()))


@pytest.mark.parametrize("name", NETWORKS)
def test_verdicts_agree(name):
    model = randomise(NETWORKS[name](), 1, 0.6)
    x, r = inputs(model)
    y = model(x).argmax(1)
    found = pb.certify(model, x, y, r, norm="2", budget=ENOUGH)
    decided = 0
    for i, label in enumerate(y.tolist()):

        def margin(points, label=label):
            logits = model(points)
            return logits[:, label] - torch.cat([logits[:, :label], logits[:, label + 1 :]], 1).amax(1)

        value = least(margin, x[i], r[i])
        assert float(found.margin[i]) <= value + 1e-9
        if abs(value) > 1e-4:
            decided += 1
            assert found.status[i] == ("verified" if value > 0 else "falsified")
    assert decided >= 10


@pytest.mark.parametrize("name", NETWORKS)
def test_intervals_agree(name):
    model = randomise(NETWORKS[name](), 1, 0.6)
    x, r = inputs(model, images=2)
    found = pb.output_bounds(model, x, r, norm="2", tolerance=0.08, budget=ENOUGH)
    for i in range(len(x)):
        for output in range(2):
            low = least(lambda points, output=output: model(points)[:, output], x[i], r[i], 1000)
            high = -least(lambda points, output=output: -model(points)[:, output], x[i], r[i], 1000)
            loose = 0.09 * (high - low) + 1e-9
            assert low - loose <= float(found.lower[i, output]) <= low + 1e-9
            assert high - 1e-9 <= float(found.upper[i, output]) <= high + loose
