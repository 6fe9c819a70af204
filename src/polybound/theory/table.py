"""All bounds of a model as one table."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Literal

import torch

from polybound.models import Applied, DeepNetwork, PolynomialNetwork, polynomial
from polybound.theory.bound import Bound, BoundTable, number
from polybound.theory.lipschitz import lipschitz
from polybound.theory.norms import factor_norms, finite_factors, gamma, operator_norm, theta
from polybound.theory.rademacher import rademacher

RESIDUAL_NOTE = (
    "U2 to Uk hold the fixed 1 of the residual form: weights within a bound of 1, as a projection keeps them, "
    "give norms of up to 2 here"
)


def bounds(model: PolynomialNetwork, n: int = 60000, *, radius: float = 1.0) -> BoundTable:
    """Every norm and every bound of a model: factor norms, theta and gamma, Rademacher, Lipschitz.

    Args:
        model: a model or a stack.
        n: number of training samples, for the Rademacher complexities.
        radius: inputs have `||x||_p <= radius`, in the norm that each bound is about.

    >>> import polybound as pb
    >>> table = pb.bounds(pb.paper_model("pn-4", shape=(1, 8, 8), seed=0), n=1000)
    >>> [row.quantity for row in table][:3]
    ['norm of U1, l_inf', 'norm of U2, l_inf', 'norm of U3, l_inf']
    """
    model = polynomial(model)
    if model.runs is not None:
        # Run by run, so that what is written out for one bound serves all the others.
        tables = [bounds(model.run(e), n, radius=radius) for e in range(model.runs)]
        merged = [
            replace(rows[0], value=torch.tensor([float(row) for row in rows], dtype=torch.float64))
            for rows in zip(*tables, strict=True)
        ]
        return BoundTable(repr(model), tuple(merged), tables[0].notes)
    if isinstance(model, DeepNetwork) and (graph := model.graph()).chain() is None:
        found = [
            Bound(
                number(operator_norm(node.map, inf)),
                f"norm of {graph.label(n, short=True)}, l_inf",
                "Operator norm",
                "largest row-l1 norm",
            )
            for n, node in enumerate(graph.double().nodes)
            if isinstance(node, Applied)
        ]
        found += [lipschitz(model, p, method, radius=radius) for p in (inf, 2.0, 1.0) for method in ("paper", "local")]
        note = f"degree {graph.degree}; bounds of Rademacher complexities are about chains of products"
        title = f"{type(model).__name__}({model.extra_repr()})"  # without the modules in it
        return BoundTable(title, tuple(found), (note,))
    factors = finite_factors(model)
    ccp = factors.kind == "CCP"
    lemma, largest = f"Lemma {11 if ccp else 12}", "largest row-l1 norm, constants included"
    norms = factor_norms(factors, inf).items()
    rows = [Bound(number(value), f"norm of {name}, l_inf", lemma, largest) for name, value in norms]
    path = "max_j prod_i ||row j of U_i||_1" if factors.coupled else "max(t_k), t_n = rowl1(A_n) (|S_n| t_(n-1))"
    rows.append(Bound(number(theta(factors)), "theta", "Closed form" if factors.coupled else "Recursion", path))
    product = "prod_i ||U_i||_inf" if ccp else "prod_i ||A_i||_inf ||S_i||_inf"
    rows.append(Bound(number(gamma(factors)), "gamma", f"Lemma {1 if ccp else 2}", product))
    formulas: tuple[Literal["paper", "sharper"], ...] = ("paper", "sharper")
    for exact in (True, False):
        rows += [rademacher(factors, n, "inf", formula=f, exact=exact, radius=radius) for f in formulas]
    rows += [rademacher(factors, n, "2", exact=exact, radius=radius) for exact in (True, False)]
    rows += [lipschitz(factors, inf, method, radius=radius) for method in ("paper", "rowwise", "local")]
    for p in (2.0, 1.0):
        rows += [lipschitz(factors, p, method, radius=radius) for method in ("paper", "rowwise")]
    notes = (RESIDUAL_NOTE,) if any(fixed for group in model.weight_groups() for fixed in group.constants or ()) else ()
    return BoundTable(repr(model), tuple(rows), notes)
