"""Structure-aware mutants of honest proof files, and a judge that knows nothing of proofs.

A subject is a tiny network with the honest entries of one file. A mutant changes one entry, or the file's constants, in
one to three ways. What the check then accepts must be true: the judge looks for a counterexample over a grid, at random
and by local search, in rational arithmetic where float64 cannot tell.
"""

import json
import random
import tempfile
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from math import inf, nextafter
from pathlib import Path

import flint
import numpy as np
import torch

import polybound as pb
from helpers.networks import F64, ExactChain, randomise
from polybound.certificates import save_certificates
from polybound.certificates.proofs.arb import PRECISION
from polybound.certificates.proofs.check import Checker
from polybound.certificates.proofs.schema import content_digest, parse_claims

LARGEST_PROOF = 24
"""Entries with more steps than this are left out: they take long, and hold no other kinds of steps."""


@dataclass
class Subject:
    """A network, an honest file's content without its images, and the JSON of each image."""

    name: str
    model: torch.nn.Module
    head: dict
    entries: list
    checkers: dict = field(default_factory=dict)
    verdicts: dict = field(default_factory=dict)

    def __post_init__(self):
        self.prepare()
        self.texts = [json.dumps(entry) for entry in self.entries]
        self.head_text = json.dumps(self.head)
        self.judge = Judge(self)

    def prepare(self):
        """What the exact value needs, and what the mutants do."""
        factors = self.factors = self.model.factors().double()
        self.features, self.classes = factors.features, factors.C.outputs
        self.chain, self.mutator = ExactChain(factors), ChainMutator

    def values(self, points):
        """The outputs at points, (points, features) float64."""
        return self.model(points.reshape(len(points), *self.model.shape))

    def exact(self, point):
        """The outputs at a point, in fractions."""
        return self.chain(point)

    def check(self, content):
        """Schema and proof; the proofs of the file's constants are kept."""
        claims = parse_claims(content, self.features, self.factors.degree, self.classes)
        key = claims.stretch, claims.norms, claims.tops
        if key not in self.checkers:
            if len(self.checkers) > 50:
                self.checkers.clear()
            self.checkers[key] = Checker(self.model, claims)
        checker = self.checkers[key]
        checker.claims = claims
        return [checker.check(image) for image in claims.images]


