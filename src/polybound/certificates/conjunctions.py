"""Claims about several forms at once: that not all of them are at most zero at any point of the box."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from polybound.certificates.cells import Cells
from polybound.certificates.expansion import First, first_order
from polybound.certificates.forms import Combinations
from polybound.certificates.network import Network

__all__ = ["Conjunctions"]

_TURNS = 24
"""Steps towards the best combination of a claim's forms."""


class Conjunctions(Combinations):
    r"""Each claim says of some rows of `weights f + constant` that their maximum is positive all over the box.

    It holds where any combination `sum_i lambda_i g_i` with `lambda >= 0` is positive. The combination is chosen anew
    for each cell: the one whose bound of first order is largest, nearly.

    Args:
        net: the network.
        weights: (rows, classes).
        constant: (rows,).
        sizes: how many rows each claim has; the first so many are the first claim's, and so on. None is empty.
    """

    def __init__(self, net: Network, weights: Tensor, constant: Tensor, sizes: list[int]) -> None:
        super().__init__(net, weights, constant)
        self.claims = len(sizes)
        self.alone = all(size == 1 for size in sizes)
        starts = [sum(sizes[:claim]) for claim in range(len(sizes))]
        widest = max(sizes, default=1)
        # A claim with fewer rows than the widest has its last one several times.
        places = [[start + min(i, size - 1) for i in range(widest)] for start, size in zip(starts, sizes, strict=True)]
        self.places = torch.tensor(places, dtype=torch.int64).reshape(len(sizes), widest)
        self.sizes, self.starts = sizes, starts

    def by_claim(self, values: Tensor) -> Tensor:
        """The largest form of each claim."""
        return values[:, self.places].amax(-1)

    def first_rows(self, values: Tensor) -> Tensor:
        """The row of the largest form of each claim."""
        best = values[:, self.places].argmax(-1, keepdim=True)
        return self.places.expand(len(values), -1, -1).gather(-1, best).squeeze(-1)

    def coefficients(self, _image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """The rows of a claim."""
        rows = slice(self.starts[claim], self.starts[claim] + self.sizes[claim])
        return self.weights[rows], self.constant[rows]

    def members(self, cells: Cells, /) -> tuple[Tensor, Tensor] | None:
        """The forms of each cell's claim."""
        if self.alone:
            return None
        rows = self.places[cells.claim]
        return self.w[rows], self.offset[rows]

    def combined(self, cells: Cells) -> Cells:
        """The cells, each with the combination of its claim's forms whose first order is best over its box."""
        members = self.members(cells)
        if members is None or not len(cells):
            return cells
        c, r = cells.centre()
        reach = self.net.slack(torch.maximum(cells.lower.abs(), cells.upper.abs()))
        slack = self.slack(reach).gather(1, self.places[cells.claim])
        first = first_order(self.net, c, r, *members)
        share = _best_share(first)
        w, constant = ((share.unsqueeze(1) @ members[0]).squeeze(1), (share * members[1]).sum(-1))
        # The sum over the members adds as many roundings to each term as there are members, and one.
        more = (1 + (share.shape[1] + 2) / self.net.roundings) * (1 + 2.0**-20)
        total = (share * slack).sum(-1) * more + 2.0**-900
        return replace(cells, w=w, constant=constant, slack=total, target=total)


def _best_share(first: First) -> Tensor:
    """Shares of a claim's forms, (N, forms), not negative, with a large bound of first order; they prove nothing.

    `L(lambda) = sum_i lambda_i (g0_i - R_i) - ||sum_i lambda_i G_i||_1` is concave: multiplicative steps along its
    slope, each form scaled to size 1, from the best single form and from the mean of all.
    """
    scale = (first.g0.abs() + first.G.abs().sum(-1) + first.R).clamp_min(2.0**-500)
    level, G = (first.g0 - first.R) / scale, first.G / scale.unsqueeze(-1)
    single = level - G.abs().sum(-1)
    best, which = single.max(-1)
    chosen = torch.nn.functional.one_hot(which, single.shape[1]).to(single.dtype)
    share = torch.full_like(single, 1 / single.shape[1])
    for turn in range(_TURNS):
        total = (share.unsqueeze(1) @ G).squeeze(1)
        value = (share * level).sum(-1) - total.abs().sum(-1)
        better = value > best
        best, chosen = torch.where(better, value, best), torch.where(better.unsqueeze(-1), share, chosen)
        slope = level - (G @ total.sign().unsqueeze(-1)).squeeze(-1)
        share = torch.softmax(share.clamp_min(1e-12).log() + slope * (4 / (1 + turn / 4)), -1)
    return chosen / scale
