"""Attacks: each takes the domain of the data and the protocol that it clips by.

`Attack` is the base to extend; `register_attack` makes a class known by its name.
"""

from polybound.attacks.adapters import AutoAttack, Foolbox
from polybound.attacks.apgd import APGD, APGDT
from polybound.attacks.ball import Ball, ball_around
from polybound.attacks.base import Attack, climb, first_success
from polybound.attacks.blackbox import RandomSearch, Square
from polybound.attacks.classifier import Classifier, right
from polybound.attacks.fgsm import FGSM
from polybound.attacks.losses import DLR, KL, CrossEntropy, Loss, TargetedDLR, cross_entropy, divergence
from polybound.attacks.pgd import PGD
from polybound.attacks.protocol import PROTOCOLS, PUBLISHED_NOTE, Protocol, check_protocol, clip_range, protocols
from polybound.attacks.random_numbers import GROUP, RandomNumbers
from polybound.attacks.registry import PAPER_ATTACKS, attack_names, parse_attack, parse_attacks, register_attack
from polybound.attacks.settings import read_setting, setting_text
from polybound.attacks.tpgd import TPGD
from polybound.attacks.training_batch import adversarial_batch

__all__ = [
    "APGD",
    "APGDT",
    "DLR",
    "FGSM",
    "GROUP",
    "KL",
    "PAPER_ATTACKS",
    "PGD",
    "PROTOCOLS",
    "PUBLISHED_NOTE",
    "TPGD",
    "Attack",
    "AutoAttack",
    "Ball",
    "Classifier",
    "CrossEntropy",
    "Foolbox",
    "Loss",
    "Protocol",
    "RandomNumbers",
    "RandomSearch",
    "Square",
    "TargetedDLR",
    "adversarial_batch",
    "attack_names",
    "ball_around",
    "check_protocol",
    "climb",
    "clip_range",
    "cross_entropy",
    "divergence",
    "first_success",
    "parse_attack",
    "parse_attacks",
    "protocols",
    "read_setting",
    "register_attack",
    "right",
    "setting_text",
]
