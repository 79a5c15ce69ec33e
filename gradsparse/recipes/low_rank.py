"""Recipes that send each matrix as the product of small factors."""

from __future__ import annotations

from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.collectives import AxisName
from gradsparse.recipes import shared_arguments
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.layout import DensePaths


@shared_arguments.recipe
def power_sgd(
  rank: int,
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
) -> CompressedMean:
  """Low-rank approximation of each matrix, warm-started, error feedback.

  A leaf is a matrix whose columns are its last index. What the approximation
  lacks stays in the residual and is added to the next gradient.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> params = {'w': jnp.zeros((1000, 100))}
  >>> tx = gs.power_sgd(2, axis_name='workers')
  >>> print(gs.plan(tx, params, num_workers=4))
  leaf   elements  dense B  payload B  ratio  transport
  ['w']   100,000  400,000      8,800   45.5  power_sgd, all-reduce
  total   100,000  400,000      8,800   45.5  sent by a worker: 13,206 B

  Args:
    rank: of the approximation, a whole number, at least 1. A leaf of m x n
      elements sends its two factors, rank (m + n) numbers; it stays dense
      where these are not fewer than m n.
    {axis_name}
    {min_size: all leaves of two and more dimensions are compressed that are
      larger than their two factors together. 0 says the same; the other leaves
      always stay dense}
    {dense_paths}
    {seed: the first factors, which `init` draws}
    {verify_sums}

  Returns:
    An optax transformation. Its update takes this worker's gradients and gives,
    on all workers alike and with the gradient's sign, an approximation of rank
    `rank` of the mean over workers of gradient plus residual.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Vogels et al., arXiv 1905.13727, algorithms 1 and 2.
  """
  return compressed_mean(
    memories.residual(),
    compressors.power_sgd(rank, seed),
    exchanges.all_reduce(),
    axis_name=axis_name,
    min_size=min_size,
    dense_paths=dense_paths,
    verify=verify,
  )
