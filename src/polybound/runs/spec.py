"""Everything that determines a run, as one value with one canonical form, one address and one label."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any

from polybound.data import Dataset, Identity, digest_of, find_source, load
from polybound.errors import PolyboundError, check_int, check_number, check_text, reason
from polybound.models import PolynomialNetwork, model_parameters, paper_model
from polybound.registry import plain
from polybound.seeds import check_seed
from polybound.training import LOSSES, METHODS, OPTIMISERS, SCHEDULES, Adversary, Recipe


@dataclass(frozen=True)
class DataSpec:
    """What is trained on.

    Attributes:
        name: of the data set.
        digest: of its content.
        samples: how many of the training samples; 0 for all.
        held_out: share of train that is held out for validation.
    """

    name: str
    digest: str
    samples: int = 0
    held_out: float = 0.0

    def __post_init__(self) -> None:
        check_text("a data set", self.name)
        check_int("samples", self.samples, 0)
        check_number("held_out", self.held_out, below=1)
        object.__setattr__(self, "held_out", float(self.held_out) + 0.0)  # one form: 0 and -0 are 0.0

    @classmethod
    def of(
        cls, name: str, data_dir: str | PathLike[str] | None = None, *, samples: int = 0, held_out: float = 0.0
    ) -> DataSpec:
        """The data set of a name, as it lies on this machine; nothing is downloaded."""
        check_text("a data set", name)
        return cls(name, digest_of(name, data_dir), samples, held_out)

    def load(self, split: str, data_dir: str | PathLike[str] | None = None) -> Dataset:
        """A split of it.

        Raises:
            PolyboundError: what lies on this machine under that name is not this data set.
        """
        if split == "validation" and not self.held_out and split not in dict(find_source(self.name).counts):
            raise PolyboundError(
                f"{self.name} has no official validation split, and this run held none of its training images out; "
                "one that is trained with --validation 0.1 does"
            )
        return self.checked(load(self.name, split, data_dir=data_dir, validation=self.held_out), split)

    def checked(self, data: Dataset, split: str) -> Dataset:
        """The samples of a split, out of a data set that holds them or the whole split; all data pass through here.

        Raises:
            PolyboundError: it holds others, or fewer.
        """
        found, whole = data.identity, Identity(self.digest, split, 0.0 if split == "test" else self.held_out)
        wanted = replace(whole, subsets=(self.samples,)) if split == "train" and self.samples else whole
        if found == wanted:
            return data
        if found != whole:
            raise PolyboundError(f"{self.name} is not the data of this run: these are {found}, and it has {wanted}")
        if self.samples > len(data):
            raise PolyboundError(f"{self.name} has {len(data):,} samples to train on, not {self.samples:,}")
        return data.subset(self.samples)


@dataclass(frozen=True)
class ModelSpec:
    """What is trained: a model by its name, and all that it needs beside the shape of the data.

    Attributes:
        name: of the paper's models, the deep ones or the registered ones.
        rank: hidden rank; 0 for the model's own, and for models that have none.
        parameters: others, by name; those that are not given are the model's own.

    >>> ModelSpec("polynet", parameters={"width": 8}).as_dict()
    {'name': 'polynet', 'width': 8, 'blocks': [1, 1, 1]}
    """

    name: str = "pn-4"
    rank: int = 0
    parameters: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_text("a model", self.name)
        check_int("rank", self.rank, 0)
        own: dict[str, Any] = {"rank": self.rank} if self.rank else {}
        whole = model_parameters(self.name, {**own, **dict(self.parameters)})
        object.__setattr__(self, "rank", whole.pop("rank", 0))
        object.__setattr__(self, "parameters", tuple(whole.items()))

    def as_dict(self) -> dict[str, Any]:
        """The name and all parameters, as JSON can hold them."""
        told: dict[str, Any] = {"name": self.name} | ({"rank": self.rank} if self.rank else {})
        return told | plain(dict(self.parameters))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ModelSpec:
        """The inverse of `as_dict`."""
        others = dict(content)
        return cls(others.pop("name"), others.pop("rank", 0), others)

    def build(self, data: Dataset, **options: Any) -> PolynomialNetwork:
        """The model for the inputs and classes of some data; options as `paper_model` takes them."""
        rank, parameters = self.rank or None, dict(self.parameters)
        return paper_model(self.name, data.shape, data.classes, rank=rank, parameters=parameters, **options)


@dataclass(frozen=True, repr=False)
class Spec:
    """Everything that determines a run. Two runs with the same spec are the same run.

    >>> spec = Spec(DataSpec("digits", "00ff"), seed=1)
    >>> spec.difference(Spec(DataSpec("digits", "00ff"), recipe=Recipe.from_options(epochs=5), seed=1))
    {'schedule.epochs': (100, 5), 'schedule.milestones': ([25, 75], [2, 4])}
    """

    data: DataSpec
    model: ModelSpec = field(default_factory=ModelSpec)
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def __repr__(self) -> str:
        """The label and the address; `columns()` has everything."""
        return f"Spec({self.label}, {self.address})"

    def as_dict(self) -> dict[str, Any]:
        """The canonical form, as JSON can hold it."""
        return {"data": asdict(self.data), "model": self.model.as_dict(), **self.recipe.as_dict(), "seed": self.seed}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Spec:
        """The inverse of `as_dict`."""
        try:
            adversary = content["adversary"]
            recipe = Recipe(
                METHODS.build(content["method"]),
                None if adversary is None else Adversary.of(adversary),
                OPTIMISERS.build(content["optimiser"]),
                SCHEDULES.build(content["schedule"]),
                LOSSES.build(content.get("loss", "cross-entropy")),
                content.get("augment", ()),
                content.get("clip", 0.0),
                content.get("precision", "float32"),
            )
            return cls(DataSpec(**content["data"]), ModelSpec.from_dict(content["model"]), recipe, content["seed"])
        except PolyboundError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise PolyboundError(f"not a run's spec ({reason(error)})") from error

    @cached_property
    def address(self) -> str:
        """The content address: 16 hexadecimal digits."""
        return address_of(self.as_dict())

    def columns(self) -> dict[str, Any]:
        """The canonical form as columns of a flat table: "method", "method.bound", "schedule.epochs" and so on."""
        flat: dict[str, Any] = {}
        for part, content in self.as_dict().items():
            if isinstance(content, Mapping):
                head = "attack" if part == "adversary" else "name"
                flat[part] = content[head]
                flat |= {f"{part}.{key}": value for key, value in content.items() if key != head}
            elif content is not None:
                flat[part] = content
        return flat

    @classmethod
    def from_columns(cls, row: Mapping[str, Any]) -> Spec:
        """The inverse of `columns`, from a row that may have others as well.

        Raises:
            PolyboundError: a column is missing, or has a value that it cannot have.
        """
        content: dict[str, Any] = {"adversary": None, "seed": row.get("seed")}
        content |= {name: row[name] for name in ("augment", "clip", "precision") if row.get(name) is not None}
        for part in ("data", "model", "method", "adversary", "optimiser", "schedule", "loss"):
            if row.get(part) is not None:
                options = {name[len(part) + 1 :]: row[name] for name in row if name.startswith(f"{part}.")}
                head = "attack" if part == "adversary" else "name"
                content[part] = {head: row[part], **{key: value for key, value in options.items() if value is not None}}
        return cls.from_dict(content)

    def difference(self, other: Spec) -> dict[str, tuple[Any, Any]]:
        """What differs: the columns, each with both values; None where one has no such column."""
        mine, theirs = self.columns(), other.columns()
        names = [*mine, *(name for name in theirs if name not in mine)]
        return {name: (mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)}

    @property
    def label(self) -> str:
        """A line for messages: data, model, recipe and seed."""
        return f"{self.data.name} {self.model.name} {self.recipe.label}, seed {self.seed}"

    @property
    def folder_name(self) -> str:
        """A readable name for its folder, made unique by the address. Nothing is ever read back out of it."""
        plain = f"{self.data.name}-{self.model.name}-{self.recipe.label}-s{self.seed}".lower()
        words = "".join(char if char.isalnum() or char in "-._" else "-" for char in plain)
        while "--" in words:
            words = words.replace("--", "-")
        short = words.encode()[:80].decode(errors="ignore")  # a name has at most 255 bytes
        return f"{short.strip('-.')}-{self.address}"


def address_of(content: Any) -> str:
    """The content address of anything that JSON can hold.

    Raises:
        PolyboundError: a number in it is not finite, which JSON cannot hold.
    """
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise PolyboundError("what determines a run must be finite numbers: no bound is method none") from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]
