"""Polynomial networks: affine maps multiplied together, and nothing else.

affine         the maps: dense, convolution, pooling, chain; apply, transpose, take absolute values, write out
windows        convolutions written out window by window
factors        every network as a chain of products of affine maps; groups of weights for projections
base           what all models share: stacks, seeds, shapes
ccp, ncp, conv the three models; collapse: PN-Conv's forward pass
files, zoo     models on disk, and by name
passes         gradients by hand, several times as fast as autograd
graphs         any network as a graph: nodes, algebras, tracing of modules
deep           modules of a user's own, PolyNet and its parts, graphs as networks
"""

from polybound.models.affine import Affine, Chain, Conv, Dense, Identity, Pool
from polybound.models.base import ModelOptions, PolynomialNetwork, factors_of, polynomial, stack
from polybound.models.ccp import CCP
from polybound.models.conv import ConvCCP
from polybound.models.deep import DeepNetwork, GraphNetwork, Norm, PolyNet, ProductBlock, Quadratic, TracedNetwork
from polybound.models.factors import Factors, WeightGroup, lift
from polybound.models.files import load, read_metadata, save, weights_digest
from polybound.models.graphs.algebras import Bounded, Fractions, Intervals, Jet, Jets, Numbers
from polybound.models.graphs.files import graph_from_spec, graph_spec
from polybound.models.graphs.graph import Algebra, Applied, Builder, Graph, Input, Node, Product, Sum, graph_of
from polybound.models.graphs.maps import AveragePool, Collect, Convolution, Repeated, Scale, Select
from polybound.models.graphs.trace import trace
from polybound.models.ncp import NCP
from polybound.models.passes.base import JacobianGradients, ManualGradients
from polybound.models.passes.dense import closed_form, has_closed_form
from polybound.models.windows import (
    SAVING,
    Windowed,
    Windows,
    gathered,
    parts,
    scattered,
    slots_in_pooled,
    windowed,
    windows_of,
)
from polybound.models.zoo import (
    EXAMPLES,
    PAPER_MODELS,
    ModelBuilder,
    example,
    example_origin,
    model_names,
    paper_model,
    paper_rank,
    register_model,
)

__all__ = [
    "CCP",
    "EXAMPLES",
    "NCP",
    "PAPER_MODELS",
    "SAVING",
    "Affine",
    "Algebra",
    "Applied",
    "AveragePool",
    "Bounded",
    "Builder",
    "Chain",
    "Collect",
    "Conv",
    "ConvCCP",
    "Convolution",
    "DeepNetwork",
    "Dense",
    "Factors",
    "Fractions",
    "Graph",
    "GraphNetwork",
    "Identity",
    "Input",
    "Intervals",
    "JacobianGradients",
    "Jet",
    "Jets",
    "ManualGradients",
    "ModelBuilder",
    "ModelOptions",
    "Node",
    "Norm",
    "Numbers",
    "PolyNet",
    "PolynomialNetwork",
    "Pool",
    "Product",
    "ProductBlock",
    "Quadratic",
    "Repeated",
    "Scale",
    "Select",
    "Sum",
    "TracedNetwork",
    "WeightGroup",
    "Windowed",
    "Windows",
    "closed_form",
    "example",
    "example_origin",
    "factors_of",
    "gathered",
    "graph_from_spec",
    "graph_of",
    "graph_spec",
    "has_closed_form",
    "lift",
    "load",
    "model_names",
    "paper_model",
    "paper_rank",
    "parts",
    "polynomial",
    "read_metadata",
    "register_model",
    "save",
    "scattered",
    "slots_in_pooled",
    "stack",
    "trace",
    "weights_digest",
    "windowed",
    "windows_of",
]
