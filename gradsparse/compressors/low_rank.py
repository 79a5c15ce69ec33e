"""PowerSGD: one step of power iteration, warm-started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math

from gradsparse import arguments
from gradsparse import codes
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
import numpy as np


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


def _gram_schmidt(columns: jax.Array) -> jax.Array:
  """Each column without its part along those before it, of length 1.

  A column of which nothing is left becomes another one: zeros would stay zeros
  in all later steps.

  Args:
    columns: float32[leaves, r, rows], r < rows.
  """
  leaves, rank, rows = columns.shape

  def unit(x):
    length = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))
    return jnp.where(length > 0, x / jnp.where(length > 0, length, 1.0), 0.0)

  def rest(x, others):
    along = jnp.sum(others * x, axis=-1, keepdims=True)
    return x - jnp.sum(along * others, axis=-2, keepdims=True)

  row = jnp.arange(rows)
  out = jnp.zeros((leaves, 0, rows), columns.dtype)
  for k in range(rank):
    column = unit(rest(columns[:, k : k + 1], out))
    # The cosines of k + 1 half waves over r + 1 rows: no two are alike.
    waves = jnp.cos((k + 1) * math.pi * (row + 0.5) / (rank + 1))
    there = jnp.any(column != 0, axis=-1, keepdims=True)
    column = jnp.where(there, column, jnp.where(row <= rank, waves, 0.0))
    # Again: where little was left, much of it is rounding along the others.
    out = jnp.concatenate([out, unit(rest(column, out))], axis=1)
  return out


def _at_once(
  fn: Callable[[jax.Array], jax.Array], factors: Sequence[jax.Array]
) -> list[jax.Array]:
  """fn of each factor, computed for those of about equal lengths at once.

  Accelerators take as long to begin an operation as to read a factor.

  Args:
    fn: float32[leaves, r, rows] -> the same shape; zeros after the last row
      change nothing.
    factors: float32[leaves, r, rows], of any rows.
  """
  rows = [x.shape[-1] for x in factors]
  lengths = [1 << (n - 1).bit_length() for n in rows]
  out: dict[int, jax.Array] = {}
  for length in sorted(set(lengths)):
    own = [i for i, n in enumerate(lengths) if n == length]
    padded = [
      jnp.pad(factors[i], ((0, 0), (0, 0), (0, length - rows[i]))) for i in own
    ]
    cuts = np.cumsum([len(x) for x in padded])[:-1]
    parts = jnp.split(fn(jnp.concatenate(padded)), cuts)
    out |= {i: x[..., : rows[i]] for i, x in zip(own, parts, strict=True)}
  return [out[i] for i in range(len(out))]


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
      q = jax.random.normal(own, (rank, shape[-1]), jnp.float32)
      drawn.append(_unit_columns(q))
    return tuple(drawn)

  def shard(cut, shape):
    _, columns = matrix_cut(cut, shape)
    return PartitionSpec(None, columns or None)

  def update(total, ctx):
    groups = together(ctx)
    learnt: dict[int, jax.Array] = {}
    for axes in dict.fromkeys(same.columns.axes for same in groups):
      own = [i for i, same in enumerate(groups) if same.columns.axes == axes]
      scale = functools.partial(_unit_columns, shards=groups[own[0]].columns)
      scaled = _at_once(scale, [total[i] for i in own])
      for i, q in zip(own, scaled, strict=True):
        learnt |= zip(groups[i].numbers, q, strict=True)
    return tuple(learnt[i] for i in range(len(learnt)))

  def operands(signals, ctx):
    leaves = [s.value for s in signals]
    products = []
    for same in together(ctx):
      q = turned([jnp.stack([ctx.state[i] for i in same.numbers])])
      p = turned([same.each(lambda m, q: m @ q, leaves, *q)])
      products.append(same.columns.sum(*p))
    return products

  def finish(reduced, ctx):
    pairs = list(zip(together(ctx), reduced, strict=True))
    # The factors are small: every device gathers them, and keeps its own rows.
    whole = _at_once(
      lambda p: _gram_schmidt(_unit_columns(p)),
      [same.rows.gather(p, axis=2) for same, p in pairs],
    )
    return [
      same.rows.part(x, p.shape[2], axis=2)
      for (same, p), x in zip(pairs, whole, strict=True)
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
    share=factors,
  )
