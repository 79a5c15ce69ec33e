"""gradsparse: gradient compression for data-parallel training in JAX.

Every scheme is one line in an `optax.chain`. The bytes on the wire shrink, and
no gradient is lost:

  optax.chain(gs.dgc(0.001, axis_name='workers'), optax.sgd(0.1))
"""

from gradsparse import as_printed  # noqa: F401 (it adds to the tables)
from gradsparse import extend
from gradsparse import recipes
from gradsparse import schedules
from gradsparse import testing
from gradsparse import workers
from gradsparse.advise import Advice
from gradsparse.advise import advise
from gradsparse.moments.second_moments import batch_value_and_grad_moments
from gradsparse.moments.second_moments import dense_with_moment
from gradsparse.moments.second_moments import moments_from_microbatches
from gradsparse.moments.second_moments import value_and_grad_moments
from gradsparse.recipes import ada_comp
from gradsparse.recipes import dense
from gradsparse.recipes import dgc
from gradsparse.recipes import dryden
from gradsparse.recipes import ef21
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
from gradsparse.state.inspection import metrics
from gradsparse.state.inspection import pending
from gradsparse.state.scheme import AccumulateState
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.state.scheme import DelayedState
from gradsparse.state.scheme import OneBitAdamState
from gradsparse.state.scheme import OuterState
from gradsparse.state.switching import switch
from gradsparse.traffic.audit import Audit
from gradsparse.traffic.audit import audit
from gradsparse.traffic.plan import Plan
from gradsparse.traffic.plan import plan
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.wrappers.accumulate import accumulate
from gradsparse.wrappers.delayed import delayed
from gradsparse.wrappers.diloco import diloco
from gradsparse.wrappers.diloco import sparse_loco
from gradsparse.wrappers.local_gradient import LocalGradientState
from gradsparse.wrappers.local_gradient import clip_local_norm
from gradsparse.wrappers.local_gradient import local_gradient
from gradsparse.wrappers.local_gradient import periodic_average
from gradsparse.wrappers.one_bit_adam import one_bit_adam
from gradsparse.wrappers.outer import Outer
from gradsparse.wrappers.outer import outer
from gradsparse.wrappers.qsvrg import qsvrg
from gradsparse.wrappers.sharded import sharded
from gradsparse.wrappers.skip_rejected import SkipRejectedState
from gradsparse.wrappers.skip_rejected import skip_rejected

__version__ = '0.2.0'

__all__ = (
  'AccumulateState',
  'Advice',
  'Audit',
  'CompressedMean',
  'CompressedMeanState',
  'DelayedState',
  'LocalGradientState',
  'OneBitAdamState',
  'Outer',
  'OuterState',
  'Plan',
  'SkipRejectedState',
  'accumulate',
  'ada_comp',
  'advise',
  'audit',
  'batch_value_and_grad_moments',
  'clip_local_norm',
  'compressed_mean',
  'delayed',
  'dense',
  'dense_with_moment',
  'dgc',
  'diloco',
  'dryden',
  'ef21',
  'extend',
  'gradient_dropping',
  'gtopk',
  'local_gradient',
  'metrics',
  'moments_from_microbatches',
  'one_bit_adam',
  'one_bit_sgd',
  'outer',
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
  'sharded',
  'sign_majority',
  'skip_rejected',
  'sparse_loco',
  'strom',
  'switch',
  'terngrad',
  'testing',
  'value_and_grad_moments',
  'variance_based',
  'variance_strom',
  'workers',
)


def __dir__() -> list[str]:
  """Lists the public names only, without the modules that define them."""
  return sorted(__all__)
