"""Random ONNX graphs against onnxruntime: each is read as what it computes, or refused.

    PYTHONPATH=tests python tests/fuzz/onnx_graphs.py [--count 7500 | --seconds 60] [--seed N]

The seed is printed; graph n of it is that of `helpers.onnx_random.judged(10**6 * seed + n, path)`.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from helpers.onnx_random import judged


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=None, help="graphs; by default as many as there is time for")
    parser.add_argument("--seconds", type=float, default=None, help="time (60 without --count)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="to repeat a search")
    given = parser.parse_args()
    print(f"onnx_graphs --seed {given.seed}", flush=True)
    limit = given.seconds if given.seconds is not None else (60.0 if given.count is None else float("inf"))
    kinds, begun, number = Counter(), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - begun < limit and (given.count is None or number < given.count):
            try:
                kind, _ = judged(10**6 * given.seed + number, Path(folder) / "net.onnx")
            except Exception:  # whatever is raised is a finding
                kind = "wrong"
                print(f"graph {10**6 * given.seed + number}: {traceback.format_exc(limit=-1)}", flush=True)
            kinds[kind] += 1
            number += 1
    print(f"{number:,} graphs: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()), flush=True)
    sys.exit(bool(kinds["wrong"]))


if __name__ == "__main__":
    main()
