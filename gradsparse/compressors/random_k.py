"""Random-k: coordinates drawn from a shared seed, so no indices are sent."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import codes
from gradsparse import selection
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.sockets import Compressor
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax.numpy as jnp


def random_k(density: float, *, scaled: bool) -> Compressor:
  """Draws k = ceil(density n) coordinates of each leaf without replacement.

  All workers draw the same coordinates, so their values are summed by an
  all-reduce of k numbers.

  >>> import gradsparse as gs
  >>> random_k = gs.extend.compressors.random_k
  >>> random_k(0.1, scaled=True).unbiased, random_k(0.1, scaled=False).unbiased
  (True, False)

  Args:
    density: fraction of the elements, in (0, 1].
    scaled: whether values are multiplied by n / k, which makes the scheme
      unbiased (without a memory).

  Raises:
    TypeError: density is not a number.
    ValueError: density is out of range.
  """
  density = arguments.number('density', density, arguments.FRACTION)

  def select(signals, ctx):
    # Matrices: XLA for TPUs would copy a leaf into the tiling of a vector.
    leaves = [
      s.value.reshape(-1, *(s.value.shape[-1:] or (1,))) for s in signals
    ]
    counts = [selection.count(density, x.size) for x in leaves]
    space = Space(ctx.shapes, tuple(counts))
    sizes = [x.size for x in leaves]
    drawn = selection.drawn_of_each(sizes, counts, ctx.shared_key)
    places = joining.split(drawn, [(k,) for k in counts])
    begins = barriers.hidden_numbers(space.offsets[:-1], drawn)
    values = [
      x[jnp.divmod(own - begin, x.shape[1])] * (x.size / k if scaled else 1.0)
      for x, k, own, begin in zip(leaves, counts, places, begins, strict=True)
    ]
    return Sparse(jnp.concatenate(values), drawn, space)

  return Compressor(
    'random_k', select, codes.plain.of_known_places(), unbiased=scaled
  )
