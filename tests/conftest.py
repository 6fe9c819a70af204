import os

import pytest
import torch
from hypothesis import settings

# Always the same examples where a change is judged, new ones wherever it is made.
settings.register_profile("polybound", max_examples=200, deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.register_profile("quick", max_examples=30, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "polybound"))

# The tests run side by side on the cores; threads inside of each would only get in each other's way.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
