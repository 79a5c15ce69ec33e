"""PowerSGD: one step of power iteration, warm-started."""

from __future__ import annotations

import functools
import math

from gradsparse import arguments
from gradsparse import codes
from gradsparse.backend import factors
from gradsparse.codes.low_rank import matrix_cut
from gradsparse.codes.low_rank import matrix_shape
from gradsparse.codes.low_rank import together
from gradsparse.codes.low_rank import turned
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


def _unit_columns(x: jax.Array, shards: Shards = NO_SHARDS) -> jax.Array:
  """Scales each column to a sum of magnitudes of 1; zero columns stay zero.

  Args:
    x: float32[..., r, rows], columns of a factor: this device's rows of each.
    shards: the devices that have the other rows.
  """

  def divided(x, by):
    return x / jnp.where(by > 0, by, 1.0)

  # Divided by the largest first: the sum of large numbers could overflow.
  x = divided(x, shards.max(jnp.max(jnp.abs(x), axis=-1, keepdims=True)))
  return divided(x, shards.sum(jnp.sum(jnp.abs(x), axis=-1, keepdims=True)))


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

  def elements(shape):
    """Of the two factors of a leaf."""
    return rank * sum(matrix_shape(shape))

  def accepts(shape):
    return len(shape) >= 2 and elements(shape) < math.prod(shape)

  def init(shapes):
    key = jax.random.key(seed)
    drawn = []
    for number, shape in enumerate(shapes):
      own = jax.random.fold_in(key, number)
      q = jax.random.normal(own, (shape[-1], rank), jnp.float32)
      drawn.append(_unit_columns(q.T))
    return tuple(drawn)

  def shard(cut, shape):
    _, columns = matrix_cut(cut, shape)
    return PartitionSpec(None, columns or None)

  def update(total, ctx):
    groups = together(ctx)
    new: dict[int, jax.Array] = {}
    for axes in dict.fromkeys(same.columns.axes for same in groups):
      own = [i for i, same in enumerate(groups) if same.columns.axes == axes]
      scale = functools.partial(_unit_columns, shards=groups[own[0]].columns)
      scaled = factors.at_once(scale, [total[i] for i in own])
      for i, q in zip(own, scaled, strict=True):
        new |= zip(groups[i].numbers, q, strict=True)
    return tuple(new[i] for i in range(len(new)))

  def operands(signals, ctx):
    groups, leaves = together(ctx), [s.value for s in signals]
    stacks = [jnp.stack([ctx.state[i] for i in x.numbers]) for x in groups]
    products = [
      same.each(lambda m, q: m @ q, leaves, q)
      for same, q in zip(groups, turned(stacks), strict=True)
    ]
    return [
      same.columns.sum(p)
      for same, p in zip(groups, turned(products), strict=True)
    ]

  def finish(reduced, ctx):
    groups = together(ctx)
    # The factors are small: every device gathers them, and keeps its own rows.
    whole = factors.orthonormal(
      factors.at_once(
        _unit_columns,
        [
          same.rows.gather(p, axis=2)
          for same, p in zip(groups, reduced, strict=True)
        ],
      )
    )
    return [
      same.rows.part(x, p.shape[2], axis=2)
      for same, p, x in zip(groups, reduced, whole, strict=True)
    ]

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
    share=elements,
  )
