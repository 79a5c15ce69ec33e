"""PowerSGD: one step of power iteration, warm-started."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse import codes
from gradsparse.codes.low_rank import matrix_cut
from gradsparse.codes.low_rank import matrix_shape
from gradsparse.codes.low_rank import together
from gradsparse.collectives import NO_SHARDS
from gradsparse.collectives import Shards
from gradsparse.compressors.identity import identity
from gradsparse.sockets import Compressor
from gradsparse.sockets import CompressorState
from gradsparse.sockets import LeafRule
from gradsparse.sockets import PreReduce
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def _unit_columns(x: jax.Array, rows: Shards = NO_SHARDS) -> jax.Array:
  """Scales each column to a sum of magnitudes of 1; zero columns stay zero.

  Args:
    x: float32[..., rows, r], this device's rows.
    rows: the devices that have the other rows.
  """

  def divided(x, by):
    return x / jnp.where(by > 0, by, 1.0)

  # Divided by the largest first: the sum of large numbers could overflow.
  x = divided(x, rows.max(jnp.max(jnp.abs(x), axis=-2, keepdims=True)))
  return divided(x, rows.sum(jnp.sum(jnp.abs(x), axis=-2, keepdims=True)))


def _orthonormal(p: jax.Array, rows: Shards) -> jax.Array:
  """Orthonormal columns that span those of p.

  Args:
    p: float32[leaves, rows, r], this device's rows.
    rows: the devices that have the other rows.
  """
  # The factor is small: every device gathers it, and keeps its own rows.
  whole = jnp.linalg.qr(_unit_columns(rows.gather(p, axis=1)))[0]
  return rows.part(whole, p.shape[1], axis=1)


def power_sgd(rank: int, seed: int = 0) -> Compressor:
  """Approximates the workers' mean of each matrix by P Q^T of rank r.

    P <- orthogonalise(mean_w(M_w Q));  Q <- mean_w(M_w^T P);  deliver P Q^T

  Q is kept for the next step (warm start). Its columns are scaled so that
  neither product overflows; P does not depend on their lengths. Both means are
  all-reduces of small factors. Each leaf has its own Q, even if another leaf
  has the same shape. A leaf that is no larger than its two factors stays dense.

  >>> import gradsparse as gs
  >>> compressor = gs.extend.compressors.power_sgd(2)
  >>> [compressor.leaves.accepts(shape) for shape in ((1000, 100), (3, 2))]
  [True, False]

  Args:
    rank: r, at least 1.
    seed: seed of the first Q.

  Raises:
    TypeError: rank or seed is not a whole number.
    ValueError: an argument is out of range.

  References:
    Vogels et al., arXiv 1905.13727, algorithm 1.
  """
  rank = arguments.whole_number('rank', rank, 1)
  seed = arguments.seed(seed)

  def factors(shape):
    """Elements of the two factors of a leaf."""
    return rank * sum(matrix_shape(shape))

  def accepts(shape):
    return len(shape) >= 2 and factors(shape) < math.prod(shape)

  def init(shapes):
    key = jax.random.key(seed)
    drawn = []
    for number, shape in enumerate(shapes):
      own = jax.random.fold_in(key, number)
      q = jax.random.normal(own, (shape[-1], rank), jnp.float32)
      drawn.append(_unit_columns(q))
    return tuple(drawn)

  def shard(cut, shape):
    _, columns = matrix_cut(cut, shape)
    return PartitionSpec(columns or None)

  def update(total, ctx):
    learnt: dict[int, jax.Array] = {}
    for same, q in zip(together(ctx), total, strict=True):
      learnt |= zip(same.numbers, _unit_columns(q, same.columns), strict=True)
    return tuple(learnt[i] for i in range(len(learnt)))

  def operands(signals, ctx):
    leaves = [s.value for s in signals]
    products = []
    for same in together(ctx):
      q = jnp.stack([ctx.state[i] for i in same.numbers])
      p = same.each(lambda m, q: m @ q, leaves, q)
      products.append(same.columns.sum(p))
    return products

  def finish(reduced, ctx):
    pairs = zip(together(ctx), reduced, strict=True)
    return [_orthonormal(p, same.rows) for same, p in pairs]

  plain = identity(
    'power_sgd',
    codes.low_rank(),
    leaves=LeafRule(
      accepts,
      'leaves of fewer than two dimensions stay dense, and so do those that '
      f'are no larger than their two factors of rank {rank}',
    ),
  )
  return plain._replace(
    pre_reduce=PreReduce('mean', operands, finish),
    state=CompressorState(init, update, shard),
    share=factors,
  )
