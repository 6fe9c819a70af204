"""Random search for failures: new examples for the property tests, then the campaigns of this folder.

    python tests/fuzz [--seconds 120] [--seed N]

The seed is printed, and repeats the search. What is found becomes an `@example` or a test of its own.
"""

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CAMPAIGNS = sorted(file for file in HERE.glob("*.py") if file.name != "__main__.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="time for all of it (120)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="to repeat a search")
    given = parser.parse_args()
    print(f"make fuzz SECONDS={given.seconds:g} SEED={given.seed}", flush=True)
    environment = os.environ | {"HYPOTHESIS_PROFILE": "fuzz", "PYTHONPATH": os.pathsep.join([str(HERE.parent)])}
    half, seed = given.seconds / 2, str(given.seed)
    share = str(half / max(1, len(CAMPAIGNS)))
    words = ["-m", "pytest", "tests", "-q", "-n", "auto", "-m", "hypothesis", "-r", "fE", "-p", "no:cacheprovider"]
    searches = [[*words, "--seconds", str(half), "--hypothesis-seed", seed]]
    searches += [[str(campaign), "--seconds", share, "--seed", seed] for campaign in CAMPAIGNS]
    failed = []
    for search in searches:
        print("$ python", *search, flush=True)
        if subprocess.run([sys.executable, *search], cwd=HERE.parents[1], env=environment).returncode:
            failed.append(search)
    print(f"seed {given.seed}: {len(failed)} of {len(searches)} searches found something", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
