"""The command line: `polybound COMMAND`. Everything that it does can be done from Python."""

from polybound.cli.app import main

__all__ = ["main"]
