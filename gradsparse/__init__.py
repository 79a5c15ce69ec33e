"""gradsparse: gradient compression for data-parallel training in JAX.

Every scheme is one line in an `optax.chain`, with bytes that really shrink on
the wire and gradients that never get lost:

  optax.chain(gs.dgc(0.001, axis_name='workers'), optax.sgd(0.1))
"""

from gradsparse import codecs
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse import recipes
from gradsparse import schedules
from gradsparse import wire
from gradsparse import workers
from gradsparse.accounting import Plan
from gradsparse.accounting import plan
from gradsparse.auditing import Audit
from gradsparse.auditing import audit
from gradsparse.clipping import clip_local_norm
from gradsparse.compressed_mean import CompressedMean
from gradsparse.compressed_mean import compressed_mean
from gradsparse.inspection import metrics
from gradsparse.inspection import pending
from gradsparse.local_gradient import LocalGradientState
from gradsparse.local_gradient import local_gradient
from gradsparse.local_gradient import periodic_average
from gradsparse.moments import batch_value_and_grad_moments
from gradsparse.moments import dense_with_moment
from gradsparse.moments import moments_from_microbatches
from gradsparse.moments import value_and_grad_moments
from gradsparse.qsvrg import qsvrg
from gradsparse.recipes import ada_comp
from gradsparse.recipes import dense
from gradsparse.recipes import dgc
from gradsparse.recipes import dryden
from gradsparse.recipes import gradient_dropping
from gradsparse.recipes import gtopk
from gradsparse.recipes import one_bit_sgd
from gradsparse.recipes import power_sgd
from gradsparse.recipes import qsgd
from gradsparse.recipes import qsgd_descent
from gradsparse.recipes import random_k
from gradsparse.recipes import sign_majority
from gradsparse.recipes import strom
from gradsparse.recipes import terngrad
from gradsparse.recipes import variance_based
from gradsparse.recipes import variance_strom
from gradsparse.state import CompressedMeanState
from gradsparse.switching import switch

__version__ = '0.1.0'

__all__ = (
  'Audit',
  'CompressedMean',
  'CompressedMeanState',
  'LocalGradientState',
  'Plan',
  'ada_comp',
  'audit',
  'batch_value_and_grad_moments',
  'clip_local_norm',
  'codecs',
  'compressed_mean',
  'compressors',
  'dense',
  'dense_with_moment',
  'dgc',
  'dryden',
  'exchanges',
  'gradient_dropping',
  'gtopk',
  'local_gradient',
  'memories',
  'metrics',
  'moments_from_microbatches',
  'one_bit_sgd',
  'pending',
  'periodic_average',
  'plan',
  'power_sgd',
  'qsgd',
  'qsgd_descent',
  'qsvrg',
  'random_k',
  'recipes',
  'schedules',
  'sign_majority',
  'strom',
  'switch',
  'terngrad',
  'value_and_grad_moments',
  'variance_based',
  'variance_strom',
  'wire',
  'workers',
)
