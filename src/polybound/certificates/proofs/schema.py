"""The schema of proof files: what `json.loads` gives becomes an immutable, typed value, or is refused.

The schema refuses every error that can be seen without mathematics, before anything is proven: wrong types, ranges,
lengths and indices, repetitions, numbers that are not finite, missing and unknown fields. Numbers become floats. The
check of proofs then gets values of the right form, and has only their claims to prove.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, NoReturn

from polybound.certificates.proofs import FORMAT
from polybound.errors import FileFormatError, PolyboundError


class RefusedError(PolyboundError):
    """A certificate is not proven."""


Vector = tuple[float, ...]

Form = tuple[Vector, float]
"""Weights and a constant: `weights.f(x) + constant`."""

LARGEST_WHOLE = 2**53
"""Whole numbers up to this one are float64 numbers."""


@dataclass(frozen=True, slots=True)
class First:
    """The bound of first order is positive, over the box or over the ball, by slopes or without them."""

    ball: bool
    slopes: bool


@dataclass(frozen=True, slots=True)
class Second:
    """The bound of second order that mu and v prove, in the coordinates `on`, is positive over the box."""

    on: tuple[int, ...]
    v: Vector
    mu: Vector
    absorbed: bool


@dataclass(frozen=True, slots=True)
class Narrow:
    """That bound excludes all of the box but `sides`; step `then` goes on there.

    Attributes:
        bound: what bounds the form over the box.
        sides: a coordinate with its new lower and upper side each.
        monotone: those of the coordinates that are fixed at the end where the form is least.
        then: the index of the step that proves the rest.
    """

    bound: Second
    sides: tuple[tuple[int, float, float], ...]
    monotone: frozenset[int]
    then: int


@dataclass(frozen=True, slots=True)
class Split:
    """Both halves have a proof: steps `low` and `high`."""

    coordinate: int
    at: float
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Trust:
    """The bound of the trust-region problem that lam, nu and v prove is positive over the ball."""

    on: tuple[int, ...]
    v: Vector
    lam: float
    nu: float
    absorbed: bool


@dataclass(frozen=True, slots=True)
class Cap:
    """That bound excludes all of the ball but the cap `d.u > s`; step `then` goes on in the ball that holds it."""

    bound: Trust
    kappa: float
    s: float
    d: Vector
    centre: Vector
    radii: Vector
    then: int


@dataclass(frozen=True, slots=True)
class Outside:
    """The box has no point of the ball."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a deep network: the bound by intervals of all values is positive."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Of a deep network: so is that by planes through all products.

    Attributes:
        mixtures: for each product how much of the plane through the lower corner is taken, one number or one for each
            entry.
    """

    mixtures: tuple[float | Vector, ...]


@dataclass(frozen=True, slots=True)
class Generators:
    """Of a deep network: so is that by affine arithmetic."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Of a deep network: so is that by all second-order terms, with a diagonal for each product.

    Attributes:
        scale: for each product, the largest multiple of interval arithmetic's diagonal to take; None if its remainder
            stays a generator.
        v: where the tangent touches: of the input's generators, and of those of each product; None for zeros.
    """

    scale: tuple[float | None, ...]
    v: tuple[Vector | None, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """Of a deep network: so is that with one diagonal d for all products, given as v is."""

    d: tuple[Vector | None, ...]
    v: tuple[Vector | None, ...]


Step = First | Second | Narrow | Split | Trust | Cap | Outside | Interval | Planes | Generators | Layers | Whole

Proof = tuple[Step, ...]
"""The steps of a tree, the root first; a step names its successors by their indices, which are larger."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An image's input, and its box or radii.

    Attributes:
        x: the input.
        radii: one for each feature, not negative; None if the box has sides of its own.
        sides: the lower and the upper sides, with x between them; None if there are radii.
    """

    x: Vector
    radii: Vector | None
    sides: tuple[Vector, Vector] | None


@dataclass(frozen=True, slots=True)
class Verified(Claim):
    """The label's logit exceeds every rival's: a proof for each."""

    label: int
    proofs: tuple[tuple[int, Proof], ...]


@dataclass(frozen=True, slots=True)
class Falsified(Claim):
    """The rival's logit is not below the label's at a point."""

    label: int
    rival: int
    point: Vector


@dataclass(frozen=True, slots=True)
class Undecided(Claim):
    """Nothing is claimed."""

    label: int


@dataclass(frozen=True, slots=True)
class Bounded(Claim):
    """Every form stays in its interval, and reaches both ends of a smaller one; None where there is no such end.

    Attributes:
        lower, upper: proven ends, with the proofs that the forms are above or below them.
        lowest, highest: ends that the forms reach, with the points where they do.
    """

    lower: tuple[tuple[float, Proof] | None, ...]
    upper: tuple[tuple[float, Proof] | None, ...]
    lowest: tuple[tuple[float, Vector] | None, ...]
    highest: tuple[tuple[float, Vector] | None, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """All that a file claims.

    Attributes:
        norm: "inf" or "2".
        domain: the least and the largest value of each feature; None if there is none.
        stretch: for each factor a positive number for each feature.
        norms: one for each map in between, not negative.
        tops: one for each factor, not negative; None where there are none, as in files about boxes.
        forms: the forms of intervals; None in files of decisions.
        images: one claim for each image.
        file: the name of the file that they were read from.
        deep: whether they are about a deep network; then there are no stretch, norms and tops.
    """

    norm: str
    domain: tuple[Vector, Vector] | None
    stretch: tuple[Vector, ...]
    norms: Vector
    tops: Vector | None
    forms: tuple[Form, ...] | None
    images: tuple[Verified | Falsified | Undecided | Bounded, ...]
    file: str = "claims"
    deep: bool = False

    @property
    def radii(self) -> tuple[float, float] | None:
        """The least and the largest radius; None if there is none."""
        radii = [radius for image in self.images for radius in image.radii or ()]
        return (min(radii), max(radii)) if radii else None

    def about(self) -> str:
        """The inputs that the claims cover, in words: "l_inf balls of radius 0.1"."""
        if self.radii is None:
            return "boxes" if self.images else "no inputs"
        least, most = self.radii
        return f"l_{self.norm} balls of " + (f"radius {most!r}" if least == most else f"radii {least!r} to {most!r}")


def read_content(path: Path) -> dict[str, Any]:
    """The JSON of a proof file, which fits its digest and names no field twice."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            _damaged("a field occurs twice")
        return fields

    def constant(name: str) -> NoReturn:
        _damaged(f"{name} is not a finite number")

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=distinct, parse_constant=constant)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise FileFormatError("not a file of certificates")
        if content.get("digest") != content_digest(content):
            raise FileFormatError("its content was changed after it was written")
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON ({error})") from error
    return content


