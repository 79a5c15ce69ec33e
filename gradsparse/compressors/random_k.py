"""Random-k: coordinates drawn by a shared seed, so no indices travel."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import codes
from gradsparse import draws
from gradsparse import leafwise
from gradsparse import selection
from gradsparse.sockets import Compressor
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
    def draw(x, number):
      size = x.shape[0]
      key = jax.random.fold_in(ctx.shared_key, number)
      # The k largest of n random numbers are a uniform draw.
      _, drawn = selection.top_k(
        draws.uniform(key, (size,)), selection.count(density, size)
      )
      return x[drawn] * (size / drawn.shape[0] if scaled else 1.0), drawn

    leaves = [s.value.reshape(-1) for s in signals]
    parts = list(leafwise.by_shape(draw, leaves))
    found = Sparse.of_leaves(parts, ctx.shapes)
    # Sorted by themselves, the coordinates are the same on all by type too.
    places = Sparse.of_leaves(
      [(i, (jnp.zeros(at.shape), at)) for i, (_, at) in parts], ctx.shapes
    )
    return Sparse(found.values, places.indices, found.space)

  return Compressor(
    'random_k', select, codes.plain.of_known_places(), unbiased=scaled
  )
