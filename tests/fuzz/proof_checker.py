"""Mutate honest proof files, and let brute force judge each mutant that the check of proofs accepts.

    python tests/fuzz/proof_checker.py --count 1000000 --seed 7

Mutants come in blocks of 500. A block is determined by the seed and its number, so that `--block` goes on where a
campaign was stopped, or repeats the block of a finding. Findings are written to `--findings`, one JSON a line. The exit
code is 1 if there are any.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from helpers.proof_mutants import campaign, subjects

BLOCK = 500


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="how many mutants")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="by default, of the clock")
    parser.add_argument("--block", type=int, default=0, help="the first block")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--findings", type=Path, default=Path("build/proof-findings.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"seed {options.seed}", flush=True)
    honest = subjects()
    begun, used, total, found = time.monotonic(), time.process_time(), Counter(), 0
    for block in range(options.block, options.block + -(-options.count // BLOCK)):
        counts, wrong = campaign(BLOCK, f"{options.seed} {block}", honest)
        total += counts
        for name, outcome, content in wrong:
            found += 1
            print(f"FOUND in block {block}, {name}: {outcome}", flush=True)
            options.findings.parent.mkdir(exist_ok=True)
            with options.findings.open("a") as file:
                print(json.dumps({"block": block, "subject": name, "outcome": outcome, "content": content}), file=file)
        if block % 10 == 9:
            rate = sum(total.values()) / (time.process_time() - used)
            print(f"{sum(total.values()):,} mutants, {rate:,.0f} a CPU second, next --block {block + 1}", flush=True)
        if time.monotonic() - begun > options.seconds:
            break
    print(f"{sum(total.values()):,} mutants of seed {options.seed}: {dict(total)}; {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
