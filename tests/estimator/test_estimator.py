"""The estimators among scikit-learn's checks and tools, their files, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import polybound as pb
from helpers.errors import refuses

IRIS = load_iris(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)


def quick(**options):
    return pb.PolynomialClassifier(**{"epochs": 20, "rank": 8, "learning_rate": 0.03, "random_state": 0} | options)


def quick_regressor(**options):
    return pb.PolynomialRegressor(**{"epochs": 20, "rank": 8, "learning_rate": 0.03, "random_state": 0} | options)


@pytest.fixture(scope="module")
def fitted():
    return quick().fit(*IRIS)


@pytest.fixture(scope="module")
def fitted_regressor():
    return quick_regressor().fit(*DIABETES)


# Among scikit-learn's tools


def test_grid_search_over_bounds_finds_norms_that_are_held():
    search = GridSearchCV(quick(epochs=60), {"bound": [0.5, 4.0, None], "rank": np.array([8])}, cv=2).fit(*IRIS)
    assert search.best_score_ > 0.85
    inside = quick(bound=0.5).fit(*IRIS)
    assert pb.Projection(inside.model_, bound=0.5).contains()
    assert float(inside.bounds_["lipschitz"]) < float(quick().fit(*IRIS).bounds_["lipschitz"])


def test_a_fit_depends_on_neither_order_nor_repetition_nor_form(fitted):
    X, y = IRIS
    order = np.random.default_rng(0).permutation(len(X))
    for inputs, labels in ((X[order], y[order]), (np.vstack([X, X]), np.hstack([y, y])), (sparse.csr_matrix(X), y)):
        other = quick().fit(inputs, labels)
        assert np.array_equal(other.decision_function(sparse.csc_matrix(X)), fitted.decision_function(X))


def test_class_weights_move_the_balance():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:200, :3], y[:200]
    shares = [(quick(class_weight=weight).fit(X, y).predict(X) == 0).mean() for weight in ({0: 50.0}, {1: 50.0})]
    assert shares[0] > shares[1] + 0.1
    for wrong in ("fair", {"0": 50.0}, {0: -1.0}):
        refuses(r"class.weight", quick(class_weight=wrong).fit, X, y)


def test_partial_fit_learns_in_pieces():
    X, y = IRIS
    rng = np.random.default_rng(0)
    model = quick(rank=16)
    for _ in range(30):
        rows = rng.choice(150, 50, replace=False)
        model.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
    assert model.score(X, y) > 0.9 and model.n_iter_ == len(model.history_) == 30
    assert model.certify(X[:5], y[:5], 0.01).verified.any()
    # The scaling is that of all that was seen.
    assert abs(model.scaling_.mean - X.mean(0)).max() < 0.1
    refuses("not one of the classes", model.partial_fit, X, y + 1)
    refuses("needs classes", quick().partial_fit, X, y)


def test_other_recipes():
    X, y = IRIS
    for options in (
        {"form": "product"},
        {"form": "nested", "degree": 2},
        {"optimiser": "sgd", "learning_rate": 0.5},
        {"optimiser": "momentum", "learning_rate": 0.1, "weight_decay": 0.01},
        {"adversary": "pgd-0.02-3"},
        {"bound": 2.0, "norm": "2"},
        {"method": {"name": "projection", "bound": 2.0, "on": "product"}},
        {"method": "jacobian"},
        {"early_stopping": True},
        {"degree": np.int64(2), "learning_rate": np.float32(0.01)},
    ):
        model = quick(**options).fit(X, y)
        assert model.score(X, y) > 0.75, options
        assert model.certify(X[:2], y[:2], 0.01).verified.any(), options


def test_several_targets_are_predicted_by_one_network_also_in_pieces():
    X, y = DIABETES
    both = np.stack([y, -3 * y + 1000], 1)
    model = quick_regressor()
    for _ in range(30):
        model.partial_fit(X, both)
    assert model.predict(X).shape == (442, 2) and model.score(X, both) > 0.3
    assert model.fit(X, both).score(X, both) > 0.4
    found = model.predict_interval(X[:4], 0.001)
    assert found.lower.shape == (4, 2) and (found.lower <= found.upper).all()
    refuses("shape", model.partial_fit, X, y)


# Units


def test_claims_are_in_the_units_of_the_features():
    X, y = IRIS
    units = np.array([1.0, 1000.0, 1e-6, 2.0])
    shift = np.array([0.0, 5e4, 0.0, -8.0])
    plain, scaled = quick().fit(X, y), quick().fit(X * units + shift, y)
    radii = plain.certified_radius(X[:10])
    # Scaled inputs differ by some roundings, and so do the trained networks.
    assert np.allclose(scaled.certified_radius(X[:10] * units + shift), radii * units, rtol=0.05, atol=1e-12)
    assert (radii > 0).any(1).mean() > 0.8
    assert np.allclose(radii, radii[:, :1] * plain.scaling_.std / plain.scaling_.std[0])


def test_a_feature_that_never_varied_says_nothing_and_its_radius_may_be_infinite():
    X, y = IRIS
    with_constant = np.hstack([X, np.full((150, 1), 7.0)])
    model = quick().fit(with_constant, y)
    moved = with_constant + np.array([0, 0, 0, 0, 1e6])
    assert np.array_equal(model.decision_function(moved), model.decision_function(with_constant))
    radii = model.certified_radius(with_constant[:3], y[:3])
    assert np.isinf(radii[:, 4]).all() and model.certify(with_constant[:3], y[:3], radii).verified.all()


def test_radius_in_chosen_proportions(fitted):
    X, y = IRIS
    along = fitted.certified_radius(X[:5], y[:5], scale=[1, 0, 0, 0])
    assert (along[:, 1:] == 0).all() and (along[:, 0] >= fitted.certified_radius(X[:5], y[:5])[:, 0]).all()
    assert fitted.certify(X[:5], y[:5], along, budget=60.0).verified.all()
    refuses("scale", fitted.certified_radius, X[:5], scale=0.0)


def test_verdicts_agree_with_each_other(fitted):
    X, y = IRIS
    found = fitted.certify(X, y, eps=0.3, budget=60.0)
    assert set(found.status) <= {"verified", "falsified", "undecided"} and "falsified" in found.status
    wrong = found.status == "falsified"
    points = found.counterexample[wrong]
    assert (fitted.predict(points) != y[wrong]).all() and (np.abs(points - X[wrong]) <= 0.3).all()
    assert np.isnan(found.counterexample[~wrong]).all()
    assert fitted.certified_score(X, y, 0.3, budget=60.0) == found.verified.mean() <= fitted.score(X, y)
    assert fitted.certified_score(X, y, 0.3, sample_weight=y == 0) == found.verified[y == 0].mean()
    assert "verified" in repr(found)


def test_bounds_are_in_units(fitted, fitted_regressor):
    X, _ = IRIS
    rng = np.random.default_rng(0)
    of_values = fitted_regressor, DIABETES[0], lambda x: fitted_regressor.predict(x)[:, None]
    for model, data, predict in ((fitted, X, fitted.decision_function), of_values):
        constant = float(model.bounds_["lipschitz"])
        steps = rng.normal(size=data.shape) * data.std(0) * 0.01
        slope = np.abs(predict(data + steps) - predict(data)).max(1) / np.abs(steps).max(1)
        assert 0 < slope.max() <= constant
    assert set(fitted.bounds_) == {"lipschitz", "lipschitz_scaled", "rademacher", "generalisation"}
    assert "three standard deviations" in str(fitted.bounds_["rademacher"])


# Files


@pytest.mark.parametrize(
    "labels", [np.array(["a", "béta", "c"]), np.array([3, 1, 2]), np.array(["x", "y", "z"], object)]
)
def test_a_classifier_is_saved_without_pickle(tmp_path, labels):
    X, y = IRIS
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = quick(class_weight={labels[0]: 2.0}, bound=2.0).fit(frame, labels[y])
    assert set(model.predict(frame)) <= set(labels.tolist()) and model.classes_.dtype == labels.dtype
    assert model.certify(frame[:3], labels[y][:3], 0.001).verified.all()
    model.save(tmp_path / "iris.safetensors")
    again = pb.PolynomialClassifier.load(tmp_path / "iris.safetensors")
    assert again.get_params() == model.get_params()
    assert again.classes_.dtype == model.classes_.dtype and (again.classes_ == model.classes_).all()
    assert np.array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert again.bounds_ == model.bounds_ and again.history_.lines == model.history_.lines
    assert list(again.feature_names_in_) == list("abcd") and again.n_iter_ == model.n_iter_
    model.partial_fit(frame, labels[y])
    again.partial_fit(frame, labels[y])
    assert np.array_equal(again.decision_function(frame), model.decision_function(frame))
    assert pb.load(tmp_path / "iris.safetensors").config() == model.model_.config()


def test_a_regressor_is_saved_without_pickle(tmp_path, fitted_regressor):
    X, y = DIABETES
    for targets in (y, np.stack([y, y**2], 1)):
        model = quick_regressor().fit(X, targets)
        model.save(tmp_path / "model.safetensors")
        again = pb.PolynomialRegressor.load(tmp_path / "model.safetensors")
        assert np.array_equal(again.predict(X), model.predict(X))


def test_files_that_are_something_else_are_refused(tmp_path, fitted, fitted_regressor):
    path = tmp_path / "model.safetensors"
    fitted.model_.save(path)
    refuses("not an estimator", pb.PolynomialClassifier.load, path, error=pb.FileFormatError)
    fitted_regressor.save(path)
    refuses("holds a PolynomialRegressor", pb.PolynomialClassifier.load, path, error=pb.FileFormatError)
    fitted.save(path)
    content = path.read_bytes()
    for old, new in ((b"std", b"sdt"), (b'\\"epochs\\"', b'\\"epoch5\\"'), (b"[5.8", b"[[5.")):
        if old in content:
            path.write_bytes(content.replace(old, new))
            refuses("", pb.PolynomialClassifier.load, path, error=pb.FileFormatError)
    path.write_bytes(content[:100])
    refuses("", pb.PolynomialClassifier.load, path, error=pb.FileFormatError)
    for ask in (lambda: clone(fitted).save(path), lambda: clone(fitted).certified_radius(IRIS[0])):
        with pytest.raises(NotFittedError):
            ask()


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": 0}, "degree must be a whole number"),
        ({"form": "round"}, "form must be one of residual, product, nested"),
        ({"bound": 1.0, "method": "jacobian"}, "a bound goes with"),
        ({"device": "toaster"}, "device 'toaster' cannot be used"),
        ({"validation_fraction": 2.0}, "validation_fraction must lie between 0 and 1"),
        ({"early_stopping": -1}, "early_stopping must be"),
        ({"norm": "bogus"}, "norm must be 'inf' or '2'"),
    ],
)
def test_bad_parameters_are_one_line(options, message):
    refuses(message, quick(**options).fit, *IRIS)


def test_bad_radii_are_one_line(fitted):
    X, y = IRIS
    for eps, message in (
        (-1.0, "negative"),
        (np.nan, "NaN"),
        (np.inf, "must be finite"),
        (True, "must be a number"),
        ([True] * 4, "must be a number"),
        ([1.0, 2.0], "4 numbers"),
        ("wide", "must be a number"),
        (None, "must be a number"),
    ):
        refuses(message, fitted.certify, X[:3], y[:3], eps)
        if not isinstance(eps, list | str) and eps is not None:
            refuses("eps", pb.certify, fitted.model_, torch.from_numpy(X[:3]), torch.from_numpy(y[:3]), eps)
    refuses("one label", fitted.certify, X[:3], y[:2], 0.1)
    refuses("tolerance", fitted.certified_radius, X[:1], tolerance=0.0)


def test_labels_that_are_none_of_the_classes_are_refused(fitted):
    X, _ = IRIS
    for y in ([9] * 5, [None] * 5, ["0"] * 5, [0, 1, 2, 0, np.nan]):
        for ask in (
            lambda y=y: fitted.certify(X[:5], y, 0.1),
            lambda y=y: fitted.certified_score(X[:5], y, 0.1),
            lambda y=y: fitted.certified_radius(X[:5], y),
        ):
            refuses(r"is not one of the classes \[0, 1, 2\]", ask)


def test_a_refit_that_fails_changes_nothing(fitted_regressor):
    X, y = IRIS
    model = quick().fit(X, y)
    before, outputs = dict(vars(model)), model.decision_function(X)
    for refit in (
        lambda: model.set_params(learning_rate=1e9).fit(X[:, :3], 2 - y),
        lambda: model.set_params(learning_rate=1e9).partial_fit(X, y),
        lambda: model.set_params(learning_rate=0.03).fit(X[y == 0], y[y == 0]),
        lambda: model.set_params(class_weight={1: -1.0, 2: 1.0}).fit(X[y > 0], y[y > 0]),
    ):
        refuses("", refit)
        fitted = {name: value for name, value in vars(model).items() if name not in model.get_params()}
        assert fitted == {name: before[name] for name in fitted} and len(fitted) == len(before) - 19
        assert np.array_equal(model.decision_function(X), outputs)
    fresh = quick(learning_rate=1e9)
    refuses("", fresh.fit, X, y, error=pb.NonFiniteError)
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    shape = fitted_regressor._shape
    refuses("", clone(fitted_regressor).set_params(learning_rate=1e9).fit, X, np.stack([y, y], 1))
    assert fitted_regressor._shape == shape


def test_radii_with_names_are_aligned_by_name(fitted):
    X, y = IRIS
    names, eps = ["a", "b", "c", "d"], np.array([0.5, 0.01, 0.02, 0.03])
    frame = pd.DataFrame(X, columns=names).iloc[40:60]
    model, labels = quick().fit(pd.DataFrame(X, columns=names), y), y[40:60]
    series = pd.Series(eps, index=names)
    shuffled = series[["d", "b", "a", "c"]]
    table = pd.DataFrame([eps] * 20, columns=names, index=frame.index)
    wanted = model.certify(frame, labels, eps)
    for given in (series, shuffled, table, table[["c", "a", "d", "b"]]):
        assert np.array_equal(model.certify(frame, labels, given).margin, wanted.margin)
    radii = [model.certified_radius(frame[:2], scale=given) for given in (eps, shuffled)]
    assert np.array_equal(*radii)
    for wrong in (series.rename({"a": "z"}), series[:3], pd.Series(eps), table.set_index(np.arange(20))):
        refuses("eps", model.certify, frame, labels, wrong)
    refuses("scale is for", model.certified_radius, frame[:2], scale=series.rename({"a": "z"}))
    # Without names, names cannot be aligned; positions can.
    refuses("to_numpy", fitted.certify, X[:3], y[:3], series)
    plain, numbered = (fitted.certify(X[:3], y[:3], given).margin for given in (eps, pd.Series(eps)))
    assert numbered == pytest.approx(plain)
    regressor = quick_regressor().fit(pd.DataFrame(X, columns=names), y)
    inside = [regressor.predict_interval(frame[:3], given).lower for given in (eps, shuffled)]
    assert np.array_equal(*inside)


def test_a_tolerance_below_the_spacing_of_numbers_comes_to_an_end(fitted):
    X, y = IRIS
    radii = fitted.certified_radius(X[:1], y[:1], tolerance=1e-300, method="first")
    rough = fitted.certified_radius(X[:1], y[:1], tolerance=1e-3, method="first")
    assert (radii >= rough).all() and (radii <= rough + 2e-3 * fitted.scaling_.width).all()


def test_weights_that_would_fill_the_memory_are_refused():
    X, y = IRIS
    weights = np.ones(150)
    weights[0] = 3e9
    for huge in (weights, np.where(weights > 1, 1e300, 1)):
        refuses("divide the weights", quick(method="jacobian").fit, X, y, sample_weight=huge)
    quick(epochs=1).fit(X, y, sample_weight=weights)  # weights of a plain loss repeat nothing


def test_masked_arrays_are_refused(fitted):
    X, y = IRIS
    hidden = np.ma.masked_array(X, mask=X > 7)
    labels = np.ma.masked_array(y, mask=y == 1)
    for attempt in (
        lambda: quick().fit(hidden, y),
        lambda: quick().fit(X, labels),
        lambda: quick().partial_fit(hidden, y, classes=[0, 1, 2]),
        lambda: quick().fit(X, y, sample_weight=np.ma.masked_array(np.ones(150), mask=y == 1)),
        lambda: quick_regressor().fit(hidden, y),
        lambda: fitted.predict(hidden),
        lambda: fitted.certify(X, labels, 0.1),
        lambda: fitted.certify(X, y, np.ma.masked_array([0.1] * 4, mask=[0, 1, 0, 0])),
    ):
        refuses("masked", attempt)
    assert np.array_equal(fitted.predict(np.ma.masked_array(X)), fitted.predict(X))


def test_denormal_data_are_saved(tmp_path):
    X, y = IRIS
    model = quick().fit(X * 1e-310, y)
    assert not np.isfinite(float(model.bounds_["lipschitz"]))
    model.save(tmp_path / "tiny.safetensors")
    assert pb.PolynomialClassifier.load(tmp_path / "tiny.safetensors").bounds_ == model.bounds_


@pytest.mark.parametrize(
    ("rows", "options", "weight", "message"),
    [
        (50, {}, None, "two classes"),
        (150, {}, np.zeros(150), "zero"),
        (150, {"class_weight": {0: 0.0, 1: 0.0, 2: 0.0}}, None, "weights are zero"),
    ],
)
def test_one_class_and_no_weight_are_refused(rows, options, weight, message):
    X, y = IRIS
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(X[:rows], y[:rows], sample_weight=weight)


@pytest.mark.slow
@parametrize_with_checks([pb.PolynomialClassifier(epochs=20), pb.PolynomialRegressor(epochs=20)])
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)
