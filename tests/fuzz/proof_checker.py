"""Mutate honest proof files, and let brute force judge each mutant that the check of proofs accepts.

    python tests/fuzz/proof_checker.py --count 1000000 --seed 7
    python tests/fuzz/proof_checker.py --only deep --count 100000 --seed 7

Mutants come in blocks of 500. A block is determined by the seed and its number, so that `--block` goes on where a
campaign was stopped, or repeats the block of a finding. Findings are written to `--findings`, one JSON a line. The exit
code is 1 if there are any.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from helpers.campaigns import asked, numbers
from helpers.graph_proofs import graph_subjects
from helpers.proof_mutants import campaign, subjects

BLOCK = 500


def main():
    first, findings = {"type": int, "default": 0, "help": "the first block"}, Path("build/proof-findings.jsonl")
    only = {"choices": ("chains", "deep"), "help": "files about networks of one kind"}
    options = asked(__doc__, 1_000_000, block=first, only=only, findings={"type": Path, "default": findings})
    torch.set_num_threads(1)
    honest = [] if options.only == "deep" else subjects()
    honest += [] if options.only == "chains" else graph_subjects()
    used, total, found = time.process_time(), Counter(), 0
    for block in numbers(-(-options.count // BLOCK), options.seconds):
        block += options.block
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
    print(f"{sum(total.values()):,} mutants of seed {options.seed}: {dict(total)}; {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
