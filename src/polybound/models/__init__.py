"""Polynomial networks: affine maps multiplied together, and nothing else.

affine         the maps: dense, convolution, pooling, chain; apply, transpose, take absolute values, write out
windows        convolutions written out window by window
factors        every network as a chain of products of affine maps; groups of weights for projections
base           what all models share: stacks, seeds, shapes
ccp, ncp, conv the three models; PN-Conv's forward pass
files, zoo     models on disk, and by name
passes         gradients by hand, several times as fast as autograd
graphs         any network as a graph: nodes, algebras, tracing of modules
deep           modules of a user's own, PolyNet and its parts, graphs as networks
products       Pi-nets, a network for tables, and BoxNet, made for certificates
"""

from polybound.models.affine import Affine as Affine
from polybound.models.affine import Chain as Chain
from polybound.models.affine import Conv as Conv
from polybound.models.affine import Dense as Dense
from polybound.models.affine import Identity as Identity
from polybound.models.affine import Pool as Pool
from polybound.models.base import ModelOptions as ModelOptions
from polybound.models.base import PolynomialNetwork as PolynomialNetwork
from polybound.models.base import factors_of as factors_of
from polybound.models.base import polynomial as polynomial
from polybound.models.base import stack as stack
from polybound.models.ccp import CCP as CCP
from polybound.models.conv import ConvCCP as ConvCCP
from polybound.models.deep import DeepNetwork as DeepNetwork
from polybound.models.deep import GraphNetwork as GraphNetwork
from polybound.models.deep import Norm as Norm
from polybound.models.deep import PolyNet as PolyNet
from polybound.models.deep import ProductBlock as ProductBlock
from polybound.models.deep import Quadratic as Quadratic
from polybound.models.deep import TracedNetwork as TracedNetwork
from polybound.models.factors import Factors as Factors
from polybound.models.factors import WeightGroup as WeightGroup
from polybound.models.factors import lift as lift
from polybound.models.files import load as load
from polybound.models.files import read_metadata as read_metadata
from polybound.models.files import save as save
from polybound.models.files import weights_digest as weights_digest
from polybound.models.graphs.algebras import Bounded as Bounded
from polybound.models.graphs.algebras import Fractions as Fractions
from polybound.models.graphs.algebras import Intervals as Intervals
from polybound.models.graphs.algebras import Numbers as Numbers
from polybound.models.graphs.files import graph_from_spec as graph_from_spec
from polybound.models.graphs.files import graph_spec as graph_spec
from polybound.models.graphs.graph import Algebra as Algebra
from polybound.models.graphs.graph import Applied as Applied
from polybound.models.graphs.graph import Builder as Builder
from polybound.models.graphs.graph import Graph as Graph
from polybound.models.graphs.graph import Input as Input
from polybound.models.graphs.graph import Node as Node
from polybound.models.graphs.graph import Product as Product
from polybound.models.graphs.graph import Sum as Sum
from polybound.models.graphs.graph import graph_of as graph_of
from polybound.models.graphs.maps import AveragePool as AveragePool
from polybound.models.graphs.maps import Collect as Collect
from polybound.models.graphs.maps import Convolution as Convolution
from polybound.models.graphs.maps import Repeated as Repeated
from polybound.models.graphs.maps import Scale as Scale
from polybound.models.graphs.maps import Select as Select
from polybound.models.graphs.operations import Tracer as Tracer
from polybound.models.graphs.recognise import as_model as as_model
from polybound.models.graphs.trace import trace as trace
from polybound.models.graphs.traced import Traced as Traced
from polybound.models.ncp import NCP as NCP
from polybound.models.passes.base import JacobianGradients as JacobianGradients
from polybound.models.passes.base import ManualGradients as ManualGradients
from polybound.models.passes.dense import closed_form as closed_form
from polybound.models.passes.dense import has_closed_form as has_closed_form
from polybound.models.products import BoxNet as BoxNet
from polybound.models.products import PiNet as PiNet
from polybound.models.products import PolyMLP as PolyMLP
from polybound.models.windows import SAVING as SAVING
from polybound.models.windows import Windowed as Windowed
from polybound.models.windows import Windows as Windows
from polybound.models.windows import gathered as gathered
from polybound.models.windows import parts as parts
from polybound.models.windows import scattered as scattered
from polybound.models.windows import slots_in_pooled as slots_in_pooled
from polybound.models.windows import windowed as windowed
from polybound.models.windows import windows_of as windows_of
from polybound.models.zoo import EXAMPLES as EXAMPLES
from polybound.models.zoo import PAPER_MODELS as PAPER_MODELS
from polybound.models.zoo import ModelBuilder as ModelBuilder
from polybound.models.zoo import example as example
from polybound.models.zoo import example_origin as example_origin
from polybound.models.zoo import model_names as model_names
from polybound.models.zoo import model_parameters as model_parameters
from polybound.models.zoo import paper_model as paper_model
from polybound.models.zoo import paper_rank as paper_rank
from polybound.models.zoo import register_model as register_model
