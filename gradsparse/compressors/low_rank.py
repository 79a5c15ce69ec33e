"""PowerSGD: one step of power iteration, warm-started."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse.interfaces import Agreement
from gradsparse.interfaces import Compressor
import jax
import jax.numpy as jnp


def _matrix(shape) -> tuple[int, int]:
  """A leaf as a matrix: its last index (output units) are the columns."""
  return math.prod(shape[:-1]), shape[-1]


def _unit_columns(x: jax.Array) -> jax.Array:
  """Columns scaled so that their magnitudes add up to 1; zeros stay."""

  def divided(x, by):
    return x / jnp.where(by > 0, by, 1.0)

  # By the largest first: the sum of large numbers could overflow.
  x = divided(x, jnp.max(jnp.abs(x), axis=0))
  return divided(x, jnp.sum(jnp.abs(x), axis=0))


def power_sgd(rank: int, seed: int = 0) -> Compressor:
  """Rank-r approximation P Q^T of each matrix, of the mean over workers.

    P <- orthogonalise(mean_w(M_w Q));  Q <- mean_w(M_w^T P);  send P Q^T

  Q is kept for the next step (warm start), scaled by columns: P does not
  depend on their lengths, and neither product can overflow then. Both means
  are all-reduces of small factors. Each leaf has a Q of its own, also where
  shapes coincide.

  Args:
    rank: r, at least 1; a leaf's own smaller dimension where that is less.
    seed: of the first Q.

  Raises:
    TypeError: rank or seed is not a whole number.
    ValueError: an argument out of range.

  References:
    Vogels et al., arXiv 1905.13727, algorithm 1.
  """
  rank = arguments.whole_number('rank', rank, 1)
  seed = arguments.seed(seed)

  def matrices(signals):
    return [s.value.reshape(_matrix(s.value.shape)) for s in signals]

  def init(shapes):
    key = jax.random.key(seed)
    factors = []
    for number, shape in enumerate(shapes):
      rows, columns = _matrix(shape)
      own = jax.random.fold_in(key, number)
      size = (columns, min(rank, rows, columns))
      factors.append(_unit_columns(jax.random.normal(own, size)))
    return tuple(factors)

  def propose(signals, ctx):
    pairs = zip(matrices(signals), ctx.state, strict=True)
    return [m @ q for m, q in pairs]

  def settle(reduced, ctx):
    del ctx
    return [jnp.linalg.qr(_unit_columns(p))[0] for p in reduced]

  def encode(signals, shared, ctx):
    del ctx
    return [m.T @ p for m, p in zip(matrices(signals), shared, strict=True)]

  def decode(payload, shared, ctx, summands):
    del summands
    return [
      (p @ q.T).reshape(shape)
      for p, q, shape in zip(shared, payload, ctx.shapes, strict=True)
    ]

  def learn(state, payload, shared, ctx):
    del state, shared, ctx
    return tuple(_unit_columns(q) for q in payload)

  def gain(shapes):
    # A column of M, projected, can have all its length in one number.
    return math.sqrt(max((_matrix(shape)[0] for shape in shapes), default=1))

  return Compressor(
    'power_sgd',
    encode,
    decode,
    linear=True,
    agreement=Agreement('mean', propose, settle),
    accepts=lambda shape: len(shape) >= 2,
    init=init,
    learn=learn,
    gain=gain,
  )
