"""Recipes that send what satisfies a rule: messages of variable length.

How much satisfies the rule depends on the data, so the message takes the
smallest size of a ladder that holds what every worker wants to send. Argument
common to all:

  ladder: fractions of the elements that a message can hold, ascending. The
    default reaches from 1/32768 to 1.0, which holds everything. If yours ends
    below 1.0, what exceeds its last stays in the memory and is counted
    (`overflow_elements`). Each rung is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse import arguments
from gradsparse import codecs
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.compressed_mean import CompressedMean
from gradsparse.compressed_mean import compressed_mean
from gradsparse.compressors import rule
from gradsparse.layout import DensePaths


def strom(
  threshold: float,
  *,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """Sends sign(r) tau where the residual exceeds a fixed threshold tau.

  Args:
    threshold: tau, in units of the gradient, > 0.
    ladder: see the module.
    axis_name: mapped axis of the workers, or None.
    min_size: leaves with fewer elements stay dense.
    dense_paths: leaves that stay dense.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Strom, Interspeech 2015.
  """
  return compressed_mean(
    memories.residual(),
    compressors.by_rule(
      rule.strom(threshold),
      codecs.constant(threshold),
      name='strom',
      ladder=ladder,
    ),
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def variance_based(
  alpha: float,
  *,
  decay: float = 0.999,
  values: str = 'exponent4',
  indices: str | None = None,
  rounding: str = 'keep',
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Sends what is unambiguous: r^2 > alpha v.

  v is the sum of the squares of what single examples contributed to r. The
  update takes it as `second_moment`, a tree like the gradients (see
  `gs.value_and_grad_moments`). What is not sent counts as zero for the
  optimizer that follows; weight decay belongs after the exchange.

  Args:
    alpha: of eq. 3, > 0; the paper uses 1, 1.5 and 2.
    decay: of v where nothing was sent, in (0, 1]; the paper's zeta.
    values: 'exponent4' (as printed), 'float32', 'bfloat16', or the unbiased
      roundings 'qsgd4' and 'ternary' (sections 4.2 and 4.5).
    indices: 'word28' (as printed: 28-bit indices and the 4-bit code in one
      word; the default for exponent4) or 'elias_fano' (smaller).
    rounding: 'keep' leaves what rounding did not deliver in r; 'paper' drops
      it.
    ladder: see the module.
    axis_name: mapped axis of the workers, or None.
    min_size: leaves with fewer elements stay dense.
    dense_paths: leaves that stay dense.
    seed: of random rounding.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range; from update: `second_moment` is
      missing.

  References:
    Tsuzuku et al., arXiv 1802.06058, algorithm 1 and section 4.2.
  """
  arguments.one_of('values', values, codecs.VALUES)
  if rounding == 'paper' and values != 'exponent4':
    raise ValueError(
      "rounding='paper' describes the four-bit code: it needs "
      f"values='exponent4', got {values!r}"
    )
  if indices is None:
    indices = 'word28' if values == 'exponent4' else 'elias_fano'
  return compressed_mean(
    memories.variance(decay, alpha, rounding),
    compressors.by_rule(
      rule.variance(alpha),
      codecs.codec(indices, values),
      name='variance_based',
      ladder=ladder,
    ),
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    seed=seed,
  )


def variance_strom(
  alpha: float,
  *,
  threshold: float,
  decay: float = 0.999,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """The hybrid: sign(r) tau where |r| > tau and r^2 > alpha v.

  Args:
    alpha: of the variance criterion, > 0.
    threshold: tau, in units of the gradient, > 0.
    decay: of v, in (0, 1].
    ladder: see the module.
    axis_name: mapped axis of the workers, or None.
    min_size: leaves with fewer elements stay dense.
    dense_paths: leaves that stay dense.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range; from update: `second_moment` is
      missing.

  References:
    Tsuzuku et al., arXiv 1802.06058, section 4.5.
  """
  return compressed_mean(
    memories.variance(decay),
    compressors.by_rule(
      rule.variance_strom(alpha, threshold),
      codecs.constant(threshold),
      name='variance_strom',
      ladder=ladder,
    ),
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )


def ada_comp(
  *,
  bin_size: int | None = None,
  ladder: Sequence[float] = rule.LADDER,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
) -> CompressedMean:
  """Sends, in each bin, what this step's gradient lifts to the bin's maximum.

  Args:
    bin_size: elements a bin; None is 50 for leaves of three or more
      dimensions (convolutions) and 500 otherwise.
    ladder: see the module.
    axis_name: mapped axis of the workers, or None.
    min_size: leaves with fewer elements stay dense.
    dense_paths: leaves that stay dense.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Chen et al., AAAI 2018, arXiv 1712.02679, algorithm 2.
  """
  return compressed_mean(
    memories.residual(),
    compressors.by_rule(
      rule.ada_comp(bin_size),
      codecs.codec('elias_fano', 'sign2'),
      name='ada_comp',
      ladder=ladder,
    ),
    exchanges.all_gather(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
  )
