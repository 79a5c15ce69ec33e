"""Gradient clipping on each worker, before the gradient is accumulated."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse import health
from gradsparse import traced
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.transform import inputs
from gradsparse.transform.described import Described
from gradsparse.transform.described import call
import jax
import jax.numpy as jnp
import optax


def clip_local_norm(
  threshold: float, *, axis_name: AxisName | None
) -> optax.GradientTransformation:
  """Rescales the local gradient when its norm exceeds threshold * sqrt(P).

  The norm is over the whole tree. `threshold` is the one that a single
  worker (or clipping after the exchange) would use: the gradient of the mean
  loss over 1/P of the batch has a norm about sqrt(P) times that of the whole
  batch, if workers' gradients are independent.

  Not before a variance-based scheme: its `second_moment` is of the gradient as
  it was, and no link of a chain can scale that with it. Scaled by less, the
  gradient seems more ambiguous than it is, and less is sent, or nothing.

  Differs from the paper in letters only: its local gradient carries the
  factor 1/P, so it clips at threshold / sqrt(P).

  Args:
    threshold: in units of the gradient, > 0. One that is traced and turns out
      to be none makes the gradient NaN, and the scheme rejects the step.
    axis_name: mapped axis of the workers; None is one worker.

  Raises:
    TypeError: an argument of the wrong kind; from update: a leaf that is not
      of floating-point numbers.
    ValueError: threshold is not positive and finite; from update: leaves are
      shards over another mesh axis.

  References:
    Lin et al., arXiv 1712.01887, section 3.2 and appendix C.
  """
  threshold = arguments.number(
    'threshold', threshold, arguments.POSITIVE, traced=True
  )
  axis_name = arguments.axis_name(axis_name)

  def update(updates, state, params=None, **extra):
    del params, extra
    inputs.check_floating(updates, 'gradients')
    updates = jax.tree.map(jnp.asarray, updates)
    comm = Comm(axis_name)
    comm.check_unsharded(updates, 'clip_local_norm')
    limit = threshold * math.sqrt(comm.size)
    top, norm = health.norm(jax.tree.leaves(updates))
    # What is not finite has no norm, and must stay visible to the scheme that
    # follows. In units of the largest, for the norm may be beyond float32.
    over = norm * top > limit
    usable = traced.in_range((threshold, arguments.POSITIVE))

    def clipped(g):
      own = g.astype(top.dtype)
      out = jnp.where(over, own / top * (limit / norm), own).astype(g.dtype)
      return out if usable is True else jnp.where(usable, out, jnp.nan)

    return jax.tree.map(clipped, updates), state

  text = call(
    'clip_local_norm', {'threshold': threshold, 'axis_name': axis_name}
  )
  return Described.of(lambda _: optax.EmptyState(), update, text=text)
