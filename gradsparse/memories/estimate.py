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
    residual: float32 tree like params: this step's gradient less the
      estimate, after what was sent; this worker's own. The next step computes
      it anew: it is kept for `gs.pending`.
    estimate: float32 tree like params: g_w, the sum of all corrections that
      this worker has sent; this worker's own. Other numbers of workers get
      shares of these, of which G is still the mean.
    mean: float32 tree like params: G, the mean of all workers' estimates; the
      same on all workers.
  """

  residual: Any
  estimate: Any
  mean: Any

  def pending(self) -> Any:
    return self.residual


def estimate() -> Memory:
  """Sends corrections of an estimate instead of the gradient.

    r = C(g - g_w);  g_w <- g_w + r;  G <- G + mean_w(r);  the update is G

  All estimates begin at zero. Unlike a residual, what was not sent is not
  added up: the next gradient is compared with the estimate afresh. Leaves
  that stay dense keep nothing.

  G is a sum in float32 of all corrections so far. Their rounding stays in it:
  about 1e-7 of the largest that was ever sent. A step with gradients a million
  times as large as usual leaves an error of a tenth of a usual gradient, for
  good; clip what may be that large (`gs.clip_local_norm`).

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
    # The gradient itself: of the next one the whole estimate is taken off.
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
