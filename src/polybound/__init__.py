"""polybound trains, bounds, attacks and certifies polynomial networks.

The names below are loaded when first used, so that `import polybound` costs milliseconds; most of them need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybound._lazy import lazy

if TYPE_CHECKING:
    from polybound import attacks as attacks
    from polybound import certificates as certificates
    from polybound import constraints as constraints
    from polybound import data as data
    from polybound import defences as defences
    from polybound import deploy as deploy
    from polybound import estimator as estimator
    from polybound import evaluation as evaluation
    from polybound import experiments as experiments
    from polybound import models as models
    from polybound import report as report
    from polybound import runs as runs
    from polybound import theory as theory
    from polybound import training as training
    from polybound._version import __version__ as __version__
    from polybound.attacks import APGD as APGD
    from polybound.attacks import APGDT as APGDT
    from polybound.attacks import FGSM as FGSM
    from polybound.attacks import PGD as PGD
    from polybound.attacks import TPGD as TPGD
    from polybound.attacks import Attack as Attack
    from polybound.attacks import parse_attack as parse_attack
    from polybound.certificates import Certificates as Certificates
    from polybound.certificates import OutputBounds as OutputBounds
    from polybound.certificates import Radius as Radius
    from polybound.certificates import certified_accuracy as certified_accuracy
    from polybound.certificates import certified_radius as certified_radius
    from polybound.certificates import certify as certify
    from polybound.certificates import output_bounds as output_bounds
    from polybound.constraints import Projection as Projection
    from polybound.constraints import project_l1_rows as project_l1_rows
    from polybound.constraints import project_linf_operator as project_linf_operator
    from polybound.constraints import project_product as project_product
    from polybound.constraints import project_spectral as project_spectral
    from polybound.constraints import project_spectral_conv as project_spectral_conv
    from polybound.errors import FileFormatError as FileFormatError
    from polybound.errors import NonFiniteError as NonFiniteError
    from polybound.errors import PolyboundError as PolyboundError
    from polybound.estimator import PolynomialClassifier as PolynomialClassifier
    from polybound.estimator import PolynomialRegressor as PolynomialRegressor
    from polybound.evaluation import Evaluation as Evaluation
    from polybound.evaluation import Score as Score
    from polybound.evaluation import Table as Table
    from polybound.evaluation import evaluate as evaluate
    from polybound.models import CCP as CCP
    from polybound.models import NCP as NCP
    from polybound.models import BoxNet as BoxNet
    from polybound.models import ConvCCP as ConvCCP
    from polybound.models import Factors as Factors
    from polybound.models import Graph as Graph
    from polybound.models import PolyNet as PolyNet
    from polybound.models import PolynomialNetwork as PolynomialNetwork
    from polybound.models import example as example
    from polybound.models import load as load
    from polybound.models import paper_model as paper_model
    from polybound.models import polynomial as polynomial
    from polybound.models import stack as stack
    from polybound.runs import DataSpec as DataSpec
    from polybound.runs import ModelSpec as ModelSpec
    from polybound.runs import Run as Run
    from polybound.runs import Spec as Spec
    from polybound.runs import evaluate_run as evaluate_run
    from polybound.runs import evaluate_runs as evaluate_runs
    from polybound.runs import train_runs as train_runs
    from polybound.theory import Bound as Bound
    from polybound.theory import bounds as bounds
    from polybound.theory import gamma as gamma
    from polybound.theory import generalisation as generalisation
    from polybound.theory import lipschitz as lipschitz
    from polybound.theory import rademacher as rademacher
    from polybound.theory import theta as theta
    from polybound.training import History as History
    from polybound.training import Recipe as Recipe
    from polybound.training import accuracy as accuracy
    from polybound.training import fit as fit

__getattr__, __dir__ = lazy(__name__)