def made(kind, name, model, found, x, domain):
    """A subject of a kind, from what was found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proofs.json"
        save_certificates(path, model, found, x, domain)
        content = json.loads(path.read_text())
    entries = [entry for entry in content.pop("images") if _steps(entry) <= LARGEST_PROOF]
    return kind(name, model, content, entries)


def _steps(entry):
    proofs = entry.get("proofs", [])
    return max(map(_size, proofs.values() if isinstance(proofs, dict) else proofs), default=0)


def _size(node):
    return 1 + sum(_size(node[key]) for key in ("then", "low", "high") if key in node) if node else 0


def subjects(images=12):
    """Honest files of all kinds: boxes, balls, caps, intervals over both, counterexamples; CCP, NCP and ConvCCP."""
    return list(_subjects(images))


def _subjects(images):
    models = {
        "ccp": randomise(pb.CCP(2, 3, 3, 3, dtype=F64), 0, 1.0),
        "product": randomise(pb.CCP(3, 3, 2, 3, "product", dtype=F64), 3, 0.6),
        "ncp": randomise(pb.NCP(2, 2, 3, 3, dtype=F64), 4, 0.7),
        "conv": randomise(pb.ConvCCP((1, 4), 2, 2, 2, 3, pool={1}, dtype=F64), 2, 1.2),
    }
    for name, model in models.items():
        generator = torch.Generator().manual_seed(5)
        x = torch.rand(images, *model.shape, generator=generator, dtype=F64) * 2 - 1
        x.reshape(images, -1)[::3, 0] = 1.0
        y, domain = model(x).argmax(1), (-1.0, 1.0)
        down, up = (torch.rand(x.shape, generator=generator, dtype=F64) * 0.8 for _ in range(2))
        # Decided long before, on any machine.
        certify = {"keep": True, "budget": 600.0}
        yield made(Subject, f"{name} boxes", model, pb.certify(model, x, y, 0.4, domain=domain, **certify), x, domain)
        found = pb.certify(model, x, y, box=(x - down, x + up), domain=None, **certify)
        yield made(Subject, f"{name} sides", model, found, x, None)
        found = pb.certify(model, x, y, 0.6, norm="2", domain=domain, **certify)
        yield made(Subject, f"{name} balls", model, found, x, domain)
        found = pb.certify(model, x, y, down, norm="2", domain=None, **certify)
        yield made(Subject, f"{name} ellipsoids", model, found, x, None)
        few = x[: images // 2]
        for norm in ("inf", "2"):
            forms = {"weights": torch.eye(model.classes, dtype=F64)[:2], "constant": [0.5, -1.0], "tolerance": 0.2}
            found = pb.output_bounds(model, few, 0.4, norm=norm, domain=domain, **forms, **certify)
            yield made(Subject, f"{name} intervals, {norm}", model, found, few, domain)


_MOST = 10**5
"""More places than any honest content has."""

CLAIMED = ("x", "eps", "box", "lower", "upper", "lowest", "highest", "lowest_at", "highest_at", "counterexample")
FACTORS = (-1.0, 0.0, 0.5, 0.9, 0.99, 1 - 1e-6, 1 - 1e-9, 1 + 1e-9, 1 + 1e-6, 1.001, 1.05, 1.1, 1.2, 2.0, 10.0, -1e3)
STRANGE = (None, True, "0", "nan", [], {}, inf, float("nan"), [[]], 1.5, -1, 2**53 + 1)
HUGE = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e308, 2**53, 2**53 + 1, -(2**53) - 1, 10**400)


class Mutator:
    """Changes contents at random; one seed gives one sequence of mutants.

    What is repeated is copied: a part that stands twice could come to lie inside of itself, and no JSON file can.
    """

    def __init__(self, pick):
        self.random = pick
        # Blind changes are mostly refused by the schema; these keep the form and change the claim or its proof.
        self.changes = [self.blind, *[self.claim] * 2, *[self.proof] * 3, self.constants, self.forged]

    def mutant(self, subject):
        """The content of one entry of a subject with its constants, changed."""
        pick = self.random
        content = json.loads(subject.head_text)
        content["images"] = [json.loads(pick.choice(subject.texts))]
        for _ in range(pick.choice((1, 1, 1, 2, 3))):
            try:
                pick.choice(self.changes)(content, content["images"][0], subject)
            except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, ZeroDivisionError):
                continue  # nothing of this kind to change, or an earlier change took it away
            if sum(1 for _ in islice(_places(content), _MOST)) == _MOST:
                return self.mutant(subject)  # a part came to lie inside of itself, as in no JSON file
        return content

    def number(self, value):
        """Another number in the place of one."""
        pick = self.random
        if isinstance(value, int) and pick.random() < 0.7:
            return value + pick.choice((-2, -1, 1, 2, -value, -2 * value, -1 - 2 * value, 2**53, 2**60 + 1))
        value = float(value)
        changed = [value * pick.choice(FACTORS), value * pick.choice(FACTORS), value + pick.uniform(-0.5, 0.5)]
        changed += [
            value + pick.choice((-1.0, 1.0, -0.1, 0.1, 1e-3, -1e-3)),
            nextafter(value, pick.choice((-inf, inf))),
        ]
        return pick.choice((*changed, pick.uniform(-1, 1), pick.choice(HUGE)))

    def numbers(self, place, key):
        """Change one number of a value, all numbers of one of its lists, or the order of such a list."""
        pick, value = self.random, place[key]
        while isinstance(value, list) and (isinstance(value[0], (list, type(None))) or pick.random() < 0.4):
            place, key = value, pick.randrange(len(value))
            value = place[key]
        if not isinstance(value, list):
            place[key] = self.number(value)
        elif pick.random() < 0.5:
            self.order(value)
        else:
            factor = pick.choice(FACTORS)
            value[:] = [v * factor if pick.random() < 0.9 else v for v in value]

    def order(self, values):
        """Delete, repeat, swap or replace entries of a list."""
        pick = self.random
        i, j = pick.randrange(len(values)), pick.randrange(len(values))
        one, other = values[i], values[j]
        another = self.number(one) if isinstance(one, (int, float)) else pick.choice(STRANGE)
        if (kind := pick.randrange(3)) == 0:
            values[i], values[j] = other, one
        else:
            values[i : i + 1] = (
                pick.choice(([], [deepcopy(other), one])) if kind == 1 else [pick.choice((deepcopy(other), another))]
            )

    def blind(self, content, _entry, _subject):
        """Change anything, anywhere."""
        pick, places = self.random, list(_places(content))
        (place, key), (other, name) = pick.choice(places), pick.choice(places)
        value, kind = place[key], pick.random()
        if kind < 0.1:
            place[key] = pick.choice(STRANGE)
        elif kind < 0.2:
            del place[key]
        elif kind < 0.25 and isinstance(place, dict):
            place[pick.choice((f"{key}_", "then", "box", "nu", "monotone", "norm", "split"))] = deepcopy(value)
        elif isinstance(value, (int, float, list)):
            self.numbers(place, key)
        else:
            place[key], other[name] = other[name], value

    def constants(self, content, _entry, _subject):
        """Change what the file says of the network, its domain and its forms."""
        pick = self.random
        name = pick.choice([key for key in ("stretch", "norms", "tops", "kind", "domain", "forms") if key in content])
        if name == "domain":
            content[name] = pick.choice((None, [self.number(-1), self.number(1)], [-2.0, 2.0], [-0.5, 1.0]))
        elif name == "forms":
            self.numbers(content[name], pick.choice(("weights", "constant")))
        elif name == "kind":
            content[name] = pick.choice(STRANGE)
        else:
            self.numbers(content, name)

    def claim(self, _content, entry, subject):
        """Claim more than was proven, or something else."""
        pick, kind = self.random, self.random.randrange(10)
        if kind == 9:
            eps, factor = entry["eps"], pick.choice((0.3, 0.9, 1.001, 1.05, 1.2, 1.5, 2.0, 5.0, -1.0))
            entry["eps"] = [v * factor for v in eps] if isinstance(eps, list) else eps * factor
        elif kind < 5:
            self.numbers(entry, pick.choice([key for key in CLAIMED if key in entry]))
        elif kind == 5:
            self.relabel(entry, subject.classes)
        elif kind == 6:
            self.restate(entry, subject)
        elif kind == 7:
            name = pick.choice(("proofs", "label", "rival", *CLAIMED))
            entry[name] = json.loads(pick.choice(subject.texts))[name]
        elif entry.pop("norm", None) is None:
            entry["norm"] = "2"
        else:
            names = {"ball": "first", "ball slopes": "slopes", "trust": "second", "trust absorbed": "absorbed"}
            for node in nodes_of(entry):
                node["by"] = names.get(node.get("by"), "first")

    def relabel(self, entry, classes):
        """Another label, with the proofs under the names that it asks for."""
        pick, old = self.random, entry["label"]
        entry["label"] = pick.choice((pick.randrange(classes), old - classes, old + classes, -1))
        if "proofs" in entry:
            proofs = list(entry["proofs"].values())
            entry["proofs"] = {str(r): deepcopy(pick.choice(proofs)) for r in range(classes) if r != entry["label"]}
        elif pick.random() < 0.5:
            entry["rival"] = pick.choice((old, old - classes, entry["label"], pick.randrange(classes)))

    def restate(self, entry, subject):
        """Another status, with whatever it asks for."""
        pick, classes = self.random, subject.classes
        if entry["status"] == "verified":
            del entry["proofs"]
            rival = pick.choice((entry["label"] - classes, entry["label"], (entry["label"] + 1) % classes))
            entry |= {"status": "falsified", "rival": rival, "counterexample": list(entry["x"])}
        else:
            entry.pop("counterexample", None), entry.pop("rival", None)
            donors = [json.loads(text) for text in subject.texts]
            nodes = [node for donor in donors if donor["status"] == "verified" for node in donor["proofs"].values()]
            nodes += self.trivial
            entry["status"] = "verified"
            entry["proofs"] = {str(r): pick.choice(nodes) for r in range(classes) if r != entry["label"]}

    def proof(self, _content, entry, subject):
        """Change a step of a proof, or the tree."""
        pick = self.random
        node, kind = pick.choice(list(nodes_of(entry))), pick.randrange(10)
        new = dict(node)
        if kind == 0:
            at = pick.choice((entry["x"][0], pick.uniform(-1, 1)))
            new = {"split": [pick.randrange(-1, subject.features + 1), at], "low": new, "high": dict(new)}
        elif kind == 1:
            new = node[pick.choice([key for key in ("then", "low", "high") if key in node])]
        elif kind == 2:
            new |= {"low": node["high"], "high": node["low"]} if pick.random() < 0.7 else {"high": node["low"]}
        elif kind < 6:
            self.numbers(new, pick.choice([key for key in node if key not in ("by", "then", "low", "high")]))
        elif kind == 6:
            new = pick.choice(list(nodes_of(json.loads(pick.choice(subject.texts)))))
        else:
            new = self.step(node, entry, subject)
        node.clear()
        node |= new

    def forged(self, content, entry, subject):
        """Claim what need not be true, with proofs made for it, or by impossible constants."""
        if "lower" not in entry and entry["status"] != "verified":
            self.restate(entry, subject)
        if self.random.random() < 0.3:
            content |= {
                name: [-1e3 * value for value in content[name]] for name in ("norms", "tops") if name in content
            }
        proofs = entry["proofs"]
        for key in proofs if isinstance(proofs, dict) else range(len(proofs)):
            proofs[key] = self.made(entry, subject)


class ChainMutator(Mutator):
    """Changes the contents of files about chains of products."""

    trivial = ({"by": "first"}, {"by": "slopes"}, {"by": "ball"})
    """Steps without numbers."""

    def step(self, node, entry, subject):
        """The step by another rule, of a smaller box, or with a coordinate more or in the place of another."""
        pick, features, kind = self.random, subject.features, self.random.randrange(3)
        if kind == 0:
            by = pick.choice(list(_RULES))
            kept = set(node) if pick.random() < 0.3 else _RULES[by]
            return {key: value for key, value in node.items() if key in kept} | {"by": by}
        if kind == 1:
            d = pick.randrange(features)
            low, high = _ends(entry)[d]
            middle = low + (high - low) * pick.choice((0.1, 0.5, 0.9))
            side = pick.choice(([low, low], [high, high], [low, middle], [middle, high], [low, high]))
            return self.second(d, side, features) | {"then": dict(node)}
        node, i = deepcopy(node), pick.randrange(len(node["on"]) + 1)
        d = pick.choice((pick.randrange(features), -1, -features, features))
        for name in ("on", "v", "mu", "d", "centre", "radii"):
            if name in node and (name == "on" or pick.random() < 0.8):
                node[name].insert(i, d if name == "on" else pick.choice((0.0, 0.5, node[name][0])))
        return node

    def second(self, d, side, features):
        """A step of second order that leaves one side of a coordinate, or fixes it."""
        pick, every = self.random, list(range(features))
        on = pick.choice((every, every, [0, *every], [d, d, *every], [every[d - 1], every[d - 1], *every]))
        count = pick.choice((features, features, len(on)))
        step = {"by": pick.choice(("second", "absorbed")), "on": on, "box": [[d, *side]]}
        step |= {"v": [pick.choice((-1.0, 0.0, 1.0))] * count, "mu": [pick.choice((0.0, 0.1, 1.0, 10.0))] * count}
        return step | ({"monotone": [d]} if side[0] == side[1] else {})

    def made(self, entry, subject):
        """A proof that fixes one coordinate after another."""
        pick, features = self.random, subject.features
        node = {"by": pick.choice(("first", "slopes", "point", "ball", "outside"))}
        for d in pick.sample(range(features), pick.randrange(features + 1)):
            node = self.second(d, [pick.choice(_ends(entry)[d])] * 2, features) | {"then": node}
        return node


def _ends(entry):
    """The sides of an entry's box, rounded outwards, within [-1, 1] where it has radii."""
    if "box" in entry:
        return list(zip(*entry["box"], strict=True))
    radii = entry["eps"] if isinstance(entry["eps"], list) else [entry["eps"]] * len(entry["x"])
    ends = [[Fraction(x) + sign * Fraction(r) for sign in (-1, 1)] for x, r in zip(entry["x"], radii, strict=True)]
    floats = [(float(low), float(high)) for low, high in ends]
    return [
        (max(-1.0, nextafter(a, -inf) if a > low else a), min(1.0, nextafter(b, inf) if b < high else b))
        for (a, b), (low, high) in zip(floats, ends, strict=True)
    ]


