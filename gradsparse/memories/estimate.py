"""EF21's memory: an estimate of each worker's gradient, and their mean."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import arguments
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
    residual: float32 tree like params: this step's gradient, or the average of
      gradients, less the new estimate; this worker's own. It is kept for
      `gs.pending` only: the next step computes it anew.
    estimate: float32 tree like params: g_w, the sum of all corrections that
      this worker has sent; this worker's own. If the number of workers changes,
      the new workers get shares whose mean is still G.
    mean: float32 tree like params: G, the mean of all workers' estimates; of
      leaves that stay dense, the moving average of the means. Equal on all
      workers.
    average: float32 tree like params: v_w, the moving average of this worker's
      gradients; () without momentum.
  """

  residual: Any
  estimate: Any
  mean: Any
  average: Any = ()

  def pending(self) -> Any:
    return self.residual


def estimate(momentum: float = 1.0) -> Memory:
  """Sends corrections of an estimate instead of the gradient.

    v_w <- (1 - m) v_w + m g
    r = C(v_w - g_w);  g_w <- g_w + r;  G <- G + mean_w(r);  the update is G

  With m = 1 v_w is the gradient. All v_w and estimates begin at zero. Unlike a
  residual, the difference does not accumulate: each v_w is compared with the
  current estimate. Leaves that stay dense keep only the moving average of their
  means.

  G is the float32 sum of all corrections so far, with their rounding errors:
  about 1e-7 of the largest correction ever sent. A step with gradients a
  million times as large as usual leaves a permanent error of a tenth of a usual
  gradient; clip such gradients (`gs.clip_local_norm`).

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> memory = gs.extend.memories.estimate()
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> state = memory.init(grads)
  >>> state = memory.accumulate(grads, state, {}, {'w': False})
  >>> state = memory.sent(state, {'w': gs.extend.Full(jnp.array([4.0, 0.0]))})
  >>> print(state.estimate['w'], state.pending()['w'])
  [4. 0.] [0. 1.]

  Args:
    momentum: m, the weight of the new gradient, in (0, 1].

  Raises:
    TypeError: momentum is not a number.
    ValueError: momentum is out of range.

  References:
    Richtarik, Sokolov & Fatkhullin, "EF21", arXiv 2106.05203, algorithm 2;
    Fatkhullin, Tyurin & Richtarik, arXiv 2305.15155 (momentum).
  """
  new_weight = arguments.number('momentum', momentum, arguments.FRACTION)
  old_weight = 1 - new_weight
  averages = new_weight < 1

  def init(params):
    average = zeros(params) if averages else ()
    return EstimateState(zeros(params), zeros(params), zeros(params), average)

  def averaged(v, g):
    return old_weight * v + new_weight * g

  def accumulate(grads, state, extra, is_dense):
    del extra
    if averages:
      grads = where_compressed(averaged, is_dense, state.average, grads)
      state = state._replace(average=grads)
    residual = where_compressed(
      lambda residual, g, e: g - e,
      is_dense,
      state.residual,
      grads,
      state.estimate,
    )
    return state._replace(residual=residual)

  def sent(state, delivered):
    believed = jax.tree.map(
      lambda x, d: x if d.is_dense else d.plus(x), state.estimate, delivered
    )
    return state._replace(
      residual=less(state.residual, delivered), estimate=believed
    )

  def update(state, means, is_dense):
    if averages:
      means = jax.tree.map(
        lambda dense, m, g: averaged(m, g) if dense else g,
        is_dense,
        state.mean,
        means,
      )
    return where_compressed(jnp.add, is_dense, means, state.mean)

  def arrived(state, means, is_dense, accepted):
    new_means = update(state, means, is_dense)
    unchanged = jax.tree.map(lambda dense: dense and not averages, is_dense)
    mean = where_compressed(
      lambda old, new: jnp.where(accepted, new.astype(old.dtype), old),
      unchanged,
      state.mean,
      new_means,
    )
    return state._replace(mean=mean)

  return Memory(
    init,
    accumulate,
    update=update,
    sent=sent,
    arrived=arrived,
    facts=MemoryFacts(elementwise=True),
  )
