"""Hashes of what the package computes: one line a case, its name and the first digits of a SHA-256.

A change that should not change results prints the same lines before and after. To compare two checkouts on one machine:

    PYTHONPATH=old/src python bench/bits.py > before
    PYTHONPATH=new/src python bench/bits.py | diff before -

`--only certify` runs the cases whose name contains the word. It takes half a minute on one core, and needs no data but
the digits and the trained examples that come with the package. Everything runs on one thread. Nothing that is hashed
depends on time, or is text for people; other machines and versions of PyTorch may print other lines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polybound as pb

CASES: dict[str, Callable[[], Any]] = {}
TRAIN, TEST = pb.data.load_digits("train"), pb.data.load_digits("test")
X, Y = TEST.x[:24], TEST.y[:24]


def case(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a case; with names, one case for each, which the function is called with."""

    def add(compute: Callable[..., Any]) -> Callable[..., Any]:
        name = compute.__name__.replace("_", "-")
        CASES.update({f"{name} {one}": lambda one=one: compute(one) for one in names} if names else {name: compute})
        return compute

    return add


def parts(value: Any) -> Iterator[bytes]:
    """The bytes of a value: tensors by type, shape and bits, everything else as JSON or by its own bytes."""
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().contiguous().numpy().tobytes()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value):
            yield str(key).encode()
            yield from parts(value[key])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}]".encode()
        for one in value:
            yield from parts(one)
    elif isinstance(value, torch.nn.Module):
        yield from parts(dict(value.state_dict()))
    else:
        yield json.dumps(value).encode()


def digest(value: Any) -> str:
    """The first 16 digits of the SHA-256 of a value."""
    content = hashlib.sha256()
    for part in parts(value):
        content.update(part + b"\0")
    return content.hexdigest()[:16]


def one_of(owner: Any, *names: str) -> Any:
    """The first of several names that there is: checkouts from before and after a renaming."""
    return next(getattr(owner, name) for name in names if hasattr(owner, name))


