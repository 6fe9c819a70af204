"""What the campaigns of `tests/fuzz` have in common: their options, and numbers until enough was done."""

import argparse
import math
import random
import time


def asked(about, count=10**9, **options):
    """The options of a campaign from the command line; the seed, which repeats it, is printed.

    Args:
        about: the docstring of the campaign.
        count: how many cases there are by default.
        **options: further options, each by what `add_argument` takes.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help="how many cases")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further case after this time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="to repeat a search")
    for name, option in options.items():
        parser.add_argument(f"--{name}", **option)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    return given


def numbers(count, seconds):
    """Numbers from 0 on, until there are enough or the time is over; at least one."""
    end = time.monotonic() + seconds
    for number in range(count):
        yield number
        if time.monotonic() > end:
            return
