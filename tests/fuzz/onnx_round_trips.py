"""Random networks to ONNX and back: onnxruntime computes what the graph does, and so does what is read.

    PYTHONPATH=tests python tests/fuzz/onnx_round_trips.py [--count 2000 | --seconds 60] [--seed N]

The seed is printed, and repeats the search.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import hypothesis
import torch

from helpers.graphs import graphs
from helpers.onnx_graphs import same_after_a_round_trip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=None, help="networks; by default as many as there is time for")
    parser.add_argument("--seconds", type=float, default=None, help="time (60 without --count)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="to repeat a search")
    given = parser.parse_args()
    print(f"onnx_round_trips --seed {given.seed}", flush=True)
    limit = given.seconds if given.seconds is not None else (60.0 if given.count is None else float("inf"))
    begun, done, failed = time.monotonic(), 0, 0

    with tempfile.TemporaryDirectory() as folder:

        def check(graph):
            nonlocal done
            if time.monotonic() - begun < limit:
                same_after_a_round_trip(graph, Path(folder) / "net.onnx")
                done += 1

        settings = hypothesis.settings(max_examples=200, deadline=None, database=None, print_blob=True)
        part = 0
        while time.monotonic() - begun < limit and (given.count is None or done < given.count):
            search = hypothesis.seed(1000 * given.seed + part)(
                settings(hypothesis.given(graphs(most=14, dtype=torch.float32))(check))
            )
            try:
                search()
            except Exception as error:  # whatever is raised is a finding
                failed += 1
                print(f"seed {given.seed}, part {part}: {type(error).__name__}: {error}", flush=True)
            part += 1
    print(f"{done:,} networks, {failed} parts of {part} with a failure", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
