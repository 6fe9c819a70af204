"""Defences: denoisers in front of any classifier.

`Defence` is the base to extend; `register_defence` makes a class known by its name.
"""

from polybound.defences.denoisers import Defence as Defence
from polybound.defences.denoisers import Defended as Defended
from polybound.defences.denoisers import GaussianDenoiser as GaussianDenoiser
from polybound.defences.denoisers import GuidedDenoiser as GuidedDenoiser
from polybound.defences.denoisers import MedianDenoiser as MedianDenoiser
from polybound.defences.denoisers import canonical_defence as canonical_defence
from polybound.defences.denoisers import find_defence as find_defence
from polybound.defences.denoisers import parse_defence as parse_defence
from polybound.defences.denoisers import register_defence as register_defence
