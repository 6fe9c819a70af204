"""An independent check of certificates, in ball arithmetic: it shares no arithmetic with what made them."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nextafter
from typing import Any

import torch

from polybound.certificates.arb_algebra import Arb, Vector, arb, dot, vector
from polybound.certificates.check_caps import beyond_cap, cap_ball, moving, within_whole
from polybound.certificates.check_steps import bound_of, distance, prove_cut, prove_monotone, trusted
from polybound.certificates.enclosure_regions import Ball, Box, RefusedError
from polybound.certificates.enclosures import Enclosures
from polybound.certificates.exact import exact_forms, exact_margin
from polybound.models import PolynomialNetwork

__all__ = ["Checker"]

Numbers = float | list[float]
"""One number for all features, or one for each."""


Form = tuple[list[float], float]
"""The weights of a linear form of the outputs, and its constant."""

Sides = tuple[list[Fraction], list[Fraction]]


class Checker:
    """Proves the certificates of one model anew.

    Args:
        model: the model.
        content: of a file: `domain`, two numbers or two lists of one for each feature, or None; `stretch`, `norms` and
            `tops` as `Enclosures` takes them; `forms` of intervals, if there are any.
    """

    def __init__(self, model: PolynomialNetwork, content: dict[str, Any]) -> None:
        self.factors = model.factors().double()
        domain = content["domain"]
        self.domain = None if domain is None else [self._exactly(side) for side in domain]
        self.enclosures = Enclosures(self.factors, content["stretch"], content["norms"], content.get("tops"))
        self.forms = _forms(content.get("forms"), self.factors.C.outputs)
        self.ball: Ball | None = None

    def check(self, entry: dict[str, Any]) -> None:
        """Refuse an image's certificate, unless it holds."""
        x = [float(v) for v in entry["x"]]
        if len(x) != self.factors.features:
            raise RefusedError("an input does not fit the model")
        box = self._box(entry, [Fraction(v) for v in x])
        self.ball = self._ball(entry, x)
        outer = Box([_down(v) for v in box[0]], [_up(v) for v in box[1]])
        if entry["status"] == "falsified":
            self._counterexample(entry, box)
        elif entry["status"] == "verified":
            label = int(entry["label"])
            for rival in range(self.factors.C.outputs):
                if rival != label:
                    self._prove(entry["proofs"][str(rival)], outer, *self.enclosures.margin(label, rival))
        elif entry["status"] == "bounded":
            self._intervals(entry, outer)
            self._attained(entry, box)
        elif entry["status"] != "undecided":
            raise RefusedError(f"there is no status {entry['status']!r}")

    def _exactly(self, values: Numbers) -> list[Fraction]:
        """One number for each feature, from one for all or a list of them."""
        each = values if isinstance(values, list) else [values] * self.factors.features
        if len(each) != self.factors.features:
            raise RefusedError("a box does not fit the model")
        return [Fraction(float(value)) for value in each]

    def _box(self, entry: dict[str, Any], x: list[Fraction]) -> Sides:
        if ("box" in entry) == ("eps" in entry):
            raise RefusedError("a box must have either sides or radii")
        if "box" in entry:
            low, high = (self._exactly(list(side)) for side in entry["box"])
        else:
            eps = self._exactly(entry["eps"])
            if any(value < 0 for value in eps):
                raise RefusedError("a negative radius")
            low, high = ([v + s * e for v, e in zip(x, eps, strict=True)] for s in (-1, 1))
            if self.domain is not None:
                least, most = self.domain
                low = [max(v, end) for v, end in zip(low, least, strict=True)]
                high = [min(v, end) for v, end in zip(high, most, strict=True)]
        if any(not a <= v <= b for a, v, b in zip(low, x, high, strict=True)):
            raise RefusedError("an input lies outside of its box or of the domain")
        return low, high

    def _ball(self, entry: dict[str, Any], x: list[float]) -> Ball | None:
        """The ball that an entry is about, within its box; None if it is about all of the box."""
        norm = entry.get("norm", "inf")
        if norm == "inf":
            return None
        if norm != "2" or "eps" not in entry or not self.enclosures.tops:
            raise RefusedError("a ball needs the norm 2, radii and norms")
        r = [float(value) for value in self._exactly(entry["eps"])]
        domain = None if self.domain is None else [[float(v) for v in side] for side in self.domain]
        return Ball.within(x, r, domain)

    def _counterexample(self, entry: dict[str, Any], box: Sides) -> None:
        point, label, rival = [float(v) for v in entry["counterexample"]], int(entry["label"]), int(entry["rival"])
        if rival == label:
            raise RefusedError("a counterexample's rival is its label")
        self._place(point, box, "a counterexample")
        logits = self.enclosures.logits(vector(point))
        if logits[label] < logits[rival]:
            return
        if exact_margin(self.factors, torch.tensor(point, dtype=torch.float64), label, rival) > 0:
            raise RefusedError("a counterexample is classified as its label")

    def _place(self, point: list[float], box: Sides, what: str) -> None:
        """Refuse a point that is outside of the box or of the ball."""
        if not all(a <= Fraction(v) <= b for v, a, b in zip(point, *box, strict=True)):
            raise RefusedError(f"{what} lies outside of its box")
        if self.ball is not None and not distance(self.ball, point) <= 1:
            raise RefusedError(f"{what} lies outside of its ball")

    def _intervals(self, entry: dict[str, Any], outer: Box) -> None:
        """Prove that every form is above the lower end of its interval and below the upper one."""
        lower, upper, proofs = (list(entry[name]) for name in ("lower", "upper", "proofs"))
        rows = len(self.forms)
        if not rows or not len(lower) == len(upper) == rows or len(proofs) != 2 * rows:
            raise RefusedError("the intervals do not fit the forms")
        for row, (weights, constant) in enumerate(self.forms):
            w, at = self.enclosures.form(vector(weights), arb(constant))
            if lower[row] is not None:
                self._prove(proofs[row], outer, w, at - arb(float(lower[row])))
            if upper[row] is not None:
                self._prove(proofs[rows + row], outer, [-value for value in w], arb(float(upper[row])) - at)

    def _attained(self, entry: dict[str, Any], box: Sides) -> None:
        """Prove that each form is at most `lowest` and at least `highest` at the points that are named for it."""
        for name, sign in (("lowest", 1), ("highest", -1)):
            for form, end, at in zip(self.forms, entry[name], entry[f"{name}_at"], strict=True):
                if end is not None:
                    point = [float(v) for v in at]
                    self._place(point, box, "a point where a value is attained")
                    self._prove_value(form, point, sign, float(end))

    def _prove_value(self, form: Form, point: list[float], sign: int, end: float) -> None:
        """Prove that `sign` times a form is at most `sign` times `end` at a point."""
        value = dot(vector(form[0]), self.enclosures.logits(vector(point))) + arb(form[1])
        if sign * value <= sign * arb(end):
            return
        a, b = (torch.tensor(part, dtype=torch.float64) for part in ([form[0]], [form[1]]))
        (exact,) = exact_forms(self.factors, torch.tensor(point, dtype=torch.float64), a, b)
        if not sign * exact <= sign * Fraction(end):
            raise RefusedError("a value is not attained where the file says")

    def _prove(self, node: dict[str, Any], box: Box, w: Vector, constant: Arb) -> None:
        """Prove that `w.y_k + constant` is positive over a box, by the tree of steps that begins with `node`.

        If there is a ball, over what the box and the ball have in common.
        """
        stack = [(node, box, self.ball)]
        while stack:
            node, box, ball = stack.pop()
            if node.get("by") == "cap":
                stack.append((node["then"], box, self._cap(node, box, ball, w, constant)))
            elif ("by" in node and "split" not in node) or "box" in node:
                narrowed = self._step(node, box, ball, w, constant)
                if narrowed is not None:
                    stack.append((node["then"], narrowed, ball))
            elif "split" in node:
                d, at = int(node["split"][0]), float(node["split"][1])
                stack.append((node["low"], box.with_sides([[d, box.lower[d], at]]), ball))
                stack.append((node["high"], box.with_sides([[d, at, box.upper[d]]]), ball))
            else:
                raise RefusedError("a proof ends before it is complete")

    def _step(self, node: dict[str, Any], box: Box, ball: Ball | None, w: Vector, constant: Arb) -> Box | None:
        """Prove one step; returns the box that is left, None if nothing is."""
        if node["by"] in ("ball", "ball slopes", "trust", "trust absorbed", "outside"):
            self._prove_in_ball(node, box, ball, w, constant)
            return None
        if node["by"] in ("first", "slopes", "point"):
            if not self.enclosures.first(box, w, constant, slopes=node["by"] == "slopes") > 0:
                raise RefusedError("a bound of first order is not positive")
            return None
        on = {int(d): i for i, d in enumerate(node["on"])}
        if any(high > low and d not in on for d, (low, high) in enumerate(zip(box.lower, box.upper, strict=True))):
            raise RefusedError("a step leaves out coordinates that move")
        expansion = self.enclosures.second(box, w, constant, list(on))
        mu, v = vector(node["mu"]), vector(node["v"])
        if len(mu) != len(on) or len(v) != len(on) or not all(abs(value) <= 1 for value in v):
            raise RefusedError("a step's point lies outside of its box")
        lower, p = bound_of(expansion, mu, v, absorb=node["by"] == "absorbed")
        if "box" not in node:
            if not lower > 0:
                raise RefusedError("a bound of second order is not positive")
            return None
        narrowed = box.with_sides(node["box"])
        fixed = {int(d) for d in node.get("monotone", [])}
        for coordinate, low, high in node["box"]:
            d = int(coordinate)
            i = on[d]
            if d in fixed:
                prove_monotone(expansion, i, at_lower=low == high == box.lower[d], at_upper=low == high == box.upper[d])
            else:
                prove_cut(box, d, low, high, p[i], mu[i], -lower)
        return narrowed

    def _prove_in_ball(self, node: dict[str, Any], box: Box, ball: Ball | None, w: Vector, constant: Arb) -> None:
        """Prove that the form is positive over a ball, or that the box has no point of the image's."""
        if ball is None or self.ball is None:
            raise RefusedError("a step about a ball in a proof about a box")
        if node["by"] == "outside":
            nearest = [min(max(v, low), high) for v, low, high in zip(self.ball.x, box.lower, box.upper, strict=True)]
            if not distance(self.ball, nearest) > 1:
                raise RefusedError("a box that is left out meets the ball")
            return
        if node["by"] in ("ball", "ball slopes"):
            lower = self.enclosures.first(ball, w, constant, slopes=node["by"] == "ball slopes")
        else:
            on = moving(ball, node)
            expansion = self.enclosures.second(ball, w, constant, on)
            lower = trusted(within_whole(expansion, ball, self.ball, on, node), ball, on, node)
        if not lower > 0:
            raise RefusedError("a bound over a ball is not positive")

    def _cap(self, node: dict[str, Any], box: Box, ball: Ball | None, w: Vector, constant: Arb) -> Ball:
        """Prove that the form is positive over a ball but for a cap; returns the ball that holds the cap."""
        if ball is None or self.ball is None:
            raise RefusedError("a step about a ball in a proof about a box")
        on = moving(ball, node)
        expansion = within_whole(self.enclosures.second(ball, w, constant, on), ball, self.ball, on, node)
        if not trusted(beyond_cap(expansion, node), ball, on, node | {"by": "trust absorbed"}) > 0:
            raise RefusedError("a bound outside of a cap is not positive")
        return cap_ball(ball, box, on, node)


def _forms(forms: dict[str, Any] | None, classes: int) -> list[Form]:
    if forms is None:
        return []
    pairs = [([float(v) for v in a], float(b)) for a, b in zip(forms["weights"], forms["constant"], strict=True)]
    if any(len(weights) != classes for weights, _ in pairs):
        raise RefusedError("its forms do not fit the model")
    return pairs


def _down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    near = float(value)
    return near if Fraction(near) <= value else nextafter(near, -inf)


def _up(value: Fraction) -> float:
    return -_down(-value)