def content_digest(content: dict[str, Any]) -> str:
    """The SHA-256 of all of a file's content but the digest itself."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def parse_claims(
    content: dict[str, Any], features: int, degree: int, classes: int, products: Sequence[int] | None = None
) -> Claims:
    """The claims of a file's content about a model of these sizes; of a deep network, with those of its products."""
    if products is None:
        _fields("the file", content, _FILE | {"stretch", "norms"}, {"tops", "forms"})
    else:
        _fields("the file", content, _FILE | {"kind"}, {"forms"})
    forms: tuple[Form, ...] | None = None
    if "forms" in content:
        _fields("forms", content["forms"], {"weights", "constant"})
        rows = _list("forms", content["forms"]["weights"])
        if not rows:
            _damaged("there are no forms")
        constants = _numbers("the forms' constants", content["forms"]["constant"], len(rows))
        weights = (_numbers("a form's weights", row, classes) for row in rows)
        forms = tuple(zip(weights, constants, strict=True))
    entries = _list("images", content["images"])
    images = []
    for number, entry in enumerate(entries):
        try:
            images.append(_Entry(entry, features, classes, forms, products).claim())
        except FileFormatError as error:
            raise FileFormatError(f"image {number}: {error}") from error
    norms = {entry.get("norm", "inf") for entry in entries}
    if len(norms) > 1 or len({image.radii is None for image in images}) > 1:
        _damaged("some images are about boxes, others about balls or about another norm")
    norm = norms.pop() if norms else "inf"
    tops = _numbers("tops", content["tops"], degree, least=0.0) if "tops" in content else None
    if norm == "2" and tops is None and products is None:
        _damaged("balls of the norm 2 need `tops`")
    stretch = _list("stretch", content["stretch"], degree) if products is None else []
    domain = None
    if content["domain"] is not None:
        low, high = (_each("domain", side, features) for side in _list("domain", content["domain"], 2))
        domain = _ordered("domain", low, high)
    return Claims(
        norm,
        domain,
        tuple(_numbers("stretch", each, features, least=5e-324) for each in stretch),
        _numbers("norms", content["norms"], degree - 1, least=0.0) if products is None else (),
        tops,
        forms,
        tuple(images),
        deep=products is not None,
    )


