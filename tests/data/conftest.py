"""The fixtures of all tests of `polybound.data`."""

from helpers.data import root  # noqa: F401
from helpers.server import server  # noqa: F401
