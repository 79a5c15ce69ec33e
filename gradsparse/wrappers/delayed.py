"""Exchanges each gradient one step late, while the next one is computed."""

from __future__ import annotations

from gradsparse import health
from gradsparse.state.inspection import check_own
from gradsparse.state.scheme import DelayedState
from gradsparse.traffic import counting
from gradsparse.traffic import demands
from gradsparse.transform import conditional
from gradsparse.transform import inputs
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.described import Described
from gradsparse.transform.described import described
from gradsparse.transform.described import got
import jax
import jax.numpy as jnp


@described
def delayed(scheme: CompressedMean) -> Described:
  """The scheme's updates, one call later, so that its exchange can overlap.

  A call sends the gradient of the call before, and returns its mean. Nothing
  that is sent depends on this call's gradient. So a runtime that communicates
  in the background sends while it computes the next gradient, in one jitted
  step. The first update is zero. No gradient is lost: the last one is in the
  state, and one more call with a gradient of zeros sends it.

  >>> import gradsparse as gs
  >>> tx = gs.delayed(gs.gradient_dropping(0.5, axis_name=None))
  >>> state = tx.init({'w': jnp.zeros(2)})
  >>> for gradient in ([4.0, 1.0], [0.0, 2.0], [0.0, 0.0]):
  ...   mean, state = tx.update({'w': jnp.array(gradient)}, state)
  ...   print(mean['w'])
  [0. 0.]
  [4. 0.]
  [0. 3.]

  The optimizer that follows sees the gradient of parameters that are one step
  old. A learning rate or momentum that is barely stable without the delay can
  be unstable with it. A rejected gradient (see `gs.compressed_mean`) shows as
  NaN one call later.

  The state holds one more gradient than the scheme's. `gs.pending` does not
  include it, and `gs.switch` refuses to drop it: to leave `delayed`, send it
  first. `gs.plan` and `gs.metrics` are those of the scheme, one call later; the
  metrics are of the message that arrived. The first call sends a message too,
  of which nothing is used.

  Args:
    scheme: a gradsparse scheme, also inside of `gs.sharded`; not a chain.

  Raises:
    TypeError: scheme is no gradsparse scheme; from init and update: a leaf is
      not floating-point.
    ValueError: from update: the gradients' tree is not like the parameters, or
      the state is another transformation's.

  References:
    Zhu et al., "Delayed gradient averaging", NeurIPS 2021, delay averages too.
  """
  if not isinstance(scheme, CompressedMean):
    raise TypeError(
      'scheme must be a gradsparse scheme such as gs.dgc(...), got '
      f'{got(scheme)}; an optimizer follows it: '
      'optax.chain(gs.delayed(gs.dgc(...)), optax.sgd(lr))'
    )

  def init(params):
    inputs.check_floating(params, 'parameters')
    with demands.heard() as wanted:
      inner = scheme.init(params)
    moments = health.wide_zeros(params) if wanted.second_moment else ()
    return DelayedState(jnp.int32(0), health.wide_zeros(params), moments, inner)

  def update(updates, state, params=None, **extra):
    check_own('delayed', state, DelayedState)
    inputs.check_floating(updates, 'gradients')
    inputs.check_like(
      updates, state.gradient, 'gradients', 'the parameters given to init'
    )
    conditional.check_local_like(updates, state.gradient)
    # Before the first call there is no gradient. The scheme rejects NaN, so
    # that nothing changes in its state but two counters.
    first = state.step == 0
    last = jax.tree.map(
      lambda held, g: jnp.where(first, jnp.nan, held).astype(
        jnp.result_type(g)
      ),
      state.gradient,
      updates,
    )
    moments = state.second_moment
    if jax.tree.leaves(moments):
      new = health.widened(inputs.second_moment_of(extra, updates))
      extra['second_moment'], moments = moments, new
    with counting.one_call_late():
      mean, inner = scheme.update(last, state.scheme, params, **extra)
    before = state.scheme
    steps, rejected = jax.tree.map(
      lambda old, new: jnp.where(first, old, new),
      (before.steps, before.stats.rejected_steps),
      (inner.steps, inner.stats.rejected_steps),
    )
    stats = inner.stats._replace(rejected_steps=rejected)
    inner = inner._replace(steps=steps, stats=stats)
    # The mean waits for the gradients. Otherwise XLA may wait for the messages
    # before the forward pass (tests/between_sites/overlap.py).
    waited, updates = jax.lax.optimization_barrier((mean, updates))
    mean = conditional.typed_equal_like(waited, mean)
    mean = jax.tree.map(lambda x: jnp.where(first, 0, x), mean)
    return mean, DelayedState(
      state.step + 1, health.widened(updates), moments, inner
    )

  return Described.of(init, update)