_FILE = {"format", "model", "digest", "domain", "images"}


class _Entry:
    """Reads one image's entry."""

    def __init__(
        self,
        entry: Any,
        features: int,
        classes: int,
        forms: tuple[Form, ...] | None,
        products: Sequence[int] | None,
    ) -> None:
        if not isinstance(entry, dict):
            _damaged(f"an entry is {_shown(entry)}, not an object")
        self.entry, self.features, self.classes, self.forms, self.products = entry, features, classes, forms, products
        self.status = entry.get("status")
        known = _STATUSES if forms is None else {"bounded": _BOUNDED}
        if not isinstance(self.status, str) or self.status not in known:
            _damaged(f"the status is {_shown(self.status)}; a file of this kind has {', '.join(known)}")
        if ("box" in entry) == ("eps" in entry):
            _damaged("a box has either sides or radii")
        norm = entry.get("norm", "inf")
        if not isinstance(norm, str) or norm not in ("inf", "2") or (norm == "2" and "eps" not in entry):
            _damaged(f"the norm is {_shown(norm)}; it is 'inf' or, with radii, '2'")
        self.ball = norm == "2"
        reason = {"reason"} if products is not None and self.status == "undecided" else set[str]()
        _fields("an entry", entry, {"x", "status", *known[self.status]}, {"box", "eps", "norm"} | reason)
        if not isinstance(entry.get("reason", ""), str):
            _damaged(f"the reason is {_shown(entry['reason'])}, not a text")

    def claim(self) -> Verified | Falsified | Undecided | Bounded:
        entry, classes = self.entry, self.classes
        x = self._point("x", entry["x"])
        radii = _each("eps", entry["eps"], self.features, least=0.0) if "eps" in entry else None
        sides = [self._point("box", side) for side in _list("box", entry["box"], 2)] if "box" in entry else None
        region = (x, radii, None if sides is None else _ordered("box", *sides))
        if self.forms is not None:
            return self._bounded(region, len(self.forms))
        label = _index("the label", entry["label"], classes)
        if self.status == "verified":
            rivals = [rival for rival in range(classes) if rival != label]
            _fields("the proofs", entry["proofs"], {str(rival) for rival in rivals})
            return Verified(
                *region, label, tuple((rival, self._proof(entry["proofs"][str(rival)])) for rival in rivals)
            )
        if self.status == "falsified":
            rival = _index("the rival", entry["rival"], classes)
            if rival == label:
                _damaged("the rival is the label")
            return Falsified(*region, label, rival, self._point("the counterexample", entry["counterexample"]))
        return Undecided(*region, label)

    def _point(self, name: str, value: Any) -> Vector:
        return _numbers(name, value, self.features)

    def _bounded(self, region: tuple[Vector, Vector | None, tuple[Vector, Vector] | None], rows: int) -> Bounded:
        ends = {name: _list(name, self.entry[name], rows) for name in _BOUNDED - {"proofs"}}
        proofs = _list("proofs", self.entry["proofs"], 2 * rows)

        def proven(name: str, row: int, proof: Any) -> tuple[float, Proof] | None:
            end = ends[name][row]
            if end is None and proof in (None, {}):
                return None
            steps = self._proof(proof)  # of an end that is not there, too: nothing in a file goes unread
            return None if end is None else (_number(name, end), steps)

        def attained(name: str, row: int) -> tuple[float, Vector] | None:
            point, end = self._point(f"{name}_at", ends[f"{name}_at"][row]), ends[name][row]
            return None if end is None else (_number(name, end), point)

        return Bounded(
            *region,
            lower=tuple(proven("lower", row, proofs[row]) for row in range(rows)),
            upper=tuple(proven("upper", row, proofs[rows + row]) for row in range(rows)),
            lowest=tuple(attained("lowest", row) for row in range(rows)),
            highest=tuple(attained("highest", row) for row in range(rows)),
        )

    def _proof(self, root: Any) -> Proof:
        """The steps of a tree. No recursion: a tree may be deep."""
        nodes, steps = [root], []
        for node in nodes:  # which grows by the nodes that go on
            if not isinstance(node, dict):
                _damaged(f"a step is {_shown(node)}, not an object")

            def follow(key: str, node: dict[str, Any] = node) -> int:
                nodes.append(node[key])
                return len(nodes) - 1

            steps.append(self._step(node, follow) if self.products is None else self._graph_step(node, follow))
            if len(nodes) > _STEPS_OF_GRAPHS and self.products is not None:
                _damaged(f"a proof has more than {_STEPS_OF_GRAPHS:,} steps")
        return tuple(steps)

    def _graph_step(self, node: dict[str, Any], follow: Callable[[str], int]) -> Step:
        """A step of a proof about a deep network."""
        if "split" in node:
            if self.ball:
                _damaged("a ball is cut in two; only boxes are")
            return self._step(node, follow)
        by, products = node.get("by"), self.products or ()
        if not isinstance(by, str) or by not in _GRAPH_STEPS:
            _damaged(f"a step is by {_shown(by)}; known are {', '.join(_GRAPH_STEPS)}")
        _fields(f"a step by {by!r}", node, {"by", *_GRAPH_STEPS[by]})
        if by == "planes":
            given = _list("planes", node["planes"], len(products))
            return Planes(tuple(
                _numbers("planes", one, size, 0.0, 1.0) if isinstance(one, list) else _number("planes", one, 0.0, 1.0)
                for one, size in zip(given, products, strict=True)
            ))  # fmt: skip
        if by == "layers":
            scales = _list("scale", node["scale"], len(products))
            scale = tuple(None if one is None else _number("scale", one, least=0.0) for one in scales)
            return Layers(scale, self._blocks("v", node["v"]))
        if by == "whole":
            return Whole(self._blocks("d", node["d"], 0.0), self._blocks("v", node["v"]))
        return Interval() if by == "interval" else Generators()

    def _blocks(self, name: str, value: Any, least: float = -inf) -> tuple[Vector | None, ...]:
        """Numbers of the generators of the input, and of those of each product."""
        sizes = (self.features, *(self.products or ()))
        return tuple(
            None if one is None else _numbers(name, one, size, least)
            for one, size in zip(_list(name, value, len(sizes)), sizes, strict=True)
        )

    def _step(self, node: dict[str, Any], follow: Callable[[str], int]) -> Step:
        if "split" in node:
            _fields("a split", node, {"split", "low", "high"})
            coordinate, at = _list("split", node["split"], 2)
            return Split(self._coordinate(coordinate), _number("split", at), follow("low"), follow("high"))
        if "by" not in node:
            _damaged("a proof ends before it is complete")
        by = node["by"]
        if not isinstance(by, str) or by not in _STEPS:
            _damaged(f"a step is by {_shown(by)}; known are {', '.join(_STEPS)}")
        about_ball, needed, optional = _STEPS[by]
        if about_ball and not self.ball:
            _damaged("a step about a ball in a proof about a box")
        if by in ("second", "absorbed") and ("box" in node or "then" in node):
            needed, optional = needed | {"box", "then"}, {"monotone"}
            if self.ball and "monotone" in node:
                _damaged("a coordinate is fixed at its end, which may lie outside of the ball")
        _fields(f"a step by {by!r}", node, {"by", *needed}, optional)
        if by == "outside":
            return Outside()
        if not needed:
            return First(ball=about_ball, slopes="slopes" in by)
        on = self._coordinates("on", node["on"])
        if by not in ("second", "absorbed"):
            lam, nu = (_number(name, node.get(name, 0.0), least=0.0) for name in ("lam", "nu"))
            trust = Trust(on, _numbers("v", node["v"], len(on)), lam, nu, by != "trust")
            if by != "cap":
                return trust
            kappa, s = (_number(name, node[name], least=0.0) for name in ("kappa", "s"))
            d, centre = (_numbers(name, node[name], len(on)) for name in ("d", "centre"))
            return Cap(trust, kappa, s, d, centre, _numbers("radii", node["radii"], len(on), least=0.0), follow("then"))
        v = _numbers("v", node["v"], len(on), least=-1.0, most=1.0)
        bound = Second(on, v, _numbers("mu", node["mu"], len(on)), by == "absorbed")
        if "box" not in node:
            return bound
        rows = [_list("a side", side, 3) for side in _list("box", node["box"])]
        coordinates = self._coordinates("box", [row[0] for row in rows])
        if not set(coordinates) <= set(on):
            _damaged("a side's coordinate is not one of the step's")
        monotone = frozenset(self._coordinates("monotone", node.get("monotone", [])))
        if not monotone <= set(coordinates):
            _damaged("a monotone coordinate has no side")
        ends = [(_number("a side", low), _number("a side", high)) for _, low, high in rows]
        if any(low > high for low, high in ends):
            _damaged("a lower side is above the upper one")
        sides = tuple((d, low, high) for d, (low, high) in zip(coordinates, ends, strict=True))
        return Narrow(bound, sides, monotone, follow("then"))

    def _coordinate(self, value: Any) -> int:
        return _index("a coordinate", value, self.features)

    def _coordinates(self, name: str, values: Any) -> tuple[int, ...]:
        found = tuple(self._coordinate(value) for value in _list(name, values))
        if len(set(found)) < len(found):
            _damaged(f"{name} has a coordinate twice")
        return found


