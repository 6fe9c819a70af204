"""Linear forms of the logits, `a.f(x) + b`, to be bounded from below; and cells, parts of the boxes of inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from polybound.certificates.bounds.first_order import First, first_order
from polybound.certificates.input_sets import centre
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.proofs.exact import exact_forms
from polybound.theory import ULP


@dataclass(frozen=True, eq=False)
class ImageForms:
    """The forms of some images over their inputs.

    Attributes:
        w: each form as weights of the last product, `a C`: (images, rows, units).
        constant: `a.beta + b`, (images, rows).
        slack: how far float64 can be off over the inputs, (images, rows); see `PreparedNetwork`.
        asked: which of them are to be bounded, (images, rows).
    """

    w: Tensor
    constant: Tensor
    slack: Tensor
    asked: Tensor


class Forms(ABC):
    """The forms that are to be bounded for each image.

    Attributes:
        net: the network.
        claims: number of statements about each image; each is about one form, or about several.
        alone: whether every claim is about one form.
    """

    net: PreparedNetwork
    claims: int
    alone = True

    @abstractmethod
    def of_images(self, images: Tensor, slack: Tensor) -> ImageForms:
        """The forms of some images, whose logits are off by at most `slack`, (images, classes)."""

    @abstractmethod
    def values(self, images: Tensor, logits: Tensor, /) -> Tensor:
        """The forms of some images where their logits are given, (images, rows)."""

    @abstractmethod
    def coefficients(self, image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """The forms of a claim as they stand, a (forms, classes) and b (forms,)."""

    def by_claim(self, values: Tensor) -> Tensor:
        """From values of forms, (images, rows), the largest of each claim, (images, claims)."""
        return values

    def first_rows(self, values: Tensor) -> Tensor:
        """The row of the form that is largest in each claim, (images, claims)."""
        return torch.arange(self.claims).expand(len(values), -1)

    def members(self, _cells: Cells, /) -> tuple[Tensor, Tensor] | None:
        """The forms of each cell's claim, w (N, forms, units) and constant (N, forms); None if it is one."""
        return None

    def combined(self, cells: Cells) -> Cells:
        """The cells, each with the form that serves its claim best."""
        return cells


