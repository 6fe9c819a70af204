"""What `certify` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

__all__ = ["Certificates", "Status"]

Status = Literal["verified", "falsified", "undecided"]


@dataclass(frozen=True, eq=False, repr=False)
class Certificates:
    """One certificate for each image.

    Attributes:
        status: "verified": every point of the box or ball is classified as the label. "falsified": `counterexample` is
            not. "undecided": neither was shown.
        margin: proven lower bounds of `min over rivals and points of f_label - f_rival`, (images,), float64.
        counterexample: a point of the box or ball whose margin is at most zero, in the input's shape, float64; None if
            there is none.
        rung: what decided each image: "clean" (misclassified as it is), "first", "second", "branch" (verified),
            "attack" (falsified), the method's name, or "".
        seconds: time of each image, its share of what was done in batches, (images,).
        cost: seconds of each rung, over all images.
        label: the labels.
        rival: the class that the counterexample is classified as at least as strongly; -1 if there is none.
        eps: radius of each box or ball, (images,), or of each feature, (images, *shape); None if the sides were given.
        box: the sides that were given, (images, *shape) each; None if radii were.
        method: the method asked for.
        norm: of the ball, "inf" or "2".
        proofs: proofs by image and rival, if they were kept; `save_certificates` writes them.
    """

    status: list[Status]
    margin: Tensor
    counterexample: list[Tensor | None]
    rung: list[str]
    seconds: Tensor
    cost: dict[str, float]
    label: Tensor
    rival: Tensor
    eps: Tensor | None
    box: tuple[Tensor, Tensor] | None
    method: str
    norm: str = "inf"
    proofs: dict[tuple[int, int], dict[str, Any]] | None = None

    @staticmethod
    def joined(parts: Sequence[Certificates]) -> Certificates:
        """Those of several groups of images, one after another."""
        first, cost = parts[0], Counter[str]()
        proofs: dict[tuple[int, int], dict[str, Any]] = {}
        start = 0
        for part in parts:
            cost.update(part.cost)
            proofs |= {(start + image, rival): proof for (image, rival), proof in (part.proofs or {}).items()}
            start += len(part)
        lists, tensors = ("status", "counterexample", "rung"), ("margin", "seconds", "label", "rival")
        changes: dict[str, Any] = {name: [v for part in parts for v in getattr(part, name)] for name in lists}
        changes |= {name: torch.cat([getattr(part, name) for part in parts]) for name in tensors}
        changes["eps"] = None if first.eps is None else torch.cat([part.eps for part in parts if part.eps is not None])
        changes["box"] = _joined_sides([part.box for part in parts if part.box is not None])
        return replace(first, **changes, cost=dict(cost), proofs=None if first.proofs is None else proofs)

    def __len__(self) -> int:
        return len(self.status)

    def __repr__(self) -> str:
        counts = ", ".join(f"{status}={self.count(status)}" for status in get_args(Status))
        return f"Certificates(images={len(self)}, {counts}, method={self.method!r})"

    def count(self, status: Status) -> int:
        """How many images have that status."""
        return self.status.count(status)

    def summary(self) -> dict[str, Any]:
        """Counts, shares and times, as JSON can hold them."""
        total = max(1, len(self))
        correct = len(self) - self.rung.count("clean")
        return {
            "images": len(self),
            "method": self.method,
            "clean accuracy": correct / total,
            "certified accuracy": self.count("verified") / total,
            "attacked accuracy": (len(self) - self.count("falsified")) / total,
            "verified": self.count("verified"),
            "falsified": self.count("falsified"),
            "undecided": self.count("undecided"),
            "rungs": dict(Counter(rung for rung in self.rung if rung)),
            "rung seconds": {rung: round(seconds, 6) for rung, seconds in self.cost.items()},
            "seconds": float(self.seconds.sum()),
            "mean milliseconds": 1000 * float(self.seconds.sum()) / total,
            "largest milliseconds": 1000 * float(self.seconds.max()) if len(self) else 0.0,
        }


def _joined_sides(sides: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    return (torch.cat([low for low, _ in sides]), torch.cat([high for _, high in sides])) if sides else None
