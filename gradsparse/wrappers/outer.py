"""Outer steps: workers train alone, and exchange what they moved (DiLoCo)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

from gradsparse import arguments
from gradsparse import health
from gradsparse.collectives import Comm
from gradsparse.state.inspection import check_own
from gradsparse.state.scheme import OuterState
from gradsparse.traffic import counting
from gradsparse.transform import conditional
from gradsparse.transform import guards
from gradsparse.transform import inputs
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.described import Described
from gradsparse.transform.described import described
from gradsparse.transform.described import got
from gradsparse.wrappers.fragments import Fragments
from gradsparse.wrappers.local_gradient import means_wanted
import jax
import jax.numpy as jnp
import optax

# What to do about parameters that are typed as equal on all workers.
_NOT_STACKED = (
  '{leaf} is typed as equal on all workers (axis {axis!r}), but '
  'workers train apart between two exchanges. Give each worker its own copy: '
  "gs.workers.stack(params, num_workers), with the worker axis in shard_map's "
  'specs (P({axis!r})).'
)


class Outer(Described):
  """An optax transformation whose update takes and returns parameters.

  Attributes:
    init: params -> OuterState.
    sync: (params, state) -> (params, state).
    update: the same function under optax's name, for `gs.plan` and
      `gs.workers`.
  """

  @property
  def sync(self) -> Callable[[Any, OuterState], tuple[Any, OuterState]]:
    """(params, state) -> (params, state), called after each inner step."""
    return self.update


@described
def outer(
  scheme: CompressedMean,
  outer: optax.GradientTransformation,
  *,
  sync_every: int,
  fragments: int | Sequence[str] = 1,
  delay: int = 0,
  alpha: float = 0.0,
) -> Outer:
  """Averages the progress of workers once in `sync_every` steps.

  Between two exchanges each worker trains by itself, with an optimizer of its
  own. An exchange takes the distance of each worker's parameters from the
  anchor, the parameters of the last exchange, as a gradient:

    D      = mean over workers of (anchor - params), by `scheme`
    anchor = optax.apply_updates(anchor, outer.update(D))
    params = anchor

  Call `sync` after each inner step. It sends nothing in the steps between.

    tx = gs.outer(gs.dense(axis_name='site'),
                  optax.sgd(0.7, momentum=0.9, nesterov=True), sync_every=50)
    state = gs.workers.init(tx, params, 4, 'site')

    updates, inner_state = inner.update(grads, inner_state, params)
    params = optax.apply_updates(params, updates)
    params, state = tx.sync(params, state)

  Parameters differ between workers, and so does the inner optimizer's state:
  `gs.workers.stack` makes a copy of both for each worker. When all leaves take
  over the anchor with alpha=0, the parameters of all workers are equal to the
  bit; with `fragments` those of one fragment are. Evaluate the anchor, which is
  equal at all times.

  With a scheme that keeps a residual, what is not sent of a worker's progress
  stays there and is sent in a later exchange, although the worker itself goes
  on from the anchor.

  With `fragments` > 1 each exchange is of one fragment of the parameters, in
  turn, once in `sync_every / fragments` steps (Streaming DiLoCo). A leaf
  belongs to one fragment. A number of fragments makes them runs of leaves of
  about equal size, the sequential order of the paper. Regular expressions make
  them of any leaves: `fragments=[r'layers_[036]', r'layers_[147]', '']` is the
  strided order of nine layers, the last fragment with all other leaves. A
  `gs.plan` has the bytes of all fragments, which are sent in `fragments` of the
  `sync_every` steps.

  With `delay` = V the anchor moves at the exchange, and the worker's parameters
  V steps later, to `alpha * params + (1 - alpha) * anchor`. The steps between
  the two then count by the factor alpha. This is the schedule of MaxText,
  except that MaxText begins with its fragment 1, and here fragment 0 is first.
  torchft takes the distance V steps earlier and moves anchor and parameters
  together: the parameters are those of this schedule, V steps earlier.

  With `alpha` > 0 and a scheme that keeps a residual, a worker's compressed
  leaves go back to `anchor - sent` at the exchange, where its own message is.
  What it did not send is then in the residual only, and is sent once. With
  alpha near 1 workers stay far apart, and their residuals grow.

  An exchange is rejected if a worker's parameters are not finite, see
  `gs.compressed_mean`. Anchor and outer optimizer then stay as they were.
  Workers take over the anchor as after any exchange, and numbers that are not
  finite are replaced by it, in all fragments and whatever `alpha` is. The inner
  optimizer's moments may still hold NaN: `optax.apply_if_finite` around it
  keeps NaN out, with a limit above `sync_every`.

  >>> import gradsparse as gs
  >>> tx = gs.outer(gs.dense(axis_name=None), optax.sgd(0.5), sync_every=2)
  >>> params = {'w': jnp.ones(2)}
  >>> state = tx.init(params)
  >>> for _ in range(2):
  ...   params, state = tx.sync({'w': params['w'] + 1.0}, state)
  >>> print(params['w'], state.anchor['w'])
  [2. 2.] [2. 2.]

  Args:
    scheme: a gradsparse scheme over the slow axis, also inside of `gs.sharded`.
    outer: the outer optimizer. A learning rate belongs here, and not before the
      scheme, whose memory it would rescale.
    sync_every: H, steps from one exchange of a leaf to the next, at least 1.
    fragments: F, in how many exchanges the parameters are sent; divides
      `sync_every`. Or F regular expressions; a leaf belongs to the first that
      is found in its path (such as "['layers_3']['kernel']").
    delay: V, steps from an exchange to its effect on the worker's parameters;
      less than `sync_every / fragments`.
    alpha: weight of the worker's own parameters when it takes over the anchor,
      in [0, 1].

  Raises:
    TypeError: an argument is of the wrong kind; from init: a leaf is not
      floating-point.
    ValueError: an argument is out of range, the scheme needs second moments, or
      alpha is not 0 with EF21; from sync: the state is another
      transformation's.

  References:
    Douillard et al., DiLoCo, arXiv 2311.08105, algorithm 1; Douillard et al.,
    Streaming DiLoCo, arXiv 2501.18512.
  """
  if not isinstance(scheme, CompressedMean):
    raise TypeError(
      'scheme must be a gradsparse scheme such as gs.dense(...), got '
      f'{got(scheme)}; other transformations belong to outer'
    )
  guards.check_optimizer('outer', outer, 'gs.outer')
  sync_every = arguments.whole_number('sync_every', sync_every, 1)
  divided, count = _fragments(fragments, sync_every)
  apart = sync_every // count
  delay = arguments.whole_number('delay', delay, 0, apart - 1)
  alpha = arguments.number('alpha', alpha, arguments.FRACTION_OR_ZERO)
  memory = scheme.scheme.memory
  if alpha and memory.floats and not memory.sums:
    raise ValueError(
      f'alpha must be 0 with {scheme.scheme.compressor.name}, whose memory is '
      f'an estimate and keeps nothing to send later, got {alpha:g}'
    )
  # What is not sent must not stay in the memory and in the parameters too.
  goes_back = bool(alpha and memory.floats)
  if memory.facts.moments:
    raise ValueError(
      'scheme must not need second moments, which the distance from an anchor '
      f'has not, got {scheme!r}'
    )
  axis_name = scheme.scheme.axis_name
  outer = optax.with_extra_args_support(outer)

  def begun(anchor):
    """The outer optimizer's state, before the first exchange."""
    parts = [anchor] * count
    if not inputs.is_placeholder(anchor):
      cut = Fragments.of(anchor, divided)
      parts = [cut.pick(anchor, n) for n in range(count)]
    states = tuple(map(outer.init, parts))
    return states[0] if count == 1 else states

  def init(params):
    inputs.check_floating(params, 'parameters')
    anchor = health.widened(params, copy=True)
    return OuterState(jnp.int32(0), anchor, begun(anchor), scheme.init(params))

  def exchanged(cut, number, kept):
    """Parameters and state after a fragment's exchange."""
    params, state = kept
    own, held = cut.pick(params, number), cut.pick(state.anchor, number)
    # The anchor as the parameters' type: a rounding error is no progress.
    gradient = jax.tree.map(
      lambda a, p: a.astype(p.dtype).astype(a.dtype) - p.astype(a.dtype),
      held,
      own,
    )
    layout, comm = scheme.layout(params), Comm(axis_name)
    before = cut.pick_state(state.scheme, number, layout)
    if goes_back:
      mean, after, sent = scheme.step(gradient, before)
      mean, after = comm.unmapped(mean), after.unmapped(comm)
      leaves = range(len(layout.shapes))
      is_dense = layout.tree({i: i in layout.dense for i in leaves})
      own = jax.tree.map(
        lambda p, a, x, dense: (
          p if dense else (a - x.astype(a.dtype)).astype(p.dtype)
        ),
        *(own, held, sent, cut.pick(is_dense, number)),
      )
      params = cut.put(params, own, number)
    else:
      mean, after = scheme.update(gradient, before)
    accepted = after.stats.rejected_steps == before.stats.rejected_steps

    def moved(held_and_old):
      held, old = held_and_old
      updates, new = outer.update(mean, old, held)
      return optax.apply_updates(held, updates), new

    old = state.outer if count == 1 else state.outer[number]
    accepted = comm.uniform(accepted)
    held, new = conditional.changed_if(accepted, moved, (held, old))
    if count > 1:
      states = list(state.outer)
      states[number] = new
      new = tuple(states)
    anchor = cut.put(state.anchor, held, number)
    if count > 1:
      # Otherwise what is not finite would spoil the rest before its turn.
      params = conditional.changed_if(
        ~accepted, functools.partial(finite, comm.local(anchor)), params
      )
    if not delay:
      params = merged(cut, number, comm.local(anchor), params)
    return params, OuterState(
      state.step,
      anchor,
      new,
      cut.put_state(state.scheme, after, number, layout),
    )

  def finite(anchor, params):
    """The parameters, with the anchor's where they are not finite."""
    return jax.tree.map(
      lambda p, a: jnp.where(jnp.isfinite(p), p, a.astype(p.dtype)),
      params,
      anchor,
    )

  def merged(cut, number, anchor, params):
    """The parameters, in which a fragment has taken over the anchor."""

    def one(p, a):
      if not alpha:
        return a.astype(p.dtype)
      wide = p.astype(a.dtype)
      mixed = alpha * wide + (1 - alpha) * a
      # A parameter that is not finite would stay so for ever.
      return jnp.where(jnp.isfinite(wide), mixed, a).astype(p.dtype)

    own, held = cut.pick(params, number), cut.pick(anchor, number)
    return cut.put(params, jax.tree.map(one, own, held), number)

  def sync(updates, state, params=None, **extra):
    """See `outer`; `updates` are the worker's parameters."""
    del extra
    guards.refuse_optax('this transformation')
    if params is not None:
      raise ValueError(
        'sync takes parameters and not gradients, and no third argument: '
        'params, state = tx.sync(params, state)'
      )
    params = updates
    check_own('outer', state, OuterState)
    inputs.check_floating(params, 'parameters')
    inputs.check_like(params, state.anchor, 'parameters', 'those given to init')
    expected: Any = jax.tree.structure(jax.eval_shape(begun, state.anchor))
    if jax.tree.structure(state.outer) != expected:
      raise ValueError(
        'outer needs the state that its own init returned, got that of another '
        'outer optimizer or number of fragments; gs.switch(tx_old, tx_new, '
        'state) carries over the anchor and what is pending'
      )
    comm = Comm(axis_name)
    comm.check_local(params, _NOT_STACKED)
    cut = Fragments.of(params, divided)
    step = state.step + 1
    state = state._replace(step=step, scheme=state.scheme.idle())

    def turn(step, number):
      """Whether it is a fragment's turn at a step, from 1."""
      return (step > 0) & (
        step % sync_every == (number + 1) * apart % sync_every
      )

    for number in range(count):
      with counting.one_of(sync_every):
        params, state = conditional.changed_if(
          turn(step, number),
          functools.partial(exchanged, cut, number),
          (params, state),
        )
    if means_wanted():
      return jax.tree.map(
        lambda p, a: a.astype(p.dtype), params, state.anchor
      ), state
    anchor = comm.local(state.anchor)
    for number in range(count if delay else 0):
      params = conditional.changed_if(
        turn(step - delay, number),
        functools.partial(merged, cut, number, anchor),
        params,
      )
    return params, state

  return Outer.of(init, sync, takes_parameters=True)


def _fragments(
  given: int | Sequence[str], sync_every: int
) -> tuple[int | tuple[str, ...], int]:
  """What `Fragments.of` takes, and how many fragments that is."""
  divided: int | tuple[str, ...]
  if isinstance(given, list | tuple):
    divided = tuple(
      arguments.regular_expression('each of fragments', x) for x in given
    )
    number = len(divided)
  else:
    divided = number = arguments.whole_number('fragments', given, 1, sync_every)
  if not number or sync_every % number:
    raise ValueError(
      f'fragments must divide sync_every={sync_every}, got {number}'
    )
  return divided, number
