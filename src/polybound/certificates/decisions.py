"""The ledger of decisions: whether every claim holds everywhere, or fails at a point of the box."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nextafter

import torch
from torch import Tensor

from polybound.certificates.attack import confirm, enclosed
from polybound.certificates.boxes import Sides
from polybound.certificates.cells import Cells
from polybound.certificates.forms import Forms
from polybound.certificates.ledger import Ledger
from polybound.certificates.proofs.exact import exact_forms

__all__ = ["Decisions"]


class Decisions(Ledger):
    """A claim says that its form, or the largest of its forms, is positive; one that fails decides its image.

    Attributes:
        rung: the name of what decided each image; empty while it is open.
        counterexample: of each falsified image, with the claim that fails there.
    """

    def __init__(self, forms: Forms, images: int, inner: Sides, keep: bool) -> None:
        super().__init__(forms, images, inner, keep)
        self.rung = [""] * images
        self.counterexample: dict[int, tuple[Tensor, int]] = {}

    def falsify(self, image: int, x: Tensor, claim: int, rung: str) -> None:
        """Write down a counterexample, if the real polynomial confirms it at the nearest point of the true box."""
        if image in self.counterexample:
            return
        x = self.within(image, x)
        if confirm(self.forms, image, claim, x):
            self.counterexample[image] = (x.clone(), claim)
            self.rung[image] = rung

    def see_inputs(self, images: Tensor, x: Tensor, value: Tensor, slack: Tensor, /) -> None:
        """Falsify the images that are counterexamples themselves."""
        if not value.shape[1]:
            return
        worst, claim = value.min(1)
        # Infinity stands for what is not asked.
        for row in torch.nonzero((worst <= slack.amax(1)) & (worst < inf)).squeeze(1).tolist():
            self.falsify(int(images[row]), x[row], int(claim[row]), "clean")

    def see(self, cells: Cells, value: Tensor, where: Tensor) -> None:
        """Falsify the images of cells in which a form of at most zero was seen."""
        for index in torch.nonzero(value <= 0).squeeze(1).tolist():
            self.falsify(int(cells.image[index]), where[index], int(cells.claim[index]), "attack")

    def first(self, images: Tensor, bound: Tensor) -> Tensor:
        """Enter the bounds of first order, (images, claims), infinity where nothing is asked."""
        self.bound[images] = torch.maximum(self.bound[images], bound)
        for image in images[(bound > 0).all(1)].tolist():
            self.rung[image] = self.rung[image] or "first"
        if self.keep:
            for row, claim in torch.nonzero((bound > 0) & (bound < inf)).tolist():
                self.proofs[int(images[row]), claim] = {"by": self.rule("first")}
        return (bound <= 0) & ~self.falsified(images).unsqueeze(1)

    def falsified(self, images: Tensor) -> Tensor:
        """Which images have a counterexample."""
        return torch.tensor([image in self.counterexample for image in images.tolist()], dtype=torch.bool)

    def undecided(self, cells: Cells) -> Cells:
        """The cells of images that are not falsified."""
        if not self.counterexample:
            return cells
        gone = self.falsified(cells.image)
        return cells[~gone] if bool(gone.any()) else cells

    def aimed(self, cells: Cells, value: Tensor, /) -> Cells:
        """Cutting off only what is above a part of the least form seen leaves a margin worth telling."""
        return replace(cells, target=torch.maximum(cells.slack, 0.1 * value))

    def urgency(self, cells: Cells) -> Tensor:
        """The least bounds first."""
        return cells.bound

    def close_point(self, cells: Cells, index: int) -> None:
        """By the sign of its largest form, which rational arithmetic tells where float64 does not."""
        image, claim, x = int(cells.image[index]), int(cells.claim[index]), cells.lower[index]
        a, b = self.forms.coefficients(image, claim)
        value, off = enclosed(self.forms.net, a, b, x.unsqueeze(0))
        lower = float((value - off).max())
        if not lower > 0:
            exact = max(exact_forms(self.forms.net.factors, x, a, b))
            if exact <= 0:
                # Outside of the true box, by a rounding, it is no counterexample; no margin above it is proven.
                self.lower_floor(cells, index, nextafter(float(exact), -inf))
                self.falsify(image, x, claim, "attack")
                return
            lower = float(exact)
        # A positive value below the least number leaves a margin of 0: it decides nothing, and is not above the truth.
        lower = max(nextafter(lower, -inf), 0.0)
        self.note(cells[index : index + 1], torch.tensor([lower], dtype=torch.float64), lambda _: {"by": "point"})
        self.close(cells, index, lower, "branch")

    def _proven(self, image: int, rung: str, /) -> None:
        if bool((self.bound[image] > 0).all()):
            self.rung[image] = self.rung[image] or rung
