"""A campaign against certificates: random networks, random inputs; whatever is proven is attacked in every way.

A case is one network, one input and one radius (or one for each feature), with the verdict of `certify` or the
intervals of `output_bounds`, by a method that takes its turn. Networks are CCPs of both forms, NCPs and convolutional
ones in one to three dimensions, of degrees 2 to 10. Every other network has second order in single precision, as only
large ones have otherwise. A quarter of the radii are 0 or so small that only rounding
matters; a sixth of the networks have no domain, a sixth a radius for each feature.

Of each case all corners (up to six inputs, else random ones), random points, a grid (up to three inputs) and signed
gradient steps by autograd, which share no code with the certificates, are tried; of l_2 balls, points of the sphere and
of the inside, and projected gradient steps, all within the domain. Whatever lies below a proven bound in float64, and a
share of all cases in any event, is judged in rational arithmetic. Every counterexample must lie in its ball, in
rational arithmetic, and be one. Ends with a line of JSON.

The verifier's own attacks find nearly all that is false before a bound is asked, and so would hide a bound that proves
what is false. With `--blind` they are switched off: what has a counterexample must then come out as undecided.

    python bench/certify_soundness.py --cases 500000
    python bench/certify_soundness.py --cases 500000 --norm 2
    python bench/certify_soundness.py --cases 6000 --norm 2 --images 300 --blind
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

import polybound as pb
from polybound.certificates import PreparedNetwork
from polybound.certificates.proofs.exact import exact_logits
from polybound.certificates.search import balls, boxes

F64 = torch.float64
METHODS = {
    "inf": (
        *("second", "auto", "first", "second", "bounds first", "second", "crown", "auto", "interval", "second"),
        *("interval", "second", "bounds second", "first", "lipschitz", "second", "auto", "first", "second"),
        "bounds auto",
    ),
    "2": (
        *("second", "auto", "first", "second", "bounds first", "second", "lipschitz", "second", "bounds second"),
        *("first", "second", "auto", "first", "second", "second", "bounds auto", "second", "first", "second", "first"),
    ),
}
SLOW = {"auto": 320, "bounds auto": 640, "bounds second": 160, "bounds first": 80, "crown": 80}
"""Methods that have a part of the inputs of each network: one of this number."""

SIZES = torch.tensor([0.0, 1e-15, 1e-9, 0.003, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.3], dtype=F64)
SHARE = 50
"""One of this number of cases is judged in rational arithmetic, whatever float64 says."""

Forms = Callable[[Tensor, Tensor], Tensor]
"""From logits, (points, classes), and the inputs that the points belong to: values to be made small, (points, F)."""


@dataclass
class Batch:
    """Inputs (N, d) of a network with radii (N, d) and sides of the domain, (d,) each."""

    model: pb.PolynomialNetwork
    x: Tensor
    r: Tensor
    least: Tensor
    most: Tensor
    norm: str

    def holds(self, i: int, point: Tensor) -> bool:
        """Whether a point lies in the ball and in the domain, in rational arithmetic."""
        if not bool(((point >= self.least) & (point <= self.most)).all()):
            return False
        away = [Fraction(a) - Fraction(b) for a, b in zip(point.tolist(), self.x[i].tolist(), strict=True)]
        radii = [Fraction(r) for r in self.r[i].tolist()]
        if any(a != 0 and r == 0 for a, r in zip(away, radii, strict=True)):
            return False
        parts = [a / r for a, r in zip(away, radii, strict=True) if r]
        return sum(p * p for p in parts) <= 1 if self.norm == "2" else all(abs(p) <= 1 for p in parts)

    def moved(self, u: Tensor) -> Tensor:
        """`x + r u`, for u (N, points, d), a little shorter, so that rounding leaves nearly all inside."""
        points = self.x.unsqueeze(1) + self.r.unsqueeze(1) * u * (1 - 2.0**-45)
        return torch.minimum(torch.maximum(points, self.least), self.most)

    def __call__(self, points: Tensor) -> Tensor:
        """The logits at points (N, d), by the products of the factors' matrices written out: convolutions are slow."""
        y = (points @ self.maps[0][0] + self.maps[0][1]) * self.scale
        for (A, b), (S, c) in zip(self.maps[1:], self.between, strict=True):
            y = (points @ A + b) * (y if S is None else y @ S + c)
        return y @ self.last[0] + self.last[1]

    def __post_init__(self) -> None:
        factors = self.model.factors().double()
        self.scale = factors.s1.detach()
        self.maps = [(a.matrix().T.detach(), a.constant.detach()) for a in factors.A]
        # The identity in between is no matrix product.
        self.between = [
            (None if type(s).__name__ == "Identity" else s.matrix().T.detach(), s.constant.detach()) for s in factors.S
        ]
        self.last = factors.C.matrix().T.detach(), factors.C.constant.detach()
        with torch.no_grad():
            if not torch.allclose(self(self.x[:5]), self.model(self.x[:5]), rtol=1e-9, atol=1e-12):
                raise AssertionError("the factors are not the model's")

    def exact(self, point: Tensor) -> list[Fraction]:
        """The logits."""
        return exact_logits(self.model.factors().double(), point)


