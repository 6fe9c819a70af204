"""Attacks: each takes the domain of the data and the protocol that it clips by."""

from polybound.attacks.adapters import AutoAttack, Foolbox
from polybound.attacks.apgd import APGD, APGDT
from polybound.attacks.base import Attack
from polybound.attacks.blackbox import RandomSearch, Square
from polybound.attacks.denoise import Defence, Defended, GaussianDenoiser, MedianDenoiser
from polybound.attacks.fgsm import FGSM
from polybound.attacks.guided import GuidedDenoiser
from polybound.attacks.pgd import PGD
from polybound.attacks.protocol import PROTOCOLS, PUBLISHED_NOTE, Protocol, clip_range, protocols
from polybound.attacks.registry import PAPER_ATTACKS, attack_names, parse_attack, parse_attacks
from polybound.attacks.tpgd import TPGD

__all__ = [
    "APGD",
    "APGDT",
    "FGSM",
    "PAPER_ATTACKS",
    "PGD",
    "PROTOCOLS",
    "PUBLISHED_NOTE",
    "TPGD",
    "Attack",
    "AutoAttack",
    "Defence",
    "Defended",
    "Foolbox",
    "GaussianDenoiser",
    "GuidedDenoiser",
    "MedianDenoiser",
    "Protocol",
    "RandomSearch",
    "Square",
    "attack_names",
    "clip_range",
    "parse_attack",
    "parse_attacks",
    "protocols",
]
