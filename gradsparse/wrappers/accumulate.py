"""Accumulates the gradients of several calls, and exchanges them once."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import health
from gradsparse.state.inspection import check_own
from gradsparse.state.inspection import is_scheme
from gradsparse.state.scheme import AccumulateState
from gradsparse.traffic import counting
from gradsparse.traffic import demands
from gradsparse.transform import conditional
from gradsparse.transform import guards
from gradsparse.transform import inputs
from gradsparse.transform.described import Described
from gradsparse.transform.described import call
import jax
import jax.numpy as jnp
import optax


def accumulate(
  tx: optax.GradientTransformation, *, every: int
) -> optax.GradientTransformationExtraArgs:
  """Exchanges and steps once in `every` calls, with their mean gradient.

  Put it around the whole chain. Each call adds its gradient to this worker's
  float32 sum. The last of `every` calls passes the mean to `tx`; the others
  send nothing and return updates of zero. There is one program, whose exchange
  is in a branch that all workers take together.

  >>> import gradsparse as gs
  >>> tx = gs.accumulate(
  ...   optax.chain(gs.dgc(0.01, axis_name='workers'), optax.sgd(0.1)), every=4
  ... )
  >>> plan = gs.plan(tx, {'w': jnp.zeros((300, 100))}, num_workers=2)
  >>> print(plan)
  leaf   elements  dense B  payload B  ratio  transport
  ['w']    30,000  120,000      1,528   78.5  dgc, all-gather
  total    30,000  120,000      1,528   78.5  sent by a worker: 1,528 B
  in one of 4 updates; nothing in the others
  >>> print(f'{plan.over_run(1000).ratio:.0f}')
  314

  Steps inside `tx` are exchanges: a learning rate schedule or a density
  schedule inside advances by one in `every` calls. A transformation after this
  one in a chain gets the zeros (a momentum would decay); one before it gets
  each call's gradient.

  A round is `every` calls. If a gradient is not finite, its whole round is lost
  on all workers: the scheme rejects the step (see `gs.compressed_mean`), and
  the next round begins from zero. `gs.pending` does not include the gradients
  of an unfinished round. `gs.switch` keeps them in another `gs.accumulate` of
  as many calls, and refuses to drop them.

  In your own `vmap`, do not map `mini_step` (`gs.workers` does not): otherwise
  every call runs all of `tx`, and most results are dropped.

  Args:
    tx: schemes and optimizer. Its update may take keyword arguments.
      `second_moment` is accumulated for schemes that need it: with K = `every`,
      the sum of K calls' sum_z (g_z / B)^2, divided by K^2, is that of all K B
      examples. Other arguments are those of the last call.
    every: K, calls of `update` for one exchange, at least 1. With 1 the
      result is `tx`.

  Raises:
    TypeError: tx is not an optax transformation, or every is not a whole
      number; from init and update: a leaf is not floating-point.
    ValueError: every is not positive; from update: the gradients' tree is not
      like the parameters, or the state is another transformation's.
  """
  guards.check_optimizer('tx', tx, 'gs.accumulate')
  every = arguments.whole_number('every', every, 1)
  text = call('accumulate', {'tx': tx, 'every': every})
  tx = optax.with_extra_args_support(tx)
  if every == 1:
    return tx

  def init(params):
    inputs.check_floating(params, 'parameters')
    with demands.heard() as wanted:
      inner = tx.init(params)
    moments = health.wide_zeros(params) if wanted.second_moment else ()
    return AccumulateState(
      jnp.int32(0), jnp.int32(0), health.wide_zeros(params), moments, inner
    )

  def add(total, tree, parts):
    return jax.tree.map(lambda t, x: t + x.astype(t.dtype) / parts, total, tree)

  def update(updates, state, params=None, **extra):
    _check(updates, state)
    updates = jax.tree.map(jnp.asarray, updates)
    dtypes = jax.tree.map(lambda g: g.dtype, updates)
    # Divided before they are added, so that no sum overflows a finite mean.
    mean = add(state.mean, updates, every)
    moments = state.second_moment
    if jax.tree.leaves(moments):
      given = inputs.second_moment_of(extra, updates)
      # The scheme rejects negative numbers, which a sum must not hide.
      given = jax.tree.map(lambda m: jnp.where(m < 0, jnp.nan, m), given)
      moments = add(moments, given, every**2)
      extra['second_moment'] = moments

    def last():
      whole = jax.tree.map(lambda m, dtype: m.astype(dtype), mean, dtypes)
      out, inner = tx.update(whole, state.inner, params, **extra)
      return out, (health.wide_zeros(mean), health.wide_zeros(moments), inner)

    def not_yet(shapes):
      out = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[0])
      inner = jax.tree.map(
        lambda x: x.idle() if is_scheme(x) else x,
        state.inner,
        is_leaf=is_scheme,
      )
      return out, (mean, moments, inner)

    with counting.one_of(every):
      due = state.mini_step == every - 1
      out, kept = conditional.if_due(due, last, not_yet)
    return out, AccumulateState(
      (state.mini_step + 1) % every,
      state.gradient_step + jnp.where(due, 1, 0),
      *kept,
    )

  return Described.of(init, update, text=text, every=every)


def _check(grads, state):
  """Refuses a state or gradients that cannot be accumulated."""
  check_own('accumulate', state, AccumulateState)
  inputs.check_floating(grads, 'gradients')
  inputs.refuse_stacked(
    state._replace(second_moment=(), inner=()),
    AccumulateState(jnp.int32(0), jnp.int32(0), grads, (), ()),
  )
  inputs.check_like(
    grads, state.mean, 'gradients', 'the parameters given to init'
  )
  conditional.check_local_like(grads, state.mean)
