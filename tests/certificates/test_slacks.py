"""Every rounding slack is at least the a-priori error of what it covers, and a tenth of it would be noticed.

The budgets are those of the standard error analysis, counted here from the sizes alone: a sum of n products is off by at
most n u of the sum of their absolute values, u = 2^-53. What a module grants is what its bound moves by when the module
takes its unit of rounding for zero, so that no slack can stand in for another.
"""

from types import SimpleNamespace

import pytest
import torch

import polybound as pb
from helpers.networks import F64, randomise
from polybound.certificates import PreparedNetwork, forms, input_sets, network
from polybound.certificates.bounds import balls as trust
from polybound.certificates.bounds import baselines, quadratic, second_order, slopes
from polybound.certificates.search import balls as caps
from polybound.theory import ULP

U = 2.0**-53
D, RANK, CLASSES, DEGREE = 40, 6, 5, 3
ONE = torch.ones(1, D, dtype=F64)


NET = PreparedNetwork(randomise(pb.CCP(D, RANK, CLASSES, DEGREE, dtype=F64), 0, 0.3))
# Roundings on the way of one term: a sum of D products and a constant for every factor, a product with the next one, and
# the sum of the last products.
PATH = DEGREE * (D + 1) + DEGREE + RANK + 1
P = float(NET.absolute(ONE)[0, 0])
EYE = torch.eye(D, dtype=F64).unsqueeze(0)


def balls(r):
    """The ball of radii r around 0."""
    return input_sets.Balls(0 * r, (-r, r), (-r, r), r, None, r, -torch.ones_like(r), torch.ones_like(r))


def least_that_is_outside():
    """The distance from the centre, in radii, from which on boxes are dropped."""
    ball = balls(ONE)
    steps = torch.arange(-400, 400, dtype=F64)
    lower = torch.zeros(len(steps), D, dtype=F64)
    lower[:, 0] = 1 + steps * ULP
    dropped = ball.outside(torch.zeros(len(steps), dtype=torch.int64), lower, lower + 1)
    return float(lower[int(dropped.to(torch.int8).argmax()), 0])


def farthest_that_holds():
    """The distance from the centre, in radii, up to which points are inside."""
    ball = balls(torch.ones(1, 1, dtype=F64))
    steps = [1 - k * U for k in range(400)]
    return next(step for step in steps if ball.holds(0, torch.tensor([step], dtype=F64)))


def domain_limit():
    return float(input_sets.input_set(NET, 0 * ONE, ONE, None, (-0.75, 0.75), "2").high[0, 0])


def combination():
    """The slack of a constant form; without a unit of rounding there is none."""
    form = forms.Combinations(NET, torch.zeros(1, CLASSES, dtype=F64), ONE[0, :1])
    return float(form.slack(0 * ONE[:, :CLASSES])) if forms.ULP else 0.0


def absorbed():
    """What rounding asks for where a remainder is absorbed."""
    found = second_order.second_order(NET, 0.1 * ONE, ONE, NET.C[:1], NET.beta[:1], torch.arange(D))
    return float(found.absorbed()[1])


def column(units):
    """Slopes of `units` units; one of them moves, by 1."""
    slope = torch.zeros(1, D, units, dtype=F64)
    slope[0, 0, 0] = 1.0
    return slope


def reach():
    """How far a unit moves over the ball."""
    return float(slopes.BALL.reach(NET, ONE)[0][0, 0])


def norm():
    """How far all units of a factor move together."""
    return float(slopes.BALL.norms(NET, ONE)[0])


def quadratic_of(H):
    G = torch.zeros(1, D, dtype=F64)
    return SimpleNamespace(g0=G[:, 0], G=G + 1, H=H, R=G[:, 0])


