"""Data sets in memory: found on disk or downloaded, checked, and scaled to [-1, 1]."""

from polybound.data.catalogue import find_source, names, register
from polybound.data.dataset import Dataset, Identity, Samples, carve_indices
from polybound.data.files import DataFile, Directories, MissingDataError, cache_folder
from polybound.data.loading import digest_of, load, load_digits, missing
from polybound.data.sources import Source

__all__ = [
    "DataFile",
    "Dataset",
    "Directories",
    "Identity",
    "MissingDataError",
    "Samples",
    "Source",
    "cache_folder",
    "carve_indices",
    "digest_of",
    "find_source",
    "load",
    "load_digits",
    "missing",
    "names",
    "register",
]
