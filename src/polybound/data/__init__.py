"""Data sets in memory: found on disk or downloaded, checked, and scaled to [-1, 1]."""

from polybound.data.dataset import Dataset
from polybound.data.digits import load_digits
from polybound.data.loading import Splits, load, load_splits, names

__all__ = ["Dataset", "Splits", "load", "load_digits", "load_splits", "names"]
