"""Memories: the gradient that a worker has not delivered yet.

Each is a `sockets.Memory`. States are NamedTuples of float32 trees shaped like
the parameters; `pending()` is the undelivered gradient. A state whose pending
is a sum of gradients also has `with_pending(tree)`, which replaces it. Law 1
(nothing lost), elementwise on each worker:

  pending_old + inflow = delivered + pending_new

where the inflow is the gradient (residual, variance) or the velocity (momentum
correction). An estimate does not accumulate: delivered + pending_new is the
gradient less the estimate before the step, whatever was pending.
"""

from gradsparse.memories.basic import NoMemoryState
from gradsparse.memories.basic import ResidualState
from gradsparse.memories.basic import no_memory
from gradsparse.memories.basic import residual
from gradsparse.memories.estimate import EstimateState
from gradsparse.memories.estimate import estimate
from gradsparse.memories.momentum import MomentumCorrectionState
from gradsparse.memories.momentum import momentum_correction
from gradsparse.memories.variance import VarianceState
from gradsparse.memories.variance import variance

__all__ = (
  'EstimateState',
  'MomentumCorrectionState',
  'NoMemoryState',
  'ResidualState',
  'VarianceState',
  'estimate',
  'momentum_correction',
  'no_memory',
  'residual',
  'variance',
)