def written(write: Callable[[Path], Any], suffix: str) -> bytes:
    """The bytes of the file that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


# Training: weights after some steps, and the history.

SMALL = TRAIN.subset(160)


def network(kind: str, runs: int | None = None, dtype: torch.dtype | None = None) -> pb.PolynomialNetwork:
    """A network of each kind, one or a stack."""
    options: dict[str, Any] = {"shape": TRAIN.shape, "seed": 0 if runs is None else list(range(runs)), "runs": runs}
    return pb.paper_model(kind, **options, dtype=dtype, **({"rank": 4} if kind == "pn-conv" else {}))


def trained(model: pb.PolynomialNetwork, **options: Any) -> list[Any]:
    """The weights after some steps, and the losses."""
    history = pb.fit(model, SMALL, "paper", **{"epochs": 2, "batch_size": 32, "learning_rate": 0.05, **options})
    return [model, history["loss"]]


@case("pn-4", "ncp-4", "pn-conv", "pn-10")
def fit_plain(kind: str) -> Any:
    return trained(network(kind))


@case("pn-4", "ncp-4", "pn-conv")
def fit_projected(kind: str) -> Any:
    return trained(network(kind), method="projection", bound=0.5, start=0, every=2)


@case("spectral", "operator", "product")
def fit_projection(which: str) -> Any:
    options: dict[str, Any] = {
        "spectral": {"norm": "2", "bound": 0.1},
        "operator": {"on": "operator", "bound": 1.5},
        "product": {"on": "product", "bound": 0.7},
    }
    return trained(network("pn-4"), method="projection", start=0, every=3, **options[which])


@case("pn-4", "ncp-4", "pn-conv")
def fit_jacobian(kind: str) -> Any:
    return trained(network(kind), method="jacobian", weight=0.1)


@case("pn-4", "pn-conv")
def fit_certified(kind: str) -> Any:
    return trained(network(kind), method="certified", eps=0.02, epochs=1)


@case()
def fit_l2() -> Any:
    return trained(network("pn-4"), method="l2", weight=0.01)


@case()
def fit_stack() -> Any:
    bounds = [0.5, 1.0, 2.0]
    return trained(network("pn-4", 3), method="projection", bound=bounds, start=0, seed=[3, 4, 5])


@case("adamw", "momentum")
def fit_optimiser(name: str) -> Any:
    return trained(network("ncp-4", 2), optimiser=name, schedule="cosine", learning_rate=0.003)


@case("pn-4", "ncp-4", "pn-conv")
def fit_adversary(kind: str) -> Any:
    return trained(network(kind), adversary="pgd-0.1-3-0.04", start=0)


@case()
def fit_default() -> Any:
    model = network("pn-4", dtype=torch.float64)
    weights = torch.linspace(0.5, 1.5, len(SMALL.y))
    options: dict[str, Any] = {"sample_weight": weights, "class_weight": "balanced", "validation": 0.25}
    history = pb.fit(model, SMALL, epochs=4, norms=True, **options)
    return [model, history["loss"], history["validation accuracy"]]


@case()
def runs() -> Any:
    train_runs = one_of(pb, "train_together", "train_runs")
    specs = [
        pb.Spec(
            data=pb.DataSpec.of("digits", samples=160),
            model=pb.ModelSpec("pn-4"),
            recipe=pb.Recipe.from_options(method="projection", bound=bound, epochs=3, start=1, batch_size=32),
            seed=seed,
        )
        for seed in (0, 1)
        for bound in (0.5, 1.0)
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = train_runs(specs, folder)
        return [[run.path.name, run.model(), run.spec().as_dict()] for run in found]


# Scores.

ATTACKS = ["fgsm-0.1", "pgd-0.1-5-0.03", "tpgd-5:eps=0.1", "apgdt-4:eps=0.1", "apgd-0.4-4:norm=2", "square-0.1-30"]


@case("digits", "digits-bound-1")
def evaluate(name: str) -> Any:
    return [scores(name, "both", certify=[0.05]), pb.accuracy(pb.example(name), TEST)]


@case()
def evaluate_defended() -> Any:
    return scores("digits", "sound", defence="median")


def scores(name: str, protocol: str, **options: Any) -> Any:
    """The rows of a table of scores."""
    found = pb.evaluate(pb.example(name), TEST, ATTACKS, protocol=protocol, limit=40, **options)
    return json.loads(json.dumps(list(map(pb.evaluation.row_facts, found.scores))))


@case()
def attacks() -> Any:
    model = pb.example("digits")
    return [pb.parse_attack(name)(model, X, Y, domain=TEST.domain) for name in ATTACKS]


# Certificates.


def decided(found: Any) -> list[Any]:
    """What a certificate says, without its times."""
    stage = one_of(found, "rung", "stage")
    return [found.status, stage, found.margin, found.rival, [x for x in found.counterexample if x is not None]]


@case("auto", "second", "first", "crown", "interval", "lipschitz")
def certify(method: str) -> Any:
    models = [pb.example("digits"), pb.example("digits-bound-1")]
    return [decided(pb.certify(model, X, Y, 0.15, method=method, nodes=30)) for model in models]


@case("auto", "first", "lipschitz")
def certify_ball(method: str) -> Any:
    return decided(pb.certify(pb.example("digits-bound-1"), X, Y, 0.4, norm="2", method=method, nodes=10))


@case("ncp-4", "pn-conv", "pn-10")
def certify_kind(kind: str) -> Any:
    return [decided(pb.certify(network(kind), X[:6], Y[:6], eps, nodes=4)) for eps in (0.02, 0.2)]


@case("inf", "2")
def proofs(norm: str) -> Any:
    model = pb.example("digits-bound-1")
    found = pb.certify(model, X[:4], Y[:4], 0.15 if norm == "inf" else 0.5, norm=norm, nodes=20, keep=True)
    return written(lambda path: pb.certificates.save_certificates(path, model, found, X[:4], (-1.0, 1.0)), ".json")


@case("inf", "2")
def output_bounds(norm: str) -> Any:
    model = pb.example("digits")
    found = pb.output_bounds(model, X[:6], 0.05, norm=norm, method="second", keep=True)
    saved = written(lambda path: pb.certificates.save_certificates(path, model, found, X[:6], (-1.0, 1.0)), ".json")
    return [found.lower, found.upper, found.lowest, found.highest, found.lowest_at, found.highest_at, saved]


@case("inf", "2")
def radii(norm: str) -> Any:
    found = pb.certified_radius(pb.example("digits-bound-1"), X[:8], Y[:8], norm=norm, method="second", tolerance=1e-2)
    return [found.certified, found.attacked]


# Bounds and projections.


@case("pn-4", "ncp-4", "pn-conv")
def bounds(kind: str) -> Any:
    model = pb.example("pn-4-bound-1") if kind == "pn-4" else network(kind)
    table = [float(row) for row in pb.bounds(model, n=1000)]
    local = pb.lipschitz(model, method="local", box=(-0.1, 0.1))
    paper = pb.lipschitz(model, p=2, method="paper")
    return [table, float(local), float(paper), float(pb.rademacher(model, 1000, formula="sharper"))]


@case()
def generalisation() -> Any:
    return float(pb.generalisation(pb.example("digits-bound-1"), TRAIN.x, TRAIN.y, margin=0.5).value)


@case()
def projections() -> Any:
    random = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 5, 40, generator=random)
    kernel = torch.randn(4, 3, 3, 3, generator=random)
    return [
        pb.project_l1_rows(matrices, 2.0),
        pb.project_l1_rows(matrices.double(), torch.tensor([0.5, 1.0, 7.0], dtype=torch.float64)[:, None]),
        pb.project_linf_operator(kernel, 0.7, kernel_dims=2),
        pb.project_product(matrices, 3.0),
        pb.project_spectral(matrices, 1.5),
        pb.project_spectral_conv(kernel, 1.0, (8, 8)),
    ]


@case("inf", "2", "product")
def project_network(which: str) -> Any:
    models = [network("pn-4", 2), network("pn-conv"), *([] if which == "product" else [network("ncp-4")])]
    for model in models:
        pb.Projection(model, bound=0.5, **({"on": "product"} if which == "product" else {"norm": which})).apply_()
    return models


# Files.


@case("pn-4", "ncp-4", "pn-conv")
def files(kind: str) -> Any:
    model = network(kind)
    return [
        written(model.save, ".safetensors"),
        written(lambda path: pb.deploy.to_onnx(model, path, domain=(-1.0, 1.0)), ".onnx"),
    ]


@case()
def names() -> Any:
    recipes = [pb.Recipe.from_options(), pb.Recipe.for_data(1437, 64, method="projection", adversary="fgsm-0.1")]
    return [recipe.as_dict() for recipe in recipes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="the cases whose name contains it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, compute in CASES.items():
        if asked.only in name:
            print(f"{name:24} {digest(compute())}", flush=True)


if __name__ == "__main__":
    main()
