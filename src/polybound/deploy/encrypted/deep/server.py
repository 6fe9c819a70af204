"""The server of a graph: it has the network and clients' public keys, and cannot decrypt anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polybound.deploy.encrypted.deep.ciphertexts import Ciphertexts
from polybound.deploy.encrypted.deep.execute import Evaluation
from polybound.deploy.encrypted.deep.plan import GraphPlan
from polybound.deploy.encrypted.seal import Keys
from polybound.deploy.encrypted.server import NetworkServer


class GraphServer(NetworkServer):
    """The network of a graph's plan, ready to be evaluated on ciphertexts; its weights are encoded once.

    Args:
        plan: the plan.
        done: is called with the number of values whose weights are encoded.
    """

    def __init__(self, plan: GraphPlan, done: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(plan, 1 << len(plan.high), plan.ranges.forms[-1][0], plan.places)
        self.plan = plan
        levels = plan.chain.levels(self.scheme.moduli)
        self._evaluation = Evaluation(plan.circuit, levels, Ciphertexts(self.scheme), done)

    def _logits(self, pixels: list[Any], keys: Keys, done: Callable[[int], None]) -> tuple[Any, float]:
        engine = Ciphertexts(self.scheme, keys)
        logits = self._evaluation(engine, pixels, done)[0]
        return engine.nothing(1, 2.0**self.plan.chain.output) if logits is None else logits, 0.0
