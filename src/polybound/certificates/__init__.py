"""Certificates: proofs of what a polynomial network does over all inputs of a box."""

from polybound.certificates.certify import certified_accuracy, certify
from polybound.certificates.decide import Decision, Polytope, decide
from polybound.certificates.margins import MarginBounds, box_of, margin_bounds
from polybound.certificates.network import Network
from polybound.certificates.outputs import ENDS, OutputBounds, output_bounds
from polybound.certificates.proofs.files import check_claims, check_file, read_claims, save_certificates
from polybound.certificates.radius import Radius, bisected, certified_radius
from polybound.certificates.result import Certificates

__all__ = [
    "ENDS",
    "Certificates",
    "Decision",
    "MarginBounds",
    "Network",
    "OutputBounds",
    "Polytope",
    "Radius",
    "bisected",
    "box_of",
    "certified_accuracy",
    "certified_radius",
    "certify",
    "check_claims",
    "check_file",
    "decide",
    "margin_bounds",
    "output_bounds",
    "read_claims",
    "save_certificates",
]
