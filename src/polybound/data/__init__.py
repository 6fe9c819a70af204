"""Data sets in memory: found on disk or downloaded, checked, and scaled to [-1, 1]."""

from polybound.data.catalogue import digest_of as digest_of
from polybound.data.catalogue import find_source as find_source
from polybound.data.catalogue import load as load
from polybound.data.catalogue import load_digits as load_digits
from polybound.data.catalogue import missing as missing
from polybound.data.catalogue import names as names
from polybound.data.catalogue import register as register
from polybound.data.dataset import Dataset as Dataset
from polybound.data.dataset import Identity as Identity
from polybound.data.dataset import carve_indices as carve_indices
from polybound.data.files import DataFile as DataFile
from polybound.data.files import Directories as Directories
from polybound.data.files import MissingDataError as MissingDataError
from polybound.data.folder import read_image as read_image
from polybound.data.sources import Source as Source
