"""The command line: `polybound COMMAND`. Everything that it does can be done from Python."""

from polybound.cli.entry import main

__all__ = ["main"]
