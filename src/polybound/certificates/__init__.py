"""Certificates: proofs that no perturbation of an input changes a polynomial network's prediction."""

from polybound.certificates.certify import certified_accuracy, certify
from polybound.certificates.files import check_file, save_certificates
from polybound.certificates.network import Network
from polybound.certificates.radius import Radius, certified_radius
from polybound.certificates.result import Certificates

__all__ = [
    "Certificates",
    "Network",
    "Radius",
    "certified_accuracy",
    "certified_radius",
    "certify",
    "check_file",
    "save_certificates",
]
