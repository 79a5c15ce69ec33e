"""The variance memory's rounding 'paper', which drops the rounding error.

References:
  Tsuzuku, Imachi, Akiba, Variance-based Gradient Compression, arXiv
  1802.06058, algorithm 1.
"""

from __future__ import annotations

from gradsparse.memories.variance import Rounding
import jax
import jax.numpy as jnp

# An exponent-coded entry is not sent when it rounds to less than 2^-7 of the
# largest, that is below 1.5 * 2^-8 of it (the boundary of the rounding).
_UNSENDABLE = 1.5 / 256


def _sent(state, delivered, alpha):
  """Sets r = v = 0 wherever the criterion held, sent or not."""

  def gone(r, v, d):
    """Which elements were selected, whether sent or too small for the code."""
    if d.is_dense:
      return jnp.zeros_like(r, bool)
    largest = jnp.max(jnp.abs(d.values), initial=0.0)
    small = (r * r > alpha * v) & (jnp.abs(r) < _UNSENDABLE * largest)
    sent = d.update(lambda x, _: jnp.ones_like(x), jnp.zeros_like(r))
    return small | (sent > 0)

  lost = jax.tree.map(gone, state.residual, state.variance, delivered)
  r, v = (
    jax.tree.map(lambda x, g: jnp.where(g, 0.0, x), tree, lost)
    for tree in (state.residual, state.variance)
  )
  return state._replace(residual=r, variance=v)


def _refuses(values):
  if values != 'exponent4':
    return "describes the four-bit code: it needs values='exponent4'"
  return None


# Not elementwise: the loss depends on the largest entry that was sent.
PAPER = Rounding(_sent, keeps=False, elementwise=False, refuses=_refuses)
