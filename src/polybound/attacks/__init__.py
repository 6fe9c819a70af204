"""Attacks: each takes the domain of the data and the protocol that it clips by.

`Attack` is the base to extend; `register_attack` makes a class known by its name.
"""

from polybound.attacks.ball import PROTOCOLS as PROTOCOLS
from polybound.attacks.ball import PUBLISHED_NOTE as PUBLISHED_NOTE
from polybound.attacks.ball import Ball as Ball
from polybound.attacks.ball import Protocol as Protocol
from polybound.attacks.ball import check_protocol as check_protocol
from polybound.attacks.ball import protocols as protocols
from polybound.attacks.base import GROUP as GROUP
from polybound.attacks.base import Attack as Attack
from polybound.attacks.base import RandomNumbers as RandomNumbers
from polybound.attacks.base import adversarial_batch as adversarial_batch
from polybound.attacks.base import pgd_steps as pgd_steps
from polybound.attacks.blackbox import RandomSearch as RandomSearch
from polybound.attacks.blackbox import Square as Square
from polybound.attacks.classifier import Classifier as Classifier
from polybound.attacks.classifier import is_correct as is_correct
from polybound.attacks.gradient import APGD as APGD
from polybound.attacks.gradient import APGDT as APGDT
from polybound.attacks.gradient import FGSM as FGSM
from polybound.attacks.gradient import PGD as PGD
from polybound.attacks.gradient import TPGD as TPGD
from polybound.attacks.libraries import AutoAttack as AutoAttack
from polybound.attacks.libraries import Foolbox as Foolbox
from polybound.attacks.losses import cross_entropy as cross_entropy
from polybound.attacks.names import PAPER_ATTACKS as PAPER_ATTACKS
from polybound.attacks.names import parse_attack as parse_attack
from polybound.attacks.names import parse_attacks as parse_attacks
from polybound.attacks.names import register_attack as register_attack
