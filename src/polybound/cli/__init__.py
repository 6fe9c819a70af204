"""The shell's door: `polybound COMMAND`. Thin; everything it does can be done from Python."""

from polybound.cli.app import main

__all__ = ["main"]
