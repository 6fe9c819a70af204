"""Certificates: proofs of what a polynomial network does over all inputs of a box."""

from polybound.certificates.bounds.differentiable import MarginBounds as MarginBounds
from polybound.certificates.bounds.differentiable import box_of as box_of
from polybound.certificates.bounds.differentiable import margin_bounds as margin_bounds
from polybound.certificates.certify import Certificates as Certificates
from polybound.certificates.certify import Radius as Radius
from polybound.certificates.certify import bisected as bisected
from polybound.certificates.certify import certified_accuracy as certified_accuracy
from polybound.certificates.certify import certified_radius as certified_radius
from polybound.certificates.certify import certify as certify
from polybound.certificates.graphs import PreparedGraph as PreparedGraph
from polybound.certificates.graphs import prepared as prepared
from polybound.certificates.network import PreparedNetwork as PreparedNetwork
from polybound.certificates.outputs import Decision as Decision
from polybound.certificates.outputs import OutputBounds as OutputBounds
from polybound.certificates.outputs import Polytope as Polytope
from polybound.certificates.outputs import decide as decide
from polybound.certificates.outputs import output_bounds as output_bounds
from polybound.certificates.proofs.files import check_claims as check_claims
from polybound.certificates.proofs.files import check_file as check_file
from polybound.certificates.proofs.files import read_claims as read_claims
from polybound.certificates.proofs.files import save_certificates as save_certificates
