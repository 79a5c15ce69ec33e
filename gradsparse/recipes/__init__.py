"""The schemes by name: each one line in an `optax.chain`.

Every recipe returns a transformation whose update is the mean over workers
with the sign of the gradient; descent, and (but for DGC) momentum, are the
business of the optimizer that follows it. Arguments common to all:

  axis_name: mapped axis of the workers (no default: forgetting it would train
    without averaging); None is one worker, without communication.
  min_size: leaves with fewer elements stay dense; None is the scheme's own
    rule; 0 compresses every leaf that the scheme accepts.
  dense_paths: leaves whose path matches this regular expression, or for which
    this function of the path returns True, stay dense.
"""

from __future__ import annotations

from collections.abc import Callable

from gradsparse.compressed_mean import CompressedMean
from gradsparse.recipes.quantisers import dense
from gradsparse.recipes.quantisers import one_bit_sgd
from gradsparse.recipes.quantisers import power_sgd
from gradsparse.recipes.quantisers import qsgd
from gradsparse.recipes.quantisers import qsgd_descent
from gradsparse.recipes.quantisers import sign_majority
from gradsparse.recipes.quantisers import terngrad
from gradsparse.recipes.sparsifiers import dgc
from gradsparse.recipes.sparsifiers import dryden
from gradsparse.recipes.sparsifiers import gradient_dropping
from gradsparse.recipes.sparsifiers import gtopk
from gradsparse.recipes.sparsifiers import random_k
from gradsparse.recipes.thresholds import ada_comp
from gradsparse.recipes.thresholds import strom
from gradsparse.recipes.thresholds import variance_based
from gradsparse.recipes.thresholds import variance_strom

RECIPES: dict[str, Callable[..., CompressedMean]] = {
  'dense': dense,
  'gradient_dropping': gradient_dropping,
  'dgc': dgc,
  'gtopk': gtopk,
  'strom': strom,
  'variance_based': variance_based,
  'variance_strom': variance_strom,
  'qsgd': qsgd,
  'qsgd_descent': qsgd_descent,
  'terngrad': terngrad,
  'one_bit_sgd': one_bit_sgd,
  'sign_majority': sign_majority,
  'dryden': dryden,
  'ada_comp': ada_comp,
  'random_k': random_k,
  'power_sgd': power_sgd,
}

__all__ = ('RECIPES', *RECIPES)
