"""Methods of training, one a file; `register_method` adds one of your own."""

from polybound.training.methods.base import (
    METHODS,
    AfterStep,
    Method,
    Moment,
    Plain,
    cross_entropies,
    join_methods,
    register_method,
)
from polybound.training.methods.certified import Certified, CertifiedProjected
from polybound.training.methods.jacobian import JacobianPenalty, jacobian_penalty
from polybound.training.methods.projection import ProjectAfterStep, Projected, projection_kind
from polybound.training.methods.weight_decay import WeightDecay

__all__ = [
    "METHODS",
    "AfterStep",
    "Certified",
    "CertifiedProjected",
    "JacobianPenalty",
    "Method",
    "Moment",
    "Plain",
    "ProjectAfterStep",
    "Projected",
    "WeightDecay",
    "cross_entropies",
    "jacobian_penalty",
    "join_methods",
    "projection_kind",
    "register_method",
]
