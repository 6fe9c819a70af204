"""Runs on disk: atomic, content-addressed, resumable."""

from polybound.runs.store import Run, address, checkpoint_path

__all__ = ["Run", "address", "checkpoint_path"]
