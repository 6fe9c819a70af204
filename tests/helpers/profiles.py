"""How many examples hypothesis asks for: `make quick`, `make test` and `make fuzz` differ in nothing else.

`make test` asks the same questions on every machine, every time; `make fuzz` asks new ones until its time is up.
"""

import os
from contextlib import suppress

from hypothesis import settings

settings.register_profile("test", max_examples=20, deadline=None, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("test"), max_examples=6)
settings.register_profile("fuzz", max_examples=200, deadline=None, print_blob=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

if settings.default.derandomize:
    # Hypothesis also tries the constants of the modules that were imported so far, which depends on the tests' order.
    with suppress(ImportError):  # older versions do not
        from hypothesis.internal.conjecture import providers

        providers.is_local_module_file = lambda _: False


def examples(percent):
    """This share of a profile's examples, for a test that is slower than others."""
    return max(2, settings.default.max_examples * percent // 100)
