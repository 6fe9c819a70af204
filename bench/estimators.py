"""The estimators with their defaults against scikit-learn's, five-fold, on nine data sets.

    python bench/estimators.py            # measures what bench/estimators.json does not have, and writes the tables
    python bench/estimators.py "MLP, 64 units"    # the same of one model only
    python bench/estimators.py --tables   # writes the tables of docs/estimators.md only

The data sets, the folds and the radii below were written down and committed before the first run. The defaults of the
estimators were tuned on other data, which docs/estimators.md names, never on these.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from torch import Tensor, nn

import polybound as pb
from polybound.atomic import write_atomically

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

FOLDS = 5
SHOWN = 40
"""Test samples of each fold that are attacked and that certificates are asked for, the first ones."""
RADII = (0.03, 0.1)
"""Of attacks and certificates: how many of its standard deviations each feature may move by."""


def fashion() -> tuple[Array, Labels]:
    """The first 10,000 training images of Fashion-MNIST."""
    data = pb.data.load("fashion-mnist", "train")
    return data.x[:10_000].flatten(1).double().numpy(), data.y[:10_000].numpy()


DATA: dict[str, Callable[[], tuple[Array, Labels]]] = {
    # What the comparison has to have.
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    # Five more, chosen before any of them was looked at.
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "moons": lambda: datasets.make_moons(1000, noise=0.3, random_state=0),
    "classification, 4 classes": lambda: datasets.make_classification(
        2000, 20, n_informative=10, n_redundant=4, n_classes=4, flip_y=0.02, random_state=0
    ),
    "classification, 50 features": lambda: datasets.make_classification(
        2000, 50, n_informative=8, n_redundant=12, n_clusters_per_class=4, flip_y=0.02, random_state=1
    ),
    "Hastie 10.2": lambda: datasets.make_hastie_10_2(3000, random_state=0),
    # And the largest of those that the comparison has to have.
    "Fashion-MNIST, 10,000": fashion,
}

REGRESSION: dict[str, Callable[[], tuple[Array, Array]]] = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "Friedman 1": lambda: datasets.make_friedman1(1000, noise=1.0, random_state=0),
    "Friedman 2": lambda: datasets.make_friedman2(1000, noise=50.0, random_state=0),
    "Friedman 3": lambda: datasets.make_friedman3(1000, noise=0.1, random_state=0),
}

OURS = "polybound"


def standardised(regressor: Any) -> Any:
    """A regressor whose inputs and targets are standardised."""
    return TransformedTargetRegressor(make_pipeline(StandardScaler(), regressor), transformer=StandardScaler())


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    OURS: lambda: pb.PolynomialClassifier(random_state=0),
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "SVC, cubic": lambda: make_pipeline(StandardScaler(), SVC(kernel="poly", coef0=1)),
    "MLP, 64 units": lambda: make_pipeline(StandardScaler(), MLPClassifier((64,), random_state=0)),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    OURS: lambda: pb.PolynomialRegressor(random_state=0),
    "ridge": lambda: standardised(Ridge()),
    "SVR, cubic": lambda: standardised(SVR(kernel="poly", coef0=1)),
    "MLP, 64 units": lambda: standardised(MLPRegressor(hidden_layer_sizes=(64,), random_state=0)),
}
HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "estimators.json", HERE.parent / "docs" / "estimators.md"


class Clipped(nn.Module):
    """The polynomial classifier as a function of standardised inputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.network((z / 3).clamp(-1.0, 1.0))
        return logits


def attackable(model: Any) -> nn.Module | None:
    """A copy in torch, of standardised inputs; None of what has no gradients at hand."""
    if isinstance(model, pb.PolynomialClassifier):
        return Clipped(model.model_)
    last = model[-1]
    if isinstance(last, LogisticRegression):
        return linear(last.coef_.T, last.intercept_)
    if isinstance(last, MLPClassifier):
        (W, V), (b, c) = last.coefs_, last.intercepts_
        hidden = nn.Linear(*W.shape)
        hidden.weight.data, hidden.bias.data = torch.tensor(W.T).float(), torch.tensor(b).float()
        return nn.Sequential(hidden, nn.ReLU(), linear(V, c))
    return None


def linear(weight: Array, constant: Array) -> nn.Linear:
    """A linear map; of two classes, whose difference is all that scikit-learn keeps, both outputs."""
    if weight.shape[1] == 1:
        weight, constant = np.hstack([-weight / 2, weight / 2]), np.hstack([-constant / 2, constant / 2])
    layer = nn.Linear(*weight.shape)
    layer.weight.data, layer.bias.data = torch.tensor(weight.T).float(), torch.tensor(constant).float()
    return layer


def under_attack(model: Any, scaler: StandardScaler, X: Array, y: Labels, radius: float) -> float | None:
    """The accuracy on what PGD makes of X (40 steps, two random starts); `predict` itself is the judge."""
    copy = attackable(model)
    if copy is None:
        return None
    Z = scaler.transform(X)
    attack = pb.PGD(radius, 40, restarts=2, early_stop=True)
    limit = float(np.abs(Z).max()) + 1.0
    found = attack(copy, torch.tensor(Z).float(), torch.tensor(y), domain=(-limit, limit))
    still = model.predict(X) == y
    still &= model.predict(scaler.inverse_transform(found.double().numpy())) == y
    return float(still.mean())


