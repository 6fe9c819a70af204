"""Random ONNX graphs are read as what onnxruntime computes, or refused; random networks come back from their files.

    PYTHONPATH=tests python tests/fuzz/onnx_files.py [--count 7500] [--seconds 60] [--seed N]

Graph n of a seed is that of `helpers.onnx_random.judged(10**6 * seed + n, path)`. Every hundredth case is a search of
hypothesis among networks, written, run by onnxruntime and read.
"""

import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import hypothesis
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.campaigns import asked, numbers
from helpers.graphs import graphs
from helpers.onnx_graphs import same_after_a_round_trip
from helpers.onnx_random import judged


def round_trips(path, seed):
    """A hundred networks."""
    settings = hypothesis.settings(max_examples=100, deadline=None, database=None, print_blob=True)
    check = hypothesis.given(graphs(most=14, dtype=torch.float32))(lambda graph: same_after_a_round_trip(graph, path))
    hypothesis.seed(seed)(settings(check))()
    return "round trips"


def main():
    given = asked(__doc__)
    kinds = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        for number in numbers(given.count, given.seconds):
            case = 10**6 * given.seed + number
            try:
                kind = round_trips(path, case) if number % 100 == 99 else judged(case, path)[0]
            except Exception:  # whatever is raised is a finding
                kind = "wrong"
                print(f"case {case}: {traceback.format_exc(limit=-1)}", flush=True)
            kinds[kind] += 1
    print(", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()), flush=True)
    sys.exit(bool(kinds["wrong"]))


if __name__ == "__main__":
    main()
