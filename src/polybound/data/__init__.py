"""Data sets in memory."""

from polybound.data.dataset import Dataset
from polybound.data.digits import load_digits

__all__ = ["Dataset", "load_digits"]
