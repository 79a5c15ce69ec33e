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
from gradsparse.accounting import Audit
from gradsparse.accounting import Plan
from gradsparse.accounting import audit
from gradsparse.accounting import plan
from gradsparse.clipping import clip_local_norm
from gradsparse.compressed_mean import CompressedMean
from gradsparse.compressed_mean import compressed_mean
from gradsparse.inspection import metrics
from gradsparse.inspection import pending
from gradsparse.recipes import dense
from gradsparse.recipes import dgc
from gradsparse.recipes import gradient_dropping
from gradsparse.recipes import gtopk
from gradsparse.recipes import qsgd
from gradsparse.state import CompressedMeanState

__version__ = '0.1.0'

__all__ = (
  'Audit',
  'CompressedMean',
  'CompressedMeanState',
  'Plan',
  'audit',
  'clip_local_norm',
  'codecs',
  'compressed_mean',
  'compressors',
  'dense',
  'dgc',
  'exchanges',
  'gradient_dropping',
  'gtopk',
  'memories',
  'metrics',
  'pending',
  'plan',
  'qsgd',
  'recipes',
  'schedules',
  'wire',
  'workers',
)