def fold(make: Callable[[], Any], X: Array, y: Labels, train: Labels, test: Labels) -> dict[str, Any]:
    """All that is measured of one fit."""
    model, scaler = make(), StandardScaler().fit(X[train])
    begun = time.process_time()
    model.fit(X[train], y[train])
    seconds = time.process_time() - begun
    line: dict[str, Any] = {"seconds": seconds, "accuracy": float(model.score(X[test], y[test]))}
    few = test[:SHOWN]
    line["attacked"] = [under_attack(model, scaler, X[few], y[few], radius) for radius in RADII]
    if isinstance(model, pb.PolynomialClassifier):
        eps = [radius * scaler.scale_ for radius in RADII]
        line["certified"] = [model.certified_score(X[few], y[few], each, budget=0.3) for each in eps]
    return line


def regression_fold(make: Callable[[], Any], X: Array, y: Array, train: Labels, test: Labels) -> dict[str, Any]:
    model = make()
    begun = time.process_time()
    model.fit(X[train], y[train])
    return {"seconds": time.process_time() - begun, "r2": float(model.score(X[test], y[test]))}


def known() -> dict[str, Any]:
    """What was measured before."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def measure(results: dict[str, Any], only: str | None) -> None:
    """Everything that is not known yet, of one model or of all; what is measured is written at once."""
    for kind, data, models in (("classification", DATA, CLASSIFIERS), ("regression", REGRESSION, REGRESSORS)):
        for name, read in data.items():
            X, y = read()
            X = np.asarray(X, dtype=np.float64)
            y = LabelEncoder().fit_transform(y) if kind == "classification" else y
            splitter = StratifiedKFold if kind == "classification" else KFold
            splits = list(splitter(FOLDS, shuffle=True, random_state=0).split(X, y))
            for label, make in models.items():
                key = f"{kind} | {name} | {label}"
                if key in results or only not in (None, label):
                    continue
                one = fold if kind == "classification" else regression_fold
                lines = [one(make, X, y, train, test) for train, test in splits]
                print(key, summary(lines), flush=True)
                results |= known() | {key: lines}  # another process may have measured another model
                write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())


def summary(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {name: round(float(np.mean([line[name] for line in lines])), 4) for name in lines[0] if name in SIMPLE}


SIMPLE = ("seconds", "accuracy", "r2")


def percent(lines: list[dict[str, Any]], name: str, index: int | None = None) -> str:
    """The mean over folds of a share, as text; what is not there is "none"."""
    found = [line.get(name) if index is None else (line.get(name) or (None,) * 9)[index] for line in lines]
    if any(value is None for value in found):
        return "none" if name == "certified" else "not attacked"
    return f"{100 * float(np.mean(found)):.1f}"


def classification_table(results: dict[str, Any]) -> list[str]:
    small, large = RADII
    rows = [
        f"| data | classifier | accuracy | PGD {small:g} | PGD {large:g} | certified {small:g} | certified {large:g} | "
        "fit, CPU s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in DATA:
        for label in CLASSIFIERS:
            lines = results[f"classification | {name} | {label}"]
            cells = [name, label, percent(lines, "accuracy")]
            cells += [percent(lines, kind, i) for kind in ("attacked", "certified") for i in range(2)]
            rows.append(f"| {' | '.join(cells)} | {summary(lines)['seconds']:.2f} |")
    return rows


def means(results: dict[str, Any]) -> list[str]:
    """Mean accuracies over all data sets, and that of the best of the others on each."""
    found = {
        label: [summary(results[f"classification | {name} | {label}"])["accuracy"] for name in DATA]
        for label in CLASSIFIERS
    }
    others = np.max([found[label] for label in found if label != OURS], axis=0)
    rows = ["| | mean accuracy over the nine |", "| --- | ---: |"]
    rows += [f"| {label} | {100 * np.mean(values):.2f} |" for label, values in found.items()]
    return [*rows, f"| the best of the others on each | {100 * np.mean(others):.2f} |"]


def regression_table(results: dict[str, Any]) -> list[str]:
    rows = [f"| data | {' | '.join(REGRESSORS)} |", f"| --- |{' ---: |' * len(REGRESSORS)}"]
    for name in REGRESSION:
        cells = [f"{summary(results[f'regression | {name} | {label}'])['r2']:.3f}" for label in REGRESSORS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def write_tables(results: dict[str, Any]) -> None:
    """Put the tables where the page has their marks."""
    page = PAGE.read_text(encoding="utf-8")
    tables = {"classification": classification_table, "means": means, "regression": regression_table}
    for name, table in tables.items():
        before, rest = page.split(f"<!-- {name} -->\n")
        _, after = rest.split(f"<!-- end of {name} -->")
        page = "\n".join([f"{before}<!-- {name} -->", *table(results), f"<!-- end of {name} -->"]) + after
    write_atomically(PAGE, page.encode())


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # of MLPClassifier's 200 epochs
    results = known()
    if "--tables" not in sys.argv:
        measure(results, sys.argv[1] if len(sys.argv) > 1 else None)
    if len(results) == len(DATA) * len(CLASSIFIERS) + len(REGRESSION) * len(REGRESSORS):
        write_tables(results)


if __name__ == "__main__":
    main()
