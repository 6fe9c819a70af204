"""Projections as pure functions, and the object that applies them to a model.

l1          rows onto l1 balls: the l_inf operator norm
spectral    matrices and convolution kernels onto balls of the spectral norm
product     factors onto level sets of theta, the norm of their face-splitting product
projection  `Projection`, which keeps a model inside its bounds
"""

from polybound.constraints.l1 import project_l1_rows as project_l1_rows
from polybound.constraints.l1 import project_linf_operator as project_linf_operator
from polybound.constraints.product import project_product as project_product
from polybound.constraints.projection import Projection as Projection
from polybound.constraints.spectral import project_spectral as project_spectral
from polybound.constraints.spectral import project_spectral_conv as project_spectral_conv
