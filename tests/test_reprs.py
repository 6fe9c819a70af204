"""What a notebook shows of an object: a line, and never its arrays."""

import polybound as pb
from polybound.runs import DataSpec, Run, Spec


def test_every_repr_is_short_says_what_it_is_and_has_no_tensors():
    data, model = pb.data.load_digits("test"), pb.example("digits-bound-1")
    models = pb.stack([model] * 40)
    result = pb.evaluate(model, data, "fgsm-0.1", limit=20, keep=3)
    shown = {
        "Dataset(digits test: 360 inputs of shape (1, 8, 8) in [-1, 1], 10 classes)": data,
        "Factors(CCP, degree=4, features=64, classes=10)": model.factors(),
        "Evaluation(3 scores of 1 run; print it to see them)": result,
        "<= 20, by Row-wise bound)": pb.lipschitz(model),
        "of 40, by Row-wise bound)": pb.lipschitz(models),
        ": 20 bounds)": pb.bounds(model),
        "Spec(digits pn-4 none, seed 0, ": Spec(DataSpec("digits", "00ff")),
        "Run('runs/digits')": Run("runs/digits"),
        "Radius(0 images)": pb.certified_radius(model, data.x[:0], data.y[:0]),
        "Radius(2 images": pb.certified_radius(model, data.x[:2], data.y[:2], tolerance=0.1),
        "Certificates(": pb.certify(model, data.x[:30], data.y[:30], 0.05),
        "History(": pb.fit(pb.paper_model("pn-4", shape=data.shape, seed=0), data, epochs=3),
    }
    others = [model, models, pb.Projection(model, 1.0), result.examples, result.scores, pb.Recipe()]
    for words, one in [*shown.items(), *(("", one) for one in others)]:
        text = repr(one)
        assert words in text and len(text) <= 250 and text.count("\n") <= 3, text
        assert "tensor(" not in text and "array(" not in text