class Margins(Forms):
    """The margins `f_label - f_rival`, a row for each class; the label's own is not asked."""

    def __init__(self, net: PreparedNetwork, y: Tensor) -> None:
        self.net, self.y, self.claims = net, y, net.classes

    def of_images(self, images: Tensor, slack: Tensor) -> ImageForms:
        """The margins of some images."""
        net, y = self.net, self.y[images]
        label = y.unsqueeze(1)
        w, constant = net.C[y].unsqueeze(1) - net.C, net.beta[y].unsqueeze(1) - net.beta
        asked = torch.ones_like(slack, dtype=torch.bool).scatter(1, label, False)
        return ImageForms(w, constant, slack + slack.gather(1, label), asked)

    def values(self, images: Tensor, logits: Tensor, /) -> Tensor:
        """Margins from logits; infinity for the label."""
        label = self.y[images].unsqueeze(1)
        return (logits.gather(1, label) - logits).scatter(1, label, torch.inf)

    def coefficients(self, image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """`e_label - e_rival`."""
        a = torch.zeros(1, self.net.classes, dtype=torch.float64)
        a[0, self.y[image]] += 1.0
        a[0, claim] -= 1.0
        return a, a.new_zeros(1)


class Combinations(Forms):
    r"""The same forms of every image, `weights f + constant`.

    Each claim says of one row, or of several, that their maximum is positive everywhere. A claim about several rows
    holds where any combination `sum_i lambda_i g_i` with `lambda >= 0` is positive: each cell has a combination of its
    own, whose bound of first order is nearly the largest.

    Rounding. A form's terms are those of the logits times a; its sum has `classes + 1` more summands. So it is off by
    at most `gamma_(D + classes + 2)` times `sum_c |a_c| P_c + |b|`, where D and P are those of `PreparedNetwork`. What
    underflows in `a C`, where a is small, is multiplied by no more than Z, which the logits' slack has 2^-480 of.

    Args:
        net: the network.
        weights: (rows, classes), float64.
        constant: (rows,), float64.
        sizes: number of rows of each claim, at least 1; the rows stand in the order of the claims. By default every
            claim has one row.
    """

    def __init__(self, net: PreparedNetwork, weights: Tensor, constant: Tensor, sizes: list[int] | None = None) -> None:
        self.net, self.weights, self.constant = net, weights, constant
        self.w, self.offset = weights @ net.C, weights @ net.beta + constant
        self.sizes = [1] * len(weights) if sizes is None else sizes
        self.claims, self.alone = len(self.sizes), all(size == 1 for size in self.sizes)
        self.starts = [sum(self.sizes[:claim]) for claim in range(self.claims)]
        # A claim with fewer rows than the widest has its last one several times.
        widest = range(max(self.sizes, default=1))
        places = [
            [start + min(i, size - 1) for i in widest] for start, size in zip(self.starts, self.sizes, strict=True)
        ]
        self.places = torch.tensor(places, dtype=torch.int64).reshape(self.claims, len(widest))

    def of_images(self, images: Tensor, slack: Tensor) -> ImageForms:
        """The forms of some images."""
        rows = len(self.weights)
        w, constant = self.w.expand(len(images), -1, -1), self.offset.expand(len(images), -1)
        return ImageForms(w, constant, self.slack(slack), torch.ones(len(images), rows, dtype=torch.bool))

    def slack(self, slack: Tensor) -> Tensor:
        """How far the forms are off where the logits are off by `slack`, (images, classes): (images, rows)."""
        D = self.net.roundings
        total = slack @ self.weights.abs().T + self.constant.abs() * (4 * D * ULP)
        total = total * ((1 + (self.net.classes + 2) / D) * (1 + 2.0**-20)) + 2.0**-900
        total = total + slack.amax(-1, keepdim=True) * 2.0**-500
        # Beyond the size that `PreparedNetwork.slack` allows, underflow could have mattered; 0 times infinity is NaN.
        return torch.where(total < 2.0**100 * (4 * D * ULP), total, torch.inf)

    def values(self, _images: Tensor, logits: Tensor, /) -> Tensor:
        """The forms from logits."""
        return logits @ self.weights.T + self.constant

    def coefficients(self, _image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """The rows of a claim."""
        rows = slice(self.starts[claim], self.starts[claim] + self.sizes[claim])
        return self.weights[rows], self.constant[rows]

    def by_claim(self, values: Tensor) -> Tensor:
        """The largest form of each claim."""
        return values if self.alone else values[:, self.places].amax(-1)

    def first_rows(self, values: Tensor) -> Tensor:
        """The row of the largest form of each claim."""
        best = values[:, self.places].argmax(-1, keepdim=True)
        return self.places.expand(len(values), -1, -1).gather(-1, best).squeeze(-1)

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
        reach = self.net.slack(torch.maximum(cells.lower.abs(), cells.upper.abs()))
        slack = self.slack(reach).gather(1, self.places[cells.claim])
        share = best_share(first_order(self.net, *cells.centre(), *members))
        w, constant = ((share.unsqueeze(1) @ members[0]).squeeze(1), (share * members[1]).sum(-1))
        # The sum over the members adds as many roundings to each term as there are members, and one.
        more = (1 + (share.shape[1] + 2) / self.net.roundings) * (1 + 2.0**-20)
        total = (share * slack).sum(-1) * more + 2.0**-900
        return replace(cells, w=w, constant=constant, slack=total, target=total)


STEPS = 24
"""Steps towards the best combination of a claim's forms."""


def best_share(first: First) -> Tensor:
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
    for step in range(STEPS):
        total = (share.unsqueeze(1) @ G).squeeze(1)
        value = (share * level).sum(-1) - total.abs().sum(-1)
        better = value > best
        best, chosen = torch.where(better, value, best), torch.where(better.unsqueeze(-1), share, chosen)
        slope = level - (G @ total.sign().unsqueeze(-1)).squeeze(-1)
        share = torch.softmax(share.clamp_min(1e-12).log() + slope * (4 / (1 + step / 4)), -1)
    return chosen / scale


# What forms are at single points.


def enclosed(net: PreparedNetwork, a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The forms `a f(x) + b` in float64, and how far they can be off, (points, forms) both.

    Args:
        net: the network.
        a: (forms, classes).
        b: (forms,).
        x: (points, features).
    """
    logits, slack = net(x), net.slack(x.abs())
    sizes = logits.abs() @ a.T.abs() + b.abs()
    off = slack @ a.T.abs() + sizes * ((net.classes + 4) * ULP) + 2.0**-1000
    return logits @ a.T + b, torch.nan_to_num(off, nan=torch.inf, posinf=torch.inf)


def confirm(forms: Forms, image: int, claim: int, x: Tensor) -> bool:
    """Whether all forms of a claim are at most zero, of the real polynomial at the float64 point x, (features,)."""
    a, b = forms.coefficients(image, claim)
    value, off = enclosed(forms.net, a, b, x.unsqueeze(0))
    if bool((value < -off).all()):
        return True
    if bool((value > off).any()):
        return False
    return all(exact <= 0 for exact in exact_forms(forms.net.factors, x, a, b))


# Boxes with the form that is to be bounded over each: what the stages of the verifier work on.


@dataclass(frozen=True, eq=False)
class Cells:
    """N boxes, each with one linear form g of the logits, a margin for instance; a row each in every tensor.

    Attributes:
        lower: the boxes' lower corners, (N, features).
        upper: their upper corners.
        w: the form as weights of the last product (`C_y - C_rival` of a margin): (N, units).
        constant: its constant, (N,).
        slack: how far float64 can be off over the box, (N,).
        image: index of the image, (N,).
        claim: which of the image's claims the form is about (of margins, the rival class), (N,).
        bound: the best lower bound proven so far, (N,).
        level: what the form is to be proven to exceed; 0 where its sign is asked, (N,).
        target: what is cut off of the box has a form of at least this, which is not below the level, (N,).
        axis: the coordinate to split next, (N,).
        node: where the proof of this cell goes, an index into the nodes of the proof state, (N,).
    """

    lower: Tensor
    upper: Tensor
    w: Tensor
    constant: Tensor
    slack: Tensor
    image: Tensor
    claim: Tensor
    bound: Tensor
    level: Tensor
    target: Tensor
    axis: Tensor
    node: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: Tensor | slice) -> Cells:
        return Cells(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def centre(self) -> tuple[Tensor, Tensor]:
        """Centres and radii."""
        return centre(self.lower, self.upper)

    def moving(self) -> Tensor:
        """Indices of the coordinates that move in any of the boxes."""
        return torch.nonzero((self.upper > self.lower).any(0)).squeeze(-1)


def join(parts: list[Cells]) -> Cells:
    """All cells in one."""
    return Cells(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Cells)})


def chunks(cells: Cells, units: int, limit: int = 2**23) -> Iterator[Cells]:
    """The cells in groups whose Hessians and slopes stay below `limit` entries; one cell at least.

    A group's expansions are in all coordinates that move in any of its cells. Cells of one image come together: what
    their boxes have in common is computed once.
    """
    moves = cells.upper > cells.lower
    alone = moves.sum(1).tolist()
    start = 0
    while start < len(cells):
        size = max(1, limit // max(1, alone[start] * max(alone[start], units)))
        if size > 1:
            moving = moves[start : start + size].cummax(0).values.sum(1)
            entries = moving * moving.clamp_min(units) * torch.arange(1, len(moving) + 1)
            size = max(1, int((entries <= limit).sum()))
            ahead = cells.image[start : start + size + 1]
            if len(ahead) > size and ahead[size - 1] == ahead[size]:
                # No image is cut, if that is possible.
                size = int((ahead[:size] != ahead[size]).sum()) or size
        yield cells[slice(start, start + size)]
        start += size
