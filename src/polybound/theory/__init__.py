"""Norms, Rademacher and Lipschitz bounds; each result carries its formula and its assumptions.

rounding     float64 rounded outwards; networks scaled by powers of two, so that nothing over- or underflows
norms        operator norms of maps; theta, gamma and the Gram norm of a network's factors
bound        a bound with its formula, its assumptions and how it was computed
lipschitz    the paper's, row-wise and local bounds of the Lipschitz constant
rademacher   bounds of the Rademacher complexity and of the error on unseen data
table        all of them for one model
"""

from polybound.theory.bound import Bound as Bound
from polybound.theory.bound import BoundTable as BoundTable
from polybound.theory.lipschitz import lipschitz as lipschitz
from polybound.theory.lipschitz import sensitivity as sensitivity
from polybound.theory.norms import DENSE_LIMIT as DENSE_LIMIT
from polybound.theory.norms import factor_norms as factor_norms
from polybound.theory.norms import gamma as gamma
from polybound.theory.norms import gram_norm as gram_norm
from polybound.theory.norms import lifted_norm as lifted_norm
from polybound.theory.norms import operator_norm as operator_norm
from polybound.theory.norms import theta as theta
from polybound.theory.norms import torus_norm as torus_norm
from polybound.theory.norms import torus_sizes as torus_sizes
from polybound.theory.rademacher import Generalisation as Generalisation
from polybound.theory.rademacher import generalisation as generalisation
from polybound.theory.rademacher import rademacher as rademacher
from polybound.theory.rounding import ULP as ULP
from polybound.theory.rounding import mantissa_product as mantissa_product
from polybound.theory.table import bounds as bounds
