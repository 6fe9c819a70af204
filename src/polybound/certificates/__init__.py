"""Certificates: proofs of what a polynomial network does over all inputs of a box."""

from polybound.certificates.bounds.differentiable import MarginBounds, box_of, margin_bounds
from polybound.certificates.certify import Certificates, Radius, bisected, certified_accuracy, certified_radius, certify
from polybound.certificates.graphs import PreparedGraph, prepared
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.outputs import ENDS, Decision, OutputBounds, Polytope, decide, output_bounds
from polybound.certificates.proofs.files import check_claims, check_file, read_claims, save_certificates

__all__ = [
    "ENDS",
    "Certificates",
    "Decision",
    "MarginBounds",
    "OutputBounds",
    "Polytope",
    "PreparedGraph",
    "PreparedNetwork",
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
    "prepared",
    "read_claims",
    "save_certificates",
]
