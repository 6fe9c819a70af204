"""What a notebook shows of an object: a line, and never its arrays."""

import pytest

import polybound as pb
from polybound.runs import DataSpec, Run, Spec


@pytest.fixture(scope="module")
def shown():
    data = pb.data.load_digits("test")
    model = pb.example("digits-bound-1")
    models = pb.stack([model] * 40)
    result = pb.evaluate(model, data, "fgsm-0.1", limit=20, keep=3)
    objects = [
        data,
        model,
        models,
        model.factors(),
        pb.Projection(model, 1.0),
        pb.certify(model, data.x[:30], data.y[:30], 0.05),
        pb.certified_radius(model, data.x[:2], data.y[:2], tolerance=0.1),
        pb.certified_radius(model, data.x[:0], data.y[:0]),
        result,
        result.examples,
        result.scores,
        pb.lipschitz(model),
        pb.lipschitz(models),
        pb.bounds(model),
        Spec(DataSpec("digits", "00ff")),
        Run("runs/digits"),
        pb.Recipe(),
        pb.fit(pb.paper_model("pn-4", shape=data.shape, seed=0), data, epochs=3),
    ]
    return [repr(one) for one in objects]


def test_every_repr_is_short_and_has_no_tensors(shown):
    for text in shown:
        assert len(text) <= 250 and text.count("\n") <= 3, text
        assert "tensor(" not in text and "array(" not in text


def test_what_they_say(shown):
    text = "\n".join(shown)
    for words in (
        "Dataset(digits test: 360 inputs of shape (1, 8, 8) in [-1, 1], 10 classes)",
        "Factors(CCP, degree=4, features=64, classes=10)",
        "Evaluation(3 scores of 1 run; print it to see them)",
        "<= 20, by Row-wise bound)",
        "of 40, by Row-wise bound)",
        ": 20 bounds)",
        "Spec(digits pn-4 none, seed 0, ",
        "Run('runs/digits')",
        "Radius(0 images)",
    ):
        assert words in text, words
