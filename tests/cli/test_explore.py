"""`polybound explore` as it is typed."""

import base64
import json
import re

import numpy as np

import polybound as pb
from conftest import run_command


def test_without_a_run_it_shows_the_bundled_digits(tmp_path):
    done = run_command("explore", "-n", "2", "--budget", "0", "-o", "e.html", cwd=tmp_path)
    assert done.code == 0 and done.out == "e.html: 0.1 MB, digits, digits-bound-1; test images: 2\n"
    page = (tmp_path / "e.html").read_text()
    assert "Content-Security-Policy" in page and "default-src 'none'" in page and "http://" not in page


def test_a_model_file_and_the_same_twice(tmp_path):
    pb.example("digits").save(tmp_path / "m.safetensors")
    words = ("explore", "m.safetensors", "m.safetensors", "--dataset", "digits", "-n", "1", "--budget", "0")
    done = run_command(*words, cwd=tmp_path)
    assert done.code == 0 and "m.safetensors, m.safetensors (2)" in done.out
    assert (tmp_path / "explorer.html").is_file()


def test_a_saved_classifier(tmp_path):
    random = np.random.default_rng(0)
    X = random.normal([50.0, 1.7, 3.0], [10.0, 0.1, 0.0], (60, 3))
    classifier = pb.PolynomialClassifier(epochs=2, rank=4, random_state=0).fit(
        X, np.where(X[:, 0] > 50, "old", "young")
    )
    classifier.save(tmp_path / "c.safetensors")
    done = run_command("explore", "c.safetensors", cwd=tmp_path)
    assert done.code == 0, done.err
    page = (tmp_path / "explorer.html").read_text()
    assert '"classes": ["old", "young"]' in page and '"name": "feature 3"' in page and '"width": 0.0' in page
    content = json.loads(re.search(r'id="content">(.*?)</script>', page).group(1))
    for step, own in zip(content["networks"][0]["A"], classifier.model_.factors().A, strict=True):
        kind, units = step["W"]["type"], len(own.constant)
        weights = np.frombuffer(base64.b64decode(step["W"]["data"]), f"<{kind}").reshape(units, 3)
        # The third feature never varied: its input is 0, and whatever the page's attacks do to it has no effect.
        assert np.array_equal(weights[:, :2], own.weight.detach().numpy()[:, :2]) and not weights[:, 2].any()
    both = run_command("explore", "c.safetensors", "digits", cwd=tmp_path)
    assert both.code == 2 and "both networks need the same test images" in both.err
