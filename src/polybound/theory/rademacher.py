"""Bounds of the empirical Rademacher complexity, and the generalisation statement that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot, inf, isinf, ldexp, log, log2, pi, sqrt
from typing import Literal

import torch
from torch import Tensor

from polybound.errors import PolyboundError, check_choice, check_int, check_norm, check_number
from polybound.models import Factors, PolynomialNetwork, polynomial
from polybound.theory.bound import Bound, number
from polybound.theory.norms import finite_factors, gamma, gram_norm, lifted_norm, matrix_norm, theta
from polybound.theory.rounding import outward, product


def rademacher(
    model: PolynomialNetwork | Factors,
    n: int,
    norm: Literal["inf", "2"] | float = "inf",
    *,
    formula: Literal["paper", "sharper"] = "paper",
    exact: bool = True,
    radius: float | None = 1.0,
) -> Bound:
    """A bound of the empirical Rademacher complexity on n samples of the class of functions that the model is in.

    The class: one output, the same architecture, `||c|| <= mu` and `||product of the factors|| <= lambda`, with mu and
    lambda the model's own values (mu the largest over its classes).

        l_inf, "paper":    2 mu lambda sqrt(2 k log(d) / n)        theorems 1 and 3
        l_inf, "sharper":  mu lambda sqrt(2 log(2 d^k) / n)        Massart's lemma for the 2 d^k vectors +-v_l
        l_2:               mu lambda / sqrt(n)                     theorems 6 and 8; one formula, "sharper" is the same

    with d the length of the lifted input `[x, 1]`.

    Args:
        model: a model, a stack, or canonical factors.
        n: number of samples.
        norm: "inf" or "2".
        formula: "paper" or "sharper".
        exact: lambda as the norm of the product itself (`theta`; `gram_norm`), else as the product of norms (`gamma`).
            For the l_inf norm of NCP, and where there is pooling, "exact" is the bound that `theta` explains.
        radius: all samples have `||x|| <= radius` in that norm. As the theorems ask `||[x, 1]|| <= 1`, the value is
            multiplied by `||(radius, 1)||^k`, which is 1 for l_inf and radius 1. None takes the theorems to the
            letter. (The paper's l_2 theorems state `||z||_inf <= 1`; their proofs use `||z||_2 <= 1`.)

    >>> import polybound as pb
    >>> model = pb.paper_model("pn-4", seed=0)
    >>> float(pb.rademacher(model, n=60000, formula="sharper")) < float(pb.rademacher(model, n=60000))
    True
    """
    p = float(check_norm(norm))
    check_int("n", n)
    check_choice("formula", formula, ("paper", "sharper"))
    if radius is not None:
        check_number("radius", radius)

    factors = finite_factors(model)
    k, d, ccp = factors.degree, factors.features + 1, factors.kind == "CCP"
    C = torch.cat([factors.C.matrix(), factors.C.constant.unsqueeze(-1)], dim=-1)
    off = torch.stack(factors.C.rounding()).sum(0)
    mu = (torch.stack([matrix_norm(row.unsqueeze(-2), p) for row in C.unbind(-2)], -1) + off).amax(-1)
    gram = gram_norm(factors) if exact and not isinf(p) else None
    if not exact:
        lam, how = gamma(factors, p), f"lambda relaxed to the product of norms (Lemma {1 if ccp else 2}), in float64"
    elif isinf(p):
        lam, kind = theta(factors), "exact" if factors.coupled else "bounded by the recursion over absolute values"
        how = f"lambda {kind}, in float64"
    elif gram is None:
        lam, how = gamma(factors, p), "lambda relaxed to the product of norms: too many units for the Gram matrix"
    else:
        lam, how = gram, "lambda exact by the Gram matrix of the units, in float64"
    R = 1.0 if radius is None else (max(radius, 1.0) if isinf(p) else hypot(radius, 1.0))
    if isinf(p):
        rate = 2 * sqrt(2 * k * log(d) / n) if formula == "paper" else sqrt(2 * (log(2) + k * log(d)) / n)
        shown = "2 mu lambda sqrt(2 k log(d) / n)" if formula == "paper" else "mu lambda sqrt(2 log(2 d^k) / n)"
        theorem = f"Theorem {1 if ccp else 3}"
    else:
        rate, shown = 1 / sqrt(n), "mu lambda / sqrt(n)"
        theorem = f"Theorem {6 if ccp else 8}"
    letter = "inf" if isinf(p) else "2"
    if R != 1.0:
        shown += f" R^k, R = ||({radius:g}, 1)||_{letter}"
    if formula == "sharper" and isinf(p):
        theorem += ", sharper"
    samples = (
        f"||z||_{letter} <= 1 for the lifted samples z = [x, 1]" if radius is None else f"||x||_{letter} <= {radius:g}"
    )
    parts = torch.stack([torch.as_tensor(part, dtype=mu.dtype).expand_as(mu) for part in (mu, lam, rate, *[R] * k)])
    # Two roundings each of the logarithm, the root and the quotient of the rate.
    value = outward(product(parts), len(parts) + 8)
    return Bound(
        number(value),
        f"Rademacher complexity, l_{letter}, {formula}, {'exact' if exact else 'relaxed'} norm",
        theorem,
        shown,
        (
            f"{samples} for all {n} samples",
            "mu and lambda are the model's own, so the class is known after training only",
        ),
        how,
    )


@dataclass(frozen=True)
class Generalisation(Bound):
    """An upper bound of the error on unseen data, and its three parts."""

    margin_error: float = 0.0
    complexity: float = 0.0
    deviation: float = 0.0

    @property
    def vacuous(self) -> bool:
        """Whether the bound says nothing, being 1 or more."""
        return float(self) >= 1.0


def generalisation(
    model: PolynomialNetwork, x: Tensor, y: Tensor, *, margin: float = 1.0, confidence: float = 0.95
) -> Generalisation:
    """With probability `confidence` over the n training samples, the true error is at most

        (share of training samples with margin below rho)  +  4 o R_n(F)  +  sqrt(log(1 / delta_j) / (2 n))

    which is the multi-class margin bound (Mohri, Rostamizadeh and Talwalkar, Foundations of Machine Learning, 2nd ed.,
    Theorem 9.2) with o classes and with F the class of Theorem 1 or 3 (sharper form) scaled by the margin:
    `mu lambda / rho <= 2^j`. Since training chooses mu, lambda and anyone may choose rho afterwards, the statement is
    made for all j at once, with `delta_j = (1 - confidence) / (c (1 + |j|)^2)`, `c = pi^2 / 3 - 1`.

    For networks of practical size the bound exceeds 1 and says nothing (`.vacuous`); its use is to compare models.

    Args:
        model: a single model.
        x: training inputs, entries in [-1, 1].
        y: their labels.
        margin: rho > 0, in units of the logits.
        confidence: between 0 and 1.
    """
    if polynomial(model).runs is not None:
        raise PolyboundError("a generalisation statement is about one model; take run(e) out of the stack")
    if not margin > 0 or not 0 < confidence < 1 or len(x) != len(y) or len(x) == 0:
        raise PolyboundError("needs margin > 0, 0 < confidence < 1 and as many labels as inputs")
    if not float(x.abs().max()) <= 1.0:
        raise PolyboundError("the inputs leave [-1, 1], where the theorem holds")
    n, classes = len(x), model.classes
    with torch.no_grad():
        logits = model(x).double()
    own = logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    rival = logits.scatter(-1, y.unsqueeze(-1), -inf).amax(-1)
    margin_error = float((own - rival < margin).double().mean())

    factors = finite_factors(model)
    size = float(theta(factors)) * float(lifted_norm(factors.C, False, inf)) / margin
    # Where 2^j is no float64 number, neither is the bound.
    j = 0 if size == 0 else (1024 if size > 2.0**1023 else ceil(log2(size)))
    scale = inf if j > 1000 else ldexp(1.0, j)
    complexity = 4 * classes * scale * sqrt(2 * (log(2) + factors.degree * log(factors.features + 1)) / n)
    delta = (1 - confidence) / ((pi**2 / 3 - 1) * (1 + abs(j)) ** 2)
    deviation = sqrt(log(1 / delta) / (2 * n))
    return Generalisation(
        margin_error + complexity + deviation,
        "Error on unseen data",
        f"Margin bound on Theorem {1 if factors.kind == 'CCP' else 3}, sharper",
        "margin error + 4 o 2^j sqrt(2 log(2 d^k) / n) + sqrt(log(1 / delta_j) / (2 n))",
        (
            f"the {n} samples are independent draws of one distribution on [-1, 1]^d",
            f"with probability {confidence:g} over these samples",
        ),
        f"margin error {margin_error:.4g} at margin {margin:g}, complexity {complexity:.4g} (j = {j}), "
        f"deviation {deviation:.4g}",
        margin_error,
        complexity,
        deviation,
    )