SLACKS = {
    # Once for the coefficients, and once each for the weights and the slopes of a remainder.
    "network": (network, lambda: float(NET.slack(ONE)[0, 0]), 3 * PATH * U * P),
    # The absolute values of a gradient, the remainder's sum, and both once more.
    "rounded_down": (
        second_order,
        lambda: float(second_order.rounded_down(ONE[0, :1], ONE[0, :1], 0 * ONE[0, :1], NET)),
        2 * PATH * U * 2,
    ),
    "combinations": (forms, combination, 3 * PATH * U),
    "values": (
        forms,
        lambda: float(forms.enclosed(NET, torch.ones(1, CLASSES, dtype=F64), torch.zeros(1, dtype=F64), ONE)[1]),
        CLASSES * U * float(NET(ONE).abs().sum()),
    ),
    "baselines": (baselines, lambda: float(baselines._down(NET, ONE[0, :1], ONE[0, :1], 0 * ONE[0, :1])), 2 * PATH * U),
    # Products of 2 RANK forms, and a difference; their size is what is granted for each unit.
    "absorbed": (second_order, absorbed, (2 * RANK + 4) * U * absorbed() / ((2 * RANK + D + 16) * ULP)),
    # A root halves the relative error of a sum of D squares.
    "length": (slopes, lambda: float(slopes.length(ONE[0])), (D / 2 + 4) * U * D**0.5),
    "reach": (slopes, reach, (D / 2 + 4) * U * reach()),
    # Four roundings, twice over.
    "norms": (slopes, norm, 8 * U * norm()),
    # The trace of D times 20 squares, a Gram matrix and two squares of it, under a root.
    "stretched": (slopes, lambda: float(slopes.BALL.stretched(column(20))), (D * 20 + D + 2 * 20) * U / 2),
    "limits": (input_sets, domain_limit, 4 * U * 0.75),
    "outside": (input_sets, least_that_is_outside, (D + 8) * U / 2),
    "holds": (input_sets, farthest_that_holds, 3 * U),
    "linear": (trust, lambda: float(trust.least_linear(ONE[0], (-ONE[0], ONE[0]))[0]), (D + 4) * U * D),
    "minorant": (
        quadratic,
        lambda: float(quadratic.minorant(0 * ONE, EYE, ONE, 0 * ONE[:, 0], ONE, EYE.sum((1, 2)))[0]),
        2 * (D + 4) * U * 2 * D,
    ),
    "separable": (quadratic, lambda: float(quadratic.least_separable(0 * ONE[:, 0], ONE, ONE)), (D + 2) * U * 2 * D),
    "dominant": (
        quadratic,
        lambda: float(quadratic.diagonally_dominant(torch.ones(1, D, D, dtype=F64))[0][0, 0]),
        (D + 2) * U * D,
    ),
    # Rump: a Cholesky decomposition that succeeds leaves at most gamma_(n + 1) / (1 - gamma_(n + 1)) of the trace.
    "psd_deficit": (quadratic, lambda: float(quadratic.psd_deficit(EYE)), (D + 2) * U * D),
    "trust": (
        trust,
        lambda: float(trust.trust_region(NET, quadratic_of(EYE), EYE, 0 * ONE[:, 0], 0 * ONE[:, 0], (-ONE, ONE))[0]),
        2 * (PATH + D) * U * 2 * D,
    ),
}


def tilted():
    """A problem with a slope that was rounded."""
    zero = 0 * ONE[:, 0]
    return trust.Quadratic(zero, ONE, EYE, zero, zero, zero, zero, zero).tilted(ONE)


def part():
    """Half of a ball, about a point of its rim."""
    return caps.Parts(0 * ONE, ONE, 0.5 * ONE, 0.5 * ONE, ONE[:, 0] / 2)


def in_both():
    zero = 0 * ONE[:, 0]
    problem = trust.Quadratic(zero, 0 * ONE, EYE, zero, zero, zero, zero, zero)
    return float(part().in_both(problem, ONE[:, 0]).off)


SLACKS |= {
    # The squares of D ratios, their sum, and the products with the multiplier.
    "whole ball": (caps, in_both, (D + 4) * U * (1 + D / 4 + D / 4 + 1 / 4)),
    # The old centre, the new one and the step between them are rounded once each, and so is their quotient; then D
    # squares of the direction, under a root.
    "cap": (caps, lambda: float(part().capped(ONE / D**0.5, ONE[:, 0] / 2).rho), 4 * U * D**0.5 + (D + 4) * U / 4),
    "limits of a part": (caps, lambda: float(part().limits((0.2 * ONE, 0.6 * ONE))[1][0, 0]), 3 * U * 0.2),
    "tilted": (trust, lambda: float(tilted().off), 2 * U * 2 * D),
}


def granted(monkeypatch, module, value, unit):
    """What a module with this part of its unit of rounding grants."""
    monkeypatch.setattr(module, "ULP", 0.0)
    without = value()
    monkeypatch.setattr(module, "ULP", unit * ULP)
    return abs(value() - without)


@pytest.mark.parametrize("name", sorted(SLACKS))
def test_a_slack_covers_its_budget_and_a_tenth_of_it_does_not(monkeypatch, name):
    module, value, needed = SLACKS[name]
    assert granted(monkeypatch, module, value, 1.0) >= needed
    assert granted(monkeypatch, module, value, 0.1) < needed