_STATUSES = {"verified": {"label", "proofs"}, "falsified": {"label", "rival", "counterexample"}, "undecided": {"label"}}
_BOUNDED = {"lower", "upper", "lowest", "highest", "lowest_at", "highest_at", "proofs"}

_GRAPH_STEPS: dict[str, set[str]] = {
    "interval": set(),
    "planes": {"planes"},
    "generators": set(),
    "layers": {"scale", "v"},
    "whole": {"d", "v"},
}
"""Of each kind of step of a proof about a deep network, what it needs."""

_STEPS_OF_GRAPHS = 100_000
"""Steps that one proof about a deep network may have."""

_QUADRATIC = {"on", "v", "mu"}
_TRUST = {"on", "v", "lam"}
_STEPS: dict[str, tuple[bool, set[str], set[str]]] = {
    "first": (False, set(), set()),
    "slopes": (False, set(), set()),
    "point": (False, set(), set()),
    "second": (False, _QUADRATIC, set()),
    "absorbed": (False, _QUADRATIC, set()),
    "ball": (True, set(), set()),
    "ball slopes": (True, set(), set()),
    "trust": (True, _TRUST, {"nu"}),
    "trust absorbed": (True, _TRUST, {"nu"}),
    "cap": (True, _TRUST | {"kappa", "s", "d", "centre", "radii", "then"}, {"nu"}),
    "outside": (True, set(), set()),
}
"""Of each kind of step, whether it is about a ball, what it needs and what it may have."""


