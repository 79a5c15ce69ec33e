"""Random-k: coordinates drawn by a shared seed, so no indices travel."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse import selection
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Compressor
import jax
import jax.numpy as jnp


def random_k(density: float, *, scaled: bool) -> Compressor:
  """k = ceil(density n) coordinates of each leaf, drawn without replacement.

  All workers draw the same ones, so values can be added up: an all-reduce of
  k numbers.

  Args:
    density: fraction of the elements, in (0, 1].
    scaled: multiply by n / k, which makes it unbiased (without a memory).

  Raises:
    TypeError: density is not a number.
    ValueError: density out of range.
  """
  density = arguments.number('density', density, arguments.FRACTION)

  def drawn(ctx):
    """Sorted indices in the joined space, int32[k], and the space."""
    places, limits, offset = [], [], 0
    for number, shape in enumerate(ctx.shapes):
      size = math.prod(shape)
      key = jax.random.fold_in(ctx.shared_key, number)
      # The k largest of n random numbers are a uniform draw.
      _, where = selection.top_k(
        jax.random.uniform(key, (size,)), selection.count(density, size)
      )
      places.append(jnp.sort(where) + offset)
      limits.append(where.shape[0])
      offset += size
    return jnp.concatenate(places), Space(ctx.shapes, tuple(limits))

  def encode(signals, shared, ctx):
    del shared
    indices, space = drawn(ctx)
    values, start = [], 0
    for signal, offset, k in zip(
      signals, space.offsets[:-1], space.limits, strict=True
    ):
      x = signal.value.reshape(-1)
      factor = x.shape[0] / k if scaled else 1.0
      values.append(x[indices[start : start + k] - offset] * factor)
      start += k
    return jnp.concatenate(values)

  def decode(values, shared, ctx, summands):
    del shared, summands
    indices, space = drawn(ctx)
    return Sparse(values, indices, space)

  return Compressor('random_k', encode, decode, linear=True, unbiased=scaled)
