"""TernGrad: signs scaled by the largest gradient, kept with probability."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import codes
from gradsparse.sockets import Agreement
from gradsparse.sockets import Compressor
from gradsparse.sockets import LeafRule
from gradsparse.sockets import Leaves
import jax.numpy as jnp


def terngrad(clip: float = 2.5, min_size: int = 10_000) -> Compressor:
  """s sign(g) b with P(b = 1) = |g| / s, and one s for all workers.

  Each leaf is clipped at `clip` standard deviations first. Unbiased about the
  clipped gradient. Workers agree on s = max |g| (scaler sharing), so a sum of
  small integers is meaningful: that is what the all-reduce adds up, packed in
  fields wide enough for P of them.

  Args:
    clip: in standard deviations of a leaf, > 0; infinity does not clip.
    min_size: leaves with fewer elements stay dense.

  Raises:
    TypeError: clip is not a number.
    ValueError: clip is not positive.

  References:
    Wen et al., arXiv 1705.07878, eq. 2, section 3.3 and 4.
  """
  clip = arguments.number('clip', clip, arguments.POSITIVE_OR_INFINITE)

  def clipped(signal):
    g = signal.value
    # The leaf is divided by its largest number first: then no square overflows.
    # A leaf of equal numbers has a deviation of zero, and is not clipped at it.
    top = jnp.max(jnp.abs(g))
    limit = clip * top * jnp.std(g / jnp.where(top > 0, top, 1.0))
    limit = jnp.where(limit > 0, limit, jnp.inf)
    return jnp.clip(g, -limit, limit)

  def propose(signals, ctx):
    del ctx
    return jnp.stack([jnp.max(jnp.abs(clipped(s))) for s in signals])

  def select(signals, ctx):
    del ctx
    return Leaves([clipped(s) for s in signals])

  return Compressor(
    'terngrad',
    select,
    codes.ternary(),
    leaves=LeafRule(min_size=min_size),
    agreement=Agreement('max', propose),
    unbiased=True,
  )
