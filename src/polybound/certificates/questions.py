"""What `certify` is asked, in blocks of images that can be answered one by one, on any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polybound.certificates import ladder
from polybound.certificates.ball_ladder import ladder_over
from polybound.certificates.ball_ledgers import BallDecisions
from polybound.certificates.balls import Balls
from polybound.certificates.decisions import Decisions
from polybound.certificates.forms import Margins
from polybound.certificates.inputs import Boxes
from polybound.certificates.ladder import TOPS
from polybound.certificates.network import Network
from polybound.certificates.relax import relax
from polybound.certificates.result import Certificates, Status
from polybound.parallel import in_workers

__all__ = ["Question"]

_HEAVY, _LEAST, _BLOCKS = 2**14, 4, 8
"""Where a factor has so many weights, blocks are smaller, of at least so many images, so that there are so many."""


@dataclass(frozen=True, eq=False)
class Question:
    """Whether some point of each box, or ball, is not classified as its label.

    Attributes:
        net: the network.
        labels: (images,).
        boxes: the boxes, or those around the balls.
        balls: the balls; None if it is about the boxes.
        shape: of one input.
        method: as in `certify`.
        budget: seconds of branch and bound for each image.
        nodes: cells that branch and bound splits for each image at most.
        keep: whether to keep the proofs.
    """

    net: Network
    labels: Tensor
    boxes: Boxes
    balls: Balls | None
    shape: tuple[int, ...]
    method: str
    budget: float
    nodes: float
    keep: bool

    def __len__(self) -> int:
        return len(self.labels)

    def answer(self, workers: int, on_progress: Callable[[int], None] | None) -> Certificates:
        """The certificates, some blocks at once with several workers.

        The blocks depend on the number of images alone, so that the answers do not depend on the number of workers.
        """
        net = self.net
        with torch.no_grad():
            _ = net.stretch, net.norms_S  # once for a model, before the clock of the first images starts
            if self.balls is not None:
                _ = net.norms_A
        found: list[Certificates] = []
        for part in in_workers(_answer, list(self._blocks()), workers):
            found.append(part)
            if on_progress is not None:
                on_progress(sum(map(len, found)))
        return Certificates.joined(found)

    def _blocks(self) -> Iterator[Question]:
        size = ladder.IMAGES
        if self.net.features * self.net.breadth >= _HEAVY:
            size = min(size, max(_LEAST, -(-len(self) // _BLOCKS)))
        for start in range(0, max(1, len(self)), size):
            some = slice(start, start + size)
            balls = None if self.balls is None else self.balls.part(some)
            yield replace(self, labels=self.labels[some], boxes=self.boxes.part(some), balls=balls)


def _answer(asked: Question) -> Certificates:
    """The certificates of one block."""
    forms, keep = Margins(asked.net, asked.labels), asked.keep and asked.method in TOPS
    boxes, balls = asked.boxes, asked.balls
    if balls is None:
        ledger = Decisions(forms, len(asked), boxes.inner, keep)
    else:
        ledger = BallDecisions(forms, balls, boxes.inner, keep)
    with torch.no_grad():
        if asked.method in TOPS:
            limits = {"budget": asked.budget, "nodes": asked.nodes}
            ladder_over(forms, boxes, balls, ledger, top=TOPS[asked.method], **limits).climb()
        else:
            relax(forms, boxes, ledger, asked.method, balls=balls)
            ledger.rung = [asked.method if rung == "first" else rung for rung in ledger.rung]
    return _certificates(ledger, asked)


def _certificates(ledger: Decisions, asked: Question) -> Certificates:
    margin = ledger.bound.amin(1)
    status: list[Status] = []
    for image, least in enumerate(margin.tolist()):
        falsified = image in ledger.counterexample
        if falsified and least > 0:
            raise AssertionError("an image is both verified and falsified: please report this")
        status.append("falsified" if falsified else "verified" if least > 0 else "undecided")
    found = [ledger.counterexample.get(image) for image in range(len(status))]
    boxes, shape = asked.boxes, (len(asked), *asked.shape)
    return Certificates(
        status=status,
        margin=margin,
        counterexample=[None if pair is None else pair[0].reshape(asked.shape) for pair in found],
        rung=ledger.rung,
        seconds=ledger.spent,
        cost=ledger.cost,
        label=asked.labels,
        rival=torch.tensor([-1 if pair is None else pair[1] for pair in found], dtype=torch.int64),
        eps=boxes.eps if boxes.eps is None or boxes.eps.ndim == 1 else boxes.eps.reshape(shape),
        box=boxes.sides and (boxes.sides[0].reshape(shape), boxes.sides[1].reshape(shape)),
        method=asked.method,
        norm="inf" if asked.balls is None else "2",
        proofs=ledger.proofs if ledger.keep else None,
    )
