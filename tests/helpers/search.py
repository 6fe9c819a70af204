"""Brute force over boxes and l_2 balls, judged in rational arithmetic: it knows nothing of the package's bounds."""

import itertools
from fractions import Fraction

import torch

from helpers.networks import F64
from polybound.certificates.proofs.exact import exact_logits


def exact_values(model, x, weights, constant):
    """`weights f(x) + constant` as fractions, row by row."""
    logits = exact_logits(model.factors().double(), x)
    rows = zip(weights.tolist(), constant.tolist(), strict=True)
    return [sum((Fraction(w) * f for w, f in zip(row, logits, strict=True)), Fraction(b)) for row, b in rows]


def rival_forms(model, label):
    """The margins of a label over its rivals as rows of weights."""
    eye = torch.eye(model.classes, dtype=F64)
    return torch.stack([eye[label] - eye[rival] for rival in range(model.classes) if rival != label])


METHODS = [("inf", m) for m in ("auto", "second", "first", "crown", "interval", "lipschitz")]
METHODS += [("2", m) for m in ("auto", "second", "first", "lipschitz")]
SIZES = (0.0, 1e-160, 1e-12, 1e-9, 1e-4, 1e-3, 0.02, 0.05, 0.1, 0.3, 0.5, 1.5)


def inputs_and_radii(features, seed, images):
    """Inputs, many of them on the domain's sides, and a radius of any size for each feature of each."""
    generator, sizes = torch.Generator().manual_seed(seed), torch.tensor(SIZES, dtype=F64)
    x = torch.rand(images, features, generator=generator, dtype=F64) * 2 - 1
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.3, x.sign(), x)
    return x, sizes[torch.randint(0, len(sizes), x.shape, generator=generator)]


class Region:
    """A box, or the l_2 ball of some radii within it, around one input; the sides are exact."""

    def __init__(self, low, high, x=None, radii=None):
        self.low, self.high = ([Fraction(v) for v in side] for side in (low, high))
        self.x, self.radii = x, radii

    @staticmethod
    def box(lower, upper):
        """The box of two float64 corners."""
        return Region(lower.tolist(), upper.tolist())

    @staticmethod
    def around(x, eps, least, most, norm="inf"):
        """The box or ball of radii eps around x, within [least, most]; all (features,)."""
        rows = [[Fraction(v) for v in row] for row in zip(*(t.tolist() for t in (x, eps, least, most)), strict=True)]
        low, high = [max(v - e, a) for v, e, a, _ in rows], [min(v + e, b) for v, e, _, b in rows]
        return Region(low, high, x, eps if norm == "2" else None)

    def holds(self, point):
        """Whether a float64 point lies in the region."""
        if not all(a <= Fraction(v) <= b for v, a, b in zip(point.tolist(), self.low, self.high, strict=True)):
            return False
        if self.radii is None:
            return True
        away = [
            (Fraction(v) - Fraction(c), Fraction(r))
            for v, c, r in zip(point.tolist(), self.x.tolist(), self.radii.tolist(), strict=True)
        ]
        return all(r > 0 or gap == 0 for gap, r in away) and sum((gap / r) ** 2 for gap, r in away if r) <= 1

    def points(self, model, weights, seed, count=200):
        """Points all over the region: corners or a sphere, a grid, random ones, and where gradients of forms lead."""
        generator = torch.Generator().manual_seed(seed)
        d = len(self.low)
        lower, upper = (torch.tensor([float(v) for v in side], dtype=F64) for side in (self.low, self.high))
        shares = [torch.rand(count, d, generator=generator, dtype=F64)]
        if d <= 7:
            shares.append(torch.tensor(list(itertools.product([0.0, 1.0], repeat=d)), dtype=F64))
        else:
            shares.append(torch.randint(0, 2, (count, d), generator=generator).to(F64))
        if d <= 4:
            steps = {1: 201, 2: 21, 3: 9, 4: 5}[d]
            shares.append(torch.cartesian_prod(*[torch.linspace(0, 1, steps, dtype=F64)] * d).reshape(-1, d))
        found = [self.inside(lower + (upper - lower) * torch.cat(shares), lower, upper)]
        if self.radii is not None:
            u = torch.cat([torch.randn(count, d, generator=generator, dtype=F64), torch.eye(d), -torch.eye(d)])
            u = u / u.norm(dim=1, keepdim=True)
            u = torch.cat([u, u * torch.rand(len(u), 1, generator=generator, dtype=F64)])
            found.append(self.inside(self.x + self.radii * u, lower, upper))
        for row, sign in itertools.product(weights, (1.0, -1.0)):
            z = torch.cat([part[:8] for part in found[:2]])
            for step in (1.0, 0.5, 0.5, 0.25, 0.1, 0.05, 0.02):
                z = z.detach().requires_grad_()
                slope = torch.autograd.grad((model(z) @ row).sum(), z)[0] * sign
                if self.radii is None:
                    move = (upper - lower) * slope.sign()
                else:
                    slope = slope * self.radii
                    move = self.radii * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
                z = self.inside((z - step * move).detach(), lower, upper)
                found.append(z)
        return torch.cat(found)

    def inside(self, points, lower, upper):
        """Points moved into the region, but for roundings."""
        if self.radii is not None:
            u = torch.where(self.radii > 0, (points - self.x) / self.radii.clamp_min(5e-324), 0.0)
            # A little smaller, so that rounding leaves most of them inside.
            u = u / u.norm(dim=1, keepdim=True).clamp_min(1.0) * (1 - 2.0**-45)
            points = self.x + self.radii * u
        return points.clamp(lower, upper)


def judge_decision(model, found, i, label, region, seed):
    """The certificate of image i agrees with everything that brute force finds."""
    if found.status[i] == "falsified":
        point = found.counterexample[i].reshape(-1)
        assert region.holds(point)
        logits = exact_logits(model.factors().double(), point)
        assert logits[label] <= logits[int(found.rival[i])]
        return
    assert found.counterexample[i] is None and (found.margin[i] > 0) == (found.status[i] == "verified")
    weights = rival_forms(model, label)
    points = region.points(model, weights, seed)
    order = (model(points).detach() @ weights.T).amin(1).argsort()
    for point in points[order[:3]]:
        if region.holds(point):
            exact = min(exact_values(model, point, weights, weights[:, 0] * 0))
            assert found.status[i] != "verified" or exact > 0
            assert found.margin[i] == -torch.inf or exact >= Fraction(float(found.margin[i]))


def judge_interval(model, found, i, region, seed):
    """No value that brute force finds lies outside of image i's intervals; every attained value is attained."""
    weights, constant = found.weights, found.constant
    points = region.points(model, weights, seed)
    values = model(points).detach() @ weights.T + constant
    for row in range(len(weights)):
        form = weights[row : row + 1], constant[row : row + 1]
        for point in (points[values[:, row].argmin()], points[values[:, row].argmax()]):
            if region.holds(point):
                (exact,) = exact_values(model, point, *form)
                assert found.lower[i, row] == -torch.inf or Fraction(float(found.lower[i, row])) <= exact
                assert found.upper[i, row] == torch.inf or exact <= Fraction(float(found.upper[i, row]))
        for end, at, sign in ((found.lowest, found.lowest_at, 1), (found.highest, found.highest_at, -1)):
            point = at[i, row].reshape(-1)
            assert region.holds(point)
            assert sign * exact_values(model, point, *form)[0] <= sign * Fraction(float(end[i, row]))