def _damaged(reason: str) -> NoReturn:
    raise FileFormatError(f"damaged: {reason}")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."


def _fields(name: str, value: Any, needed: set[str], optional: set[str] | None = None) -> None:
    """Refuse anything but an object with these fields."""
    if not isinstance(value, dict):
        _damaged(f"{name} is {_shown(value)}, not an object")
    missing, unknown = needed - value.keys(), value.keys() - needed - (optional or set())
    if missing:
        _damaged(f"{name} has no {min(missing)!r}")
    if unknown:
        _damaged(f"{name} has an unknown field {_shown(min(unknown))}")


def _list(name: str, value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        _damaged(f"{name} is {_shown(value)}, not a list")
    if length is not None and len(value) != length:
        _damaged(f"{name} has a length of {len(value)}, which does not fit: {length}")
    return value


def _number(name: str, value: Any, least: float = -inf, most: float = inf) -> float:
    """A finite float64 number within limits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _damaged(f"{name} holds {_shown(value)}, not a number")
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        _damaged(f"{name} holds a whole number above 2^53")
    number = float(value)
    if not isfinite(number):
        _damaged(f"{name} holds {number}, which is not finite")
    if number < least:
        _damaged(f"{name} holds {number!r}, which is " + ("negative" if number < 0 <= least else f"below {least!r}"))
    if number > most:
        _damaged(f"{name} holds {number!r}, which is above {most!r}")
    return number


def _numbers(name: str, values: Any, length: int, least: float = -inf, most: float = inf) -> Vector:
    return tuple(_number(name, value, least, most) for value in _list(name, values, length))


def _each(name: str, value: Any, features: int, least: float = -inf) -> Vector:
    """One number for each feature, from one for all or a list of them."""
    return _numbers(name, value if isinstance(value, list) else [value] * features, features, least)


def _ordered(name: str, low: Vector, high: Vector) -> tuple[Vector, Vector]:
    if any(a > b for a, b in zip(low, high, strict=True)):
        _damaged(f"a lower side of the {name} is above the upper one")
    return low, high


def _index(name: str, value: Any, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _damaged(f"{name} is {_shown(value)}, not a whole number")
    if not 0 <= value < count:
        _damaged(f"{name} is {_shown(value)}, which is not from 0 to {count - 1}")
    return value
