"""EF21's memory: an estimate of each worker's gradient, and their mean."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse.memories.basic import less
from gradsparse.memories.basic import where_compressed
from gradsparse.memories.basic import zeros
from gradsparse.sockets import Memory
from gradsparse.sockets import MemoryFacts
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp


@ownership.shared('mean')
class EstimateState(NamedTuple):
  """State of `estimate`.

  Attributes:
    residual: float32 tree like params: this step's gradient less the new
      estimate; this worker's own. It is kept for `gs.pending` only: the next
      step computes it anew.
    estimate: float32 tree like params: g_w, the sum of all corrections that
      this worker has sent; this worker's own. If the number of workers changes,
      the new workers get shares whose mean is still G.
    mean: float32 tree like params: G, the mean of all workers' estimates; equal
      on all workers.
  """

  residual: Any
  estimate: Any
  mean: Any

  def pending(self) -> Any:
    return self.residual


def estimate() -> Memory:
  """Sends corrections of an estimate instead of the gradient.

    r = C(g - g_w);  g_w <- g_w + r;  G <- G + mean_w(r);  the update is G

  All estimates begin at zero. Unlike a residual, the difference does not
  accumulate: each gradient is compared with the current estimate. Leaves that
  stay dense keep nothing.

  G is the float32 sum of all corrections so far, with their rounding errors:
  about 1e-7 of the largest correction ever sent. A step with gradients a
  million times as large as usual leaves a permanent error of a tenth of a usual
  gradient; clip such gradients (`gs.clip_local_norm`).

  References:
    Richtarik, Sokolov & Fatkhullin, "EF21", arXiv 2106.05203, algorithm 2.
  """

  def init(params):
    return EstimateState(zeros(params), zeros(params), zeros(params))

  def accumulate(grads, state, extra, is_dense):
    del extra
    residual = where_compressed(
      lambda old, g, e: g - e, is_dense, state.residual, grads, state.estimate
    )
    return state._replace(residual=residual)

  def sent(state, delivered):
    believed = jax.tree.map(
      lambda x, d: x if d.is_dense else d.plus(x),
      state.estimate,
      delivered,
    )
    return state._replace(
      residual=less(state.residual, delivered), estimate=believed
    )

  def update(state, means, is_dense):
    return where_compressed(jnp.add, is_dense, means, state.mean)

  def arrived(state, means, is_dense, accepted):
    mean = where_compressed(
      lambda old, new: jnp.where(accepted, old + new, old),
      is_dense,
      state.mean,
      means,
    )
    return state._replace(mean=mean)

  def magnitudes(state, is_dense):
    # The gradient itself, from which the next estimate is subtracted.
    return (
      where_compressed(jnp.add, is_dense, state.residual, state.estimate),
    )

  return Memory(
    init,
    accumulate,
    update=update,
    sent=sent,
    arrived=arrived,
    magnitudes=magnitudes,
    facts=MemoryFacts(elementwise=True),
  )