def random_model(generator: torch.Generator) -> pb.PolynomialNetwork:
    """A network of any kind, of degree 2 to 10, with normal weights."""

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    kind, classes, degree = pick(0, 2), pick(2, 4), pick(2, 10)
    if kind == 0:
        form = ("residual", "product")[pick(0, 1)]
        model: pb.PolynomialNetwork = pb.CCP(pick(1, 8), pick(1, 6), classes, degree, form, dtype=F64)
    elif kind == 1:
        model = pb.NCP(pick(1, 8), pick(1, 6), classes, degree, dtype=F64)
    else:
        dims = (1, 2, 2, 3)[pick(0, 3)]
        shape = (pick(1, 2), *(pick(2, {1: 6, 2: 3, 3: 2}[dims]) for _ in range(dims)))
        pool = (pick(1, degree),) if pick(0, 1) else ()
        pre = (None, 3)[pick(0, 1)]
        model = pb.ConvCCP(shape, pick(1, 2), classes, degree, 3, pre=pre, pool=pool, dtype=F64)
    scale = (0.1, 0.3, 0.5, 0.8)[pick(0, 3)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=F64))
    return model


def directions(batch: Batch, generator: torch.Generator) -> Tensor:
    """Points u of the cube or of the unit ball, (N, points, d)."""
    images, d = batch.x.shape
    if batch.norm == "inf":
        parts = [2 * torch.rand(24, d, generator=generator, dtype=F64) - 1]
        if d <= 6:
            parts.append(torch.tensor(list(itertools.product([-1.0, 1.0], repeat=d)), dtype=F64))
        else:
            parts.append(2.0 * torch.randint(0, 2, (64, d), generator=generator).to(F64) - 1)
        if d <= 3:
            steps = {1: 65, 2: 9, 3: 4}[d]
            parts.append(torch.cartesian_prod(*[torch.linspace(-1, 1, steps, dtype=F64)] * d).reshape(-1, d))
        return torch.cat(parts).expand(images, -1, -1)
    u = torch.randn(images, 40, d, generator=generator, dtype=F64)
    u = u / u.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    parts = [u, u[:, :16] * torch.rand(images, 16, 1, generator=generator, dtype=F64)]
    parts.append(torch.cat([torch.eye(d, dtype=F64), -torch.eye(d, dtype=F64)]).expand(images, -1, -1))
    if d == 2:
        angle = torch.linspace(0, 2 * torch.pi, 61, dtype=F64)
        parts.append(torch.stack([angle.cos(), angle.sin()], 1).expand(images, -1, -1))
    return torch.cat(parts, 1)


