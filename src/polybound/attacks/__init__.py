"""Attacks: each takes the domain of the data and the protocol that it clips by.

`Attack` is the base to extend; `register_attack` makes a class known by its name.
"""

from polybound.attacks.ball import (
    PROTOCOLS,
    PUBLISHED_NOTE,
    Ball,
    Protocol,
    ball_around,
    check_protocol,
    clip_range,
    protocols,
)
from polybound.attacks.base import Attack, adversarial_batch, first_success, pgd_steps
from polybound.attacks.blackbox import RandomSearch, Square
from polybound.attacks.classifier import Classifier, is_correct
from polybound.attacks.gradient import APGD, APGDT, FGSM, PGD, TPGD
from polybound.attacks.libraries import AutoAttack, Foolbox
from polybound.attacks.losses import DLR, KL, CrossEntropy, Loss, TargetedDLR, cross_entropy, divergence
from polybound.attacks.names import PAPER_ATTACKS, attack_names, parse_attack, parse_attacks, register_attack
from polybound.attacks.random import GROUP, RandomNumbers
from polybound.registry import read_setting, setting_text

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
    "clip_range",
    "cross_entropy",
    "divergence",
    "first_success",
    "is_correct",
    "parse_attack",
    "parse_attacks",
    "pgd_steps",
    "protocols",
    "read_setting",
    "register_attack",
    "setting_text",
]
