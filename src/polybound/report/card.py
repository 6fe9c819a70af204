"""Model cards: what a network is, what it was trained on and how, and what it measures."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pprint import pformat
from typing import Any

from polybound.attacks import PGD
from polybound.certificates import certify, prepared
from polybound.data import Dataset, find_source
from polybound.errors import ArgumentError, PolyboundError
from polybound.evaluation import evaluate, value_label
from polybound.models import PolynomialNetwork, polynomial, weights_digest
from polybound.runs import Spec
from polybound.theory import bounds

RADII = (0.02, 0.05, 0.1)
STEPS = 20

QUANTITIES = (
    "Lipschitz constant, l_inf, paper",
    "Lipschitz constant, l_inf, row-wise",
    "Rademacher complexity, l_inf, paper, exact norm",
    "theta",
    "gamma",
    "Lipschitz constant, l_inf, composed",
    "Lipschitz constant, l_inf, by intervals",
)
"""The bounds that a card shows, beside the norms of all matrices."""

NOTES = (
    "Accuracies are of the test images, attacks stay in the domain of the data (sound protocol).",
    "Verified means proven: no change of every input value by at most eps, within the domain, changes the class. "
    "Falsified means that such a change is known, or that the class is wrong as it is.",
    "Certificates are without branch and bound, so that they do not depend on the speed of a machine.",
    "A certificate is about the answer's stability, not about its truth, and holds for the images that it was made of.",
)


CODE = """from pathlib import Path

import polybound as pb