_RULES = {name: set() for name in ("first", "slopes", "point", "ball", "ball slopes", "outside")} | {
    "second": {"on", "v", "mu", "box", "then", "monotone"},
    "absorbed": {"on", "v", "mu", "box", "then", "monotone"},
    "trust": {"on", "v", "lam", "nu"},
    "trust absorbed": {"on", "v", "lam", "nu"},
    "cap": {"on", "v", "lam", "nu", "kappa", "s", "d", "centre", "radii", "then"},
}


def _places(value):
    """All (container, key) pairs of a JSON value."""
    stack = [value]
    while stack:
        value = stack.pop()
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            if isinstance(value[key], (dict, list)):
                stack.append(value[key])


def nodes_of(entry):
    """All steps of an entry's proofs."""
    proofs = entry["proofs"]
    stack = [node for node in (proofs.values() if isinstance(proofs, dict) else proofs) if node]
    while stack:
        node = stack.pop()
        yield node
        stack += [node[key] for key in ("then", "low", "high") if key in node]


class Region:
    """The inputs that an entry is about: exactly, and in float64."""

    def __init__(self, content, entry):
        self.centre = x = [Fraction(v) for v in entry["x"]]
        self.radii = None
        if "eps" in entry:
            eps = entry["eps"] if isinstance(entry["eps"], list) else [entry["eps"]] * len(x)
            radii = [Fraction(v) for v in eps]
            low, high = ([v + s * r for v, r in zip(x, radii, strict=True)] for s in (-1, 1))
            if content["domain"] is not None:
                ends = [side if isinstance(side, list) else [side] * len(x) for side in content["domain"]]
                low = [max(v, Fraction(end)) for v, end in zip(low, ends[0], strict=True)]
                high = [min(v, Fraction(end)) for v, end in zip(high, ends[1], strict=True)]
            if entry.get("norm", "inf") == "2":
                self.radii = radii
        else:
            low, high = ([Fraction(v) for v in side] for side in entry["box"])
        self.low, self.high = low, high
        self.x, self.least, self.most = (np.array([float(v) for v in side]) for side in (x, low, high))
        self.r = None if self.radii is None else np.array([float(v) for v in self.radii])
        self.size = (self.most - self.least) / 2

    def holds(self, point):
        """Whether a point, in fractions, lies in the region."""
        if not all(a <= v <= b for a, v, b in zip(self.low, point, self.high, strict=True)):
            return False
        if self.radii is None:
            return True
        away = [(v - c, r) for v, c, r in zip(point, self.centre, self.radii, strict=True) if v != c]
        return all(r > 0 for _, r in away) and sum((v / r) ** 2 for v, r in away) <= 1

    def points(self, units):
        """Points all over the region, by points of the cube."""
        if self.radii is None:
            return self.least + (units + 1) * self.size
        length = np.linalg.norm(units, axis=1, keepdims=True)
        onto = units / np.maximum(length, 1e-9)
        return self.nearest(self.x + self.r * np.concatenate([units, onto]))

    def nearest(self, points):
        """Points of the region near others; it may be missed by a rounding."""
        points = np.clip(points, self.least, self.most)
        if self.radii is None:
            return points
        u = (points - self.x) / np.maximum(self.r, 5e-324)
        u = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True) * (1 + 1e-12), 1.0)
        return np.clip(self.x + self.r * u, self.least, self.most)


