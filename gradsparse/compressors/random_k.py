"""Random-k: coordinates drawn by a shared seed, so no indices travel."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse import codes
from gradsparse import selection
from gradsparse.sockets import Compressor
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
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

  def select(signals, ctx):
    values, indices, limits, offset = [], [], [], 0
    for number, (signal, shape) in enumerate(
      zip(signals, ctx.shapes, strict=True)
    ):
      size = math.prod(shape)
      key = jax.random.fold_in(ctx.shared_key, number)
      # The k largest of n random numbers are a uniform draw.
      _, drawn = selection.top_k(
        jax.random.uniform(key, (size,)), selection.count(density, size)
      )
      drawn = jnp.sort(drawn)
      k = drawn.shape[0]
      factor = size / k if scaled else 1.0
      values.append(signal.value.reshape(-1)[drawn] * factor)
      indices.append(drawn + offset)
      limits.append(k)
      offset += size
    # In order: leaf by leaf, and sorted in each.
    return Sparse(
      jnp.concatenate(values),
      jnp.concatenate(indices),
      Space(ctx.shapes, tuple(limits)),
    )

  return Compressor(
    'random_k', select, codes.plain.of_known_places(), unbiased=scaled
  )