def search(batch: Batch, forms: Forms, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The least values that any search finds, (N, F), and where, (N, F, d)."""
    images, d = batch.x.shape
    points = batch.moved(directions(batch, generator))
    owner = torch.arange(images).repeat_interleave(points.shape[1])
    with torch.no_grad():
        values = forms(batch(points.reshape(-1, d)), owner).reshape(images, points.shape[1], -1)
    best, index = values.min(1)
    where = points.gather(1, index.unsqueeze(-1).expand(-1, -1, d))
    count = best.shape[1]
    owner = torch.arange(images).repeat_interleave(count)
    x, r = batch.x[owner], batch.r[owner]
    own = torch.arange(count).repeat(images).unsqueeze(1)
    u = torch.where(r > 0, (where.reshape(-1, d) - x) / r.clamp_min(5e-324), 0.0)
    low = torch.where(r > 0, (batch.least - x) / r.clamp_min(5e-324), 0.0).clamp(-1, 0)
    high = torch.where(r > 0, (batch.most - x) / r.clamp_min(5e-324), 0.0).clamp(0, 1)
    flat, place = best.reshape(-1), where.reshape(-1, d).clone()
    for step in (1.0, 0.5, 0.25, 0.1, 0.05, 0.02):
        z = (x + r * u * (1 - 2.0**-45)).requires_grad_()
        value = forms(batch(z), owner).gather(1, own).squeeze(1)
        slope = torch.autograd.grad(value.sum(), z)[0] * r
        flat, place = keep_better(flat, place, value.detach(), z.detach())
        u = torch.minimum(torch.maximum(u - step * steepest(slope, batch.norm), low), high)
        if batch.norm == "2":
            u = u / u.norm(dim=1, keepdim=True).clamp_min(1.0)
    with torch.no_grad():
        z = x + r * u * (1 - 2.0**-45)
        flat, place = keep_better(flat, place, forms(batch(z), owner).gather(1, own).squeeze(1), z)
    return flat.reshape(images, count), place.reshape(images, count, d)


def steepest(slope: Tensor, norm: str) -> Tensor:
    """The direction of a step of the norm."""
    return slope.sign() if norm == "inf" else slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)


def keep_better(best: Tensor, where: Tensor, value: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The smaller values, and where."""
    better = value < best
    return torch.where(better, value, best), torch.where(better.unsqueeze(1), z, where)


@contextmanager
def without_attacks() -> Iterator[None]:
    """The verifiers without their searches for counterexamples."""

    def nothing(_: boxes.Verifier, cells: Sized, *__: object) -> Tensor:
        return torch.zeros(len(cells), dtype=F64)

    kinds = (boxes.Verifier, balls.BallVerifier)
    searches = [kind.attack for kind in kinds]
    for kind in kinds:
        kind.attack = nothing  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        for kind, search_of in zip(kinds, searches, strict=True):
            kind.attack = search_of  # type: ignore[method-assign]


class Campaign:
    """Counts of cases, statuses, methods, models and degrees; of "WRONG" ones, if there are any."""

    def __init__(self, norm: str, images: int, budget: float) -> None:
        self.norm, self.images, self.budget = norm, images, budget
        self.counts: Counter[str] = Counter()

    def network(self, seed: int) -> None:
        """All cases of one network."""
        generator = torch.Generator().manual_seed(seed)
        model = random_model(generator)
        method = METHODS[self.norm][seed % len(METHODS[self.norm])]
        batch = self._batch(model, max(12, self.images // SLOW.get(method, 1)), generator)
        # Convolutions in both of their forms, window by window and as matrices, with every method.
        windows = isinstance(model, pb.ConvCCP) and seed // len(METHODS[self.norm]) % 2 == 1
        net = PreparedNetwork(model, by_windows=True if windows else None)
        if method.startswith("bounds"):
            self._intervals(batch, net, method.removeprefix("bounds "), seed, generator)
        else:
            self._decisions(batch, net, method, seed, generator)
        for name in (f"models {type(model).__name__}", "networks"):
            self.counts[name] += 1
        for name in (f"degree {model.degree}", f"method {method}", "cases"):
            self.counts[name] += len(batch.x)

    def _batch(self, model: pb.PolynomialNetwork, images: int, generator: torch.Generator) -> Batch:
        d = model.features
        x = torch.rand(images, d, generator=generator, dtype=F64) * 2 - 1
        if int(torch.randint(0, 2, (1,), generator=generator)):
            x = torch.where(torch.rand(x.shape, generator=generator) < 0.2, x.sign(), x)
        kind = int(torch.randint(0, 6, (1,), generator=generator))
        far = 1e9 if kind == 0 else 1.0
        shape = (images, d) if kind == 1 else (images, 1)
        index = torch.randint(0, len(SIZES), shape, generator=generator)
        r = SIZES[index] * (3.0 if self.norm == "2" else 1.0)
        side = torch.full((d,), far, dtype=F64)
        return Batch(model, x, r.expand(images, d).contiguous(), -side, side, self.norm)

    def _options(self, batch: Batch, method: str) -> dict[str, object]:
        same = bool((batch.r == batch.r[:, :1]).all())
        domain = None if float(batch.most[0]) > 1 else (-1.0, 1.0)
        eps = batch.r[:, 0] if same else batch.r
        return {"eps": eps, "domain": domain, "norm": self.norm, "method": method, "budget": self.budget}

    def _decisions(self, batch: Batch, net: object, method: str, seed: int, generator: torch.Generator) -> None:
        with torch.no_grad():
            y = batch(batch.x).argmax(1)
        found = pb.certify(net, batch.x, y, **self._options(batch, method))  # type: ignore[arg-type]

        def forms(logits: Tensor, owner: Tensor) -> Tensor:
            label = y[owner].unsqueeze(1)
            return (logits.gather(1, label) - logits.scatter(1, label, -torch.inf)).amin(1, keepdim=True)

        best, where = search(batch, forms, generator)
        rows = zip(found.status, found.margin.tolist(), best[:, 0].tolist(), strict=True)
        for i, (status, margin, least) in enumerate(rows):
            self.counts[status] += 1
            zero = status == "verified"  # then zero is not reached either
            doubtful = least <= max(margin, 0.0 if zero else -torch.inf)
            if margin > -torch.inf and self._asked(seed, i, doubtful):
                value = self._margin(batch, i, where[i, 0], int(y[i]))
                if value is not None and (value < Fraction(margin) or (zero and value <= 0)):
                    self._wrong(seed, i, method, f"{status}, {margin} is above {float(value)}")
        self._counterexamples(batch, found, y, seed, method)

    def _counterexamples(
        self, batch: Batch, found: pb.certificates.Certificates, y: Tensor, seed: int, method: str
    ) -> None:
        """Each must lie in its ball and be classified otherwise, or tie."""
        shown = [i for i, point in enumerate(found.counterexample) if point is not None]
        if not shown:
            return
        points = torch.stack([p.reshape(-1) for p in found.counterexample if p is not None])
        with torch.no_grad():
            logits = batch(points)
        label = y[shown].unsqueeze(1)
        margins = (logits.gather(1, label) - logits.scatter(1, label, -torch.inf)).amin(1)
        sure = margins < -1e-11 * (1 + logits.abs().amax(1))
        for i, point, clear in zip(shown, points, sure.tolist(), strict=True):
            wrong = not batch.holds(i, point)
            if self._asked(seed, i, not clear):
                wrong |= (self._margin(batch, i, point, int(y[i])) or 0) > 0
            if wrong:
                self._wrong(seed, i, method, "a counterexample is none")

    def _intervals(self, batch: Batch, net: object, method: str, seed: int, generator: torch.Generator) -> None:
        found = pb.output_bounds(net, batch.x, **self._options(batch, method))  # type: ignore[arg-type]
        best, where = search(batch, lambda logits, _: torch.cat([logits, -logits], 1), generator)
        proven = torch.cat([found.lower, -found.upper], 1)
        attained = torch.cat([found.lowest, -found.highest], 1)
        at = torch.cat([found.lowest_at, found.highest_at], 1).flatten(2)
        classes = found.lower.shape[1]
        for i, claim in itertools.product(range(len(found)), range(2 * classes)):
            self.counts["ends of intervals"] += 1
            sign = 1 if claim < classes else -1
            bound = float(proven[i, claim])
            if bound > -torch.inf and self._asked(seed, i, float(best[i, claim]) <= bound):
                self.counts["exact"] += 1
                value = sign * batch.exact(where[i, claim])[claim % classes]
                if value < Fraction(bound) and batch.holds(i, where[i, claim]):
                    self._wrong(seed, i, method, f"output {claim}: {bound} is above {float(value)}")
            if self._asked(seed, i, not float(attained[i, claim]) < torch.inf):
                value = sign * batch.exact(at[i, claim])[claim % classes]
                if not batch.holds(i, at[i, claim]) or value > Fraction(float(attained[i, claim])):
                    self._wrong(seed, i, method, f"output {claim} is not attained")
        self.counts["bounded"] += len(found)

    def _asked(self, seed: int, i: int, doubtful: bool) -> bool:
        """Whether to judge in rational arithmetic."""
        return doubtful or (seed + i) % SHARE == 0

    def _margin(self, batch: Batch, i: int, point: Tensor, label: int) -> Fraction | None:
        """The least margin at a point in rational arithmetic; None if it lies outside."""
        if not batch.holds(i, point):
            return None
        self.counts["exact"] += 1
        logits = batch.exact(point)
        return min(logits[label] - value for rival, value in enumerate(logits) if rival != label)

    def _wrong(self, seed: int, i: int, method: str, what: str) -> None:
        self.counts["WRONG"] += 1
        print(f"WRONG: norm {self.norm}, seed {seed}, input {i}, {method}: {what}", flush=True)


def campaign(
    cases: int, images: int = 8000, budget: float = 0.01, seed: int = 0, norm: str = "inf", blind: bool = False
) -> Counter[str]:
    """Networks from a seed on, until there are enough cases; prints the counts now and then."""
    found = Campaign(norm, images, budget)
    usual, boxes.IMAGES = boxes.IMAGES, 8192  # the networks are tiny
    try:
        while found.counts["cases"] < cases:
            with without_attacks() if blind else nullcontext():
                found.network(seed)
            seed += 1
            if seed % 50 == 0:
                print(json.dumps(dict(found.counts)), flush=True)
    finally:
        boxes.IMAGES = usual
    return found.counts


def main() -> None:
    """Run the campaign and print what it counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=8000, help="inputs of each network; fewer for slow methods")
    parser.add_argument("--budget", type=float, default=0.01, help="seconds of branch and bound for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--norm", choices=sorted(METHODS), default="inf")
    parser.add_argument("--blind", action="store_true", help="without the verifier's own attacks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    counts = campaign(options.cases, options.images, options.budget, options.seed, options.norm, options.blind)
    seconds = round(time.process_time() - begun)
    print(json.dumps(dict(sorted(counts.items())) | {"norm": options.norm, "cpu seconds": seconds}))


if __name__ == "__main__":
    main()
