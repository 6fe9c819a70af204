"""Random graphs are either refused or read as exactly what onnxruntime computes: nothing is read wrongly."""

from collections import Counter

from helpers.onnx_random import judged


def test_what_is_read_is_what_is_computed(tmp_path):
    found = [judged(seed, tmp_path / "net.onnx") for seed in range(400)]
    kinds = Counter(kind for kind, _ in found)
    assert kinds["model"] > 200 and kinds["refused"] > 50, kinds
    assert sum(kind == "model" and degree > 2 for kind, degree in found) > 20