class Judge:
    """Tells whether what an entry claims is true, from its JSON and the network alone."""

    def __init__(self, subject):
        self.subject, features = subject, subject.features
        axes = np.linspace(-1, 1, {1: 65, 2: 13, 3: 7}.get(features, 4))
        grid = np.stack(np.meshgrid(*[axes] * features, indexing="ij"), -1).reshape(-1, features)
        self.units = np.concatenate([np.random.default_rng(0).uniform(-1, 1, (200, features)), grid])

    def true(self, content, image, status):
        """Whether an entry of a content is true; `status` is what the check says that it proved."""
        entry = content["images"][image]
        if not status.startswith(entry["status"]) and entry["status"] != "bounded":
            return False
        if status == "undecided":
            return True
        key = json.dumps([content["domain"], content.get("forms"), {k: v for k, v in entry.items() if k != "proofs"}])
        known = self.subject.verdicts
        if key not in known:
            if len(known) > 20000:
                known.clear()
            known[key] = self._true(content, entry)
        return known[key]

    def _true(self, content, entry):
        region = Region(content, entry)
        if not region.holds(region.centre):
            return False
        if entry["status"] == "falsified":
            label, rival, classes = entry["label"], entry["rival"], self.subject.classes
            if label == rival or not (0 <= label < classes > rival >= 0):
                return False
            logits = self.subject.exact(entry["counterexample"])
            return logits[label] <= logits[rival] and region.holds([Fraction(v) for v in entry["counterexample"]])
        if entry["status"] == "verified":
            label, classes = entry["label"], self.subject.classes
            if not 0 <= label < classes:
                return False
            eye = np.eye(classes)
            forms = [(eye[label] - eye[rival], 0.0) for rival in range(classes) if rival != label]
            return all(not self._below(form, 0.0, region, strict=False) for form in forms)
        forms = zip(content["forms"]["weights"], content["forms"]["constant"], strict=True)
        for row, (weights, constant) in enumerate(forms):
            form, negative = (np.array(weights, float), float(constant)), (-np.array(weights, float), -float(constant))
            lower, upper = entry["lower"][row], entry["upper"][row]
            if lower is not None and self._below(form, lower, region, strict=True):
                return False
            if upper is not None and self._below(negative, -upper, region, strict=True):
                return False
            for name, sign in (("lowest", 1), ("highest", -1)):
                if entry[name][row] is not None:
                    point = entry[f"{name}_at"][row]
                    value = self._value((weights, constant), point)
                    if not region.holds([Fraction(v) for v in point]) or not sign * value <= sign * Fraction(
                        entry[name][row]
                    ):
                        return False
        return True

    def _below(self, form, level, region, strict):
        """Whether the form is at most a level (below it, if strict) at a point of the region, as far as one is found."""
        weights, constant = torch.tensor(form[0], dtype=F64), form[1]

        def values(some):
            with torch.no_grad():
                logits = self.subject.values(torch.from_numpy(some))
            return (logits @ weights + constant).numpy()

        points = region.points(self.units)
        found = values(points)
        scale = 1e-9 * (np.abs(found).max() + abs(level))
        for width in (0.2, 0.07, 0.02, 0.007, 0.002):
            order = found.argsort()[:4]
            best = points[order]
            near = best[:, None] + width * region.size * self.units[:60]
            points = np.concatenate([best, region.nearest(near.reshape(-1, best.shape[1]))])
            found = values(points)
            if found.min() > level + max(scale, 0.5 * (found.max() - found.min())):
                return False  # far above, and flat
        for index in found.argsort()[:2]:
            if found[index] > level + scale:
                return False
            for point in (points[index], region.x + (points[index] - region.x) * (1 - 1e-12)):
                if region.holds([Fraction(v) for v in point.tolist()]):
                    exact = self._value(form, point.tolist()) - Fraction(level)
                    if exact < 0 or (exact == 0 and not strict):
                        return True
        return False

    def _value(self, form, point):
        pairs = zip(form[0], self.subject.exact(point), strict=True)
        return sum((Fraction(float(w)) * value for w, value in pairs), Fraction(float(form[1])))


def campaign(count, seed, subjects):
    """Check mutants; returns counts, and the content of each that was accepted though it is false, or crashed the check."""
    pick, counts, wrong = random.Random(seed), Counter(), []
    for _ in range(count):
        subject = subjects[pick.randrange(len(subjects))]
        content = subject.mutator(pick).mutant(subject)
        found = outcome(subject, content)
        counts[found] += 1
        if found.startswith(("false", "crash")):
            wrong.append((subject.name, found, content | {"digest": _digest(content)}))
    return counts, wrong


def outcome(subject, content):
    """What becomes of a content: it is refused, accepted and true, or a finding."""
    try:
        with flint.ctx.workprec(PRECISION):
            found = subject.check(content)
    except pb.FileFormatError:
        return "refused by schema"
    except pb.PolyboundError:
        return "refused by proof"
    except Exception as error:  # the finding itself
        return f"crash: {type(error).__name__}: {error}"
    if not all(subject.judge.true(content, image, status) for image, status in enumerate(found)):
        return "false"
    return "accepted and true" if set(found) - {"undecided"} else "accepted, nothing claimed"


def _digest(content):
    try:
        return content_digest(content)
    except (TypeError, ValueError):
        return ""