spec = pb.Spec.from_dict(
SPEC
)
pb.train_runs([spec], Path("runs"))"""
"""What trains a network of the same spec."""


@dataclass(frozen=True)
class Card:
    """The facts of a network.

    Attributes:
        name: of the network.
        network: its kind and sizes, and the digest of its weights.
        data: what it is for.
        spec: everything that determined its training; None if that is not known.
        again: how it is made again: a command, what it leaves behind, how much that differed, and a note.
        accuracy: for each attack, how many of how many images are right.
        certificates: for each radius, how many images are verified, falsified and undecided.
        bounds: of the network, by name.
    """

    name: str
    network: dict[str, Any]
    data: dict[str, Any]
    spec: dict[str, Any] | None
    again: dict[str, Any] | None
    accuracy: list[dict[str, Any]]
    certificates: list[dict[str, Any]]
    bounds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """All facts, as JSON can hold them."""
        return dict(vars(self))

    def markdown(self) -> str:
        """The card as a page."""
        shares = [(row["attack"], row["right"], row["images"]) for row in self.accuracy]
        right = [[attack, f"{100 * n / images:.2f} %", f"{n:,} of {images:,}"] for attack, n, images in shares]
        verdicts = ("verified", "falsified", "undecided")
        proven = [[value_label(row["eps"]), *(f"{row[word]:,}" for word in verdicts)] for row in self.certificates]
        images = self.certificates[0]["images"] if self.certificates else 0
        parts = [
            f"# {_plain(self.name)}",
            "Written by `polybound card`: accuracy, certificates and bounds are measured from the network's file.",
            *("## Network", _facts(self.network)),
            *("## Data", _facts(self.data)),
            *("## Recipe", *self._recipe()),
            *("## Accuracy", _table(["attack", "accuracy", "images right"], right)),
            "## Certificates",
            f"First {images:,} test images, l_inf balls." if proven else "None were asked for.",
            *([_table(["eps", *verdicts], proven)] if proven else []),
            *("## Bounds", _table(["quantity", "value"], [[name, f"{v:.6g}"] for name, v in self.bounds.items()])),
            "## To be kept in mind",
            "\n".join(textwrap.fill(note, 118, initial_indent="- ", subsequent_indent="  ") for note in NOTES),
        ]
        return "\n\n".join(parts) + "\n"

    def _recipe(self) -> list[str]:
        spec, again = self.spec, self.again
        if spec is None and again is None:
            return ["Not known: this is a file with weights, without the run that trained it."]
        blocks = [] if spec is None else [_facts(Spec.from_dict(spec).columns())]
        if again is not None:
            blocks.append(f"This makes it again, as {again['file']}:\n\n```console\n$ {again['command']}\n```")
            if (difference := again["difference"]) is not None:
                blocks.append(f"When this was last done, the largest difference of a weight was {difference:.2g}.")
            blocks.append(textwrap.fill(again["note"], 118))
        if spec is not None:
            text = textwrap.indent(pformat(dict(spec), width=100, sort_dicts=False), "    ")
            blocks.append(f"The recipe for Python:\n\n```python\n{CODE.replace('SPEC', text)}\n```")
        return blocks


def _facts(facts: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list | tuple):
            return ", ".join(map(text, value)) or "none"
        return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)

    return _table(["what", "value"], [[name, text(value)] for name, value in facts.items()])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines)


def _plain(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    safe = "".join(f"\\{letter}" if letter in "|<>*`[]\\" else letter for letter in " ".join(text.split()))
    return safe.replace("&", "&amp;")


def model_card(
    model: PolynomialNetwork,
    data: Dataset,
    *,
    name: str,
    spec: Spec | None = None,
    again: Mapping[str, Any] | None = None,
    eps: Sequence[float] = RADII,
    images: int = 100,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Card:
    """Measure a network, and put what is known of it on a card.

    Args:
        model: a single network.
        data: its test images; the clean accuracy is that of all of them.
        name: of the network.
        spec: what determined its training.
        again: how it is made again, with the keys of `models.example_origin`.
        eps: radii of the attacks and of the certificates, in units of the data.
        images: how many are attacked and certified, from the first on.
        on_progress: called with the number of measurements that are done, their number, and the next one's name.

    >>> import polybound as pb
    >>> card = model_card(pb.example("digits"), pb.data.load_digits("test"), name="digits", eps=(0.05,), images=10)
    >>> card.accuracy[0]
    {'attack': 'clean', 'images': 360, 'right': 351}
    """
    if polynomial(model).runs is not None:
        raise PolyboundError(f"{name}: a stack of {model.runs} networks; a card is about model.run(e) of it")
    if data.x[0].numel() != model.features or data.classes != model.classes:
        raise PolyboundError(
            f"{name}: {data.name} has inputs of shape {data.shape} and {data.classes} classes, the model takes "
            f"{model.shape} and has {model.classes}"
        )
    if wrong := [radius for radius in eps if not 0 < radius < inf]:
        raise ArgumentError("eps", f"must be a number above 0, got {wrong[0]:g}")
    show, total = on_progress or (lambda *_: None), 2 + len(eps)
    show(0, total, "clean accuracy")
    found = evaluate(model, data, []).scores.rows[:1]
    net, certificates = prepared(model), []
    some = data.subset(min(images, len(data)))
    for done, radius in enumerate(eps, 1):
        show(done, total, f"attacks and certificates, eps {value_label(radius)}")
        attack = PGD(radius, STEPS, radius / 8)
        found += [row for row in evaluate(model, some, [attack]).scores if row["counted"] == "robust"]
        counts = certify(net, some.x, some.y, radius, domain=data.domain, budget=0.0).summary()
        shown = {key: counts[key] for key in ("images", "verified", "falsified", "undecided")}
        certificates.append({"eps": float(radius), **shown})
    show(total - 1, total, "bounds")
    # Complexities are for as many samples as were trained on.
    samples = 60_000
    if spec is not None:
        samples = spec.data.samples or dict(find_source(spec.data.name).counts).get("train", samples)
    wanted = [row for row in bounds(model, samples) if row.quantity.startswith("norm of") or row.quantity in QUANTITIES]
    told = {key: value for key, value in model.config().items() if key not in ("runs", "graph") and value is not None}
    network = told | {name: getattr(model, name) for name in ("shape", "classes", "degree") if name not in told}
    network["weights"] = sum(parameter.numel() for parameter in model.parameters())
    network["type"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    about: dict[str, Any] = {"name": data.name, "digest": data.digest, "domain": list(data.domain)}
    about |= {"test images": len(data), "classes": ", ".join(data.class_names)}
    with suppress(PolyboundError):  # somebody's own data, not registered here
        source = find_source(data.name)
        about |= {"licence": source.licence, "source": source.home}
    return Card(
        name,
        {"kind": type(model).__name__, **network, "digest": weights_digest(model)},
        about,
        None if spec is None else spec.as_dict(),
        None if again is None else {key: again[key] for key in ("command", "file", "difference", "note")},
        [{"attack": row["attack"], "images": row["total"], "right": row["correct"]} for row in found],
        certificates,
        {f"{row.quantity} ({row.name})": float(row.value) for row in wanted},
    )
