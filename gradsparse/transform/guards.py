"""Compositions that hang, skip the averaging, or do something twice.

Such mistakes are made in the code around a scheme. A scheme does not see that
code, but it sees who called it: these checks read the Python stack, once,
while tracing. They refuse what would go wrong, and warn of what is right but
wasteful or done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
import sys
import types
from typing import Any
import warnings

import jax
import optax


def _optax_frames() -> Iterator[types.FrameType]:
  """Frames of optax on the stack, the innermost first."""
  frame: types.FrameType | None = sys._getframe(1)
  while frame is not None:
    if frame.f_globals.get('__name__', '').startswith('optax'):
      yield frame
    frame = frame.f_back


def _optax_callers() -> list[str]:
  """Names of the functions of optax on the stack, the innermost first."""
  return [f.f_code.co_qualname.split('.')[0] for f in _optax_frames()]


def only_shapes_wanted() -> bool:
  """Whether optax.MultiSteps asks for the shapes of an update it skips.

  It does so by `eval_shape`, in which no exchange must be counted.
  """
  return any(
    frame.f_code.co_qualname.startswith('MultiSteps.')
    and frame.f_code.co_name == '_skip_update'
    for frame in _optax_frames()
  )


def _multi_steps() -> optax.MultiSteps | None:
  """The optax.MultiSteps around us, if there is one."""
  for frame in _optax_frames():
    around = frame.f_locals.get('self')
    if isinstance(around, optax.MultiSteps):
      return around
  return None


def _is_every_step(around: optax.MultiSteps) -> bool:
  """Whether an optax.MultiSteps was given every_k_schedule=1."""
  schedule = around._every_k_schedule
  given = not schedule.__qualname__.startswith('MultiSteps.')
  return not given and schedule(0) == 1


def _skips_by_gradient() -> bool:
  """Whether an optax.MultiSteps around us was given a rule when to skip."""
  around = _multi_steps()
  if around is None:
    return False
  rule = around._should_skip_update_fn
  return not rule.__qualname__.startswith('MultiSteps.')


# They run what is inside in some steps only.
_SELDOM = frozenset({'conditionally_transform', 'conditionally_mask'})


def refuse_conditional() -> None:
  """`optax.apply_if_finite(scheme)` would leave workers waiting for others.

  So would MultiSteps with a rule such as `optax.skip_not_finite`. Others skip a
  step on all workers alike, and its gradients with it.

  Raises:
    ValueError: our update is traced inside one of them.
  """
  callers = _optax_callers()
  seldom = [name for name in callers if name in _SELDOM]
  if seldom:
    raise ValueError(
      f'a gradsparse scheme cannot run inside optax.{seldom[0]}: in a step '
      'that it skips nobody averages the gradients, or they are lost. '
      'gs.accumulate(tx, every=k) exchanges on every k-th step and keeps what '
      'the others bring; put other conditions around the optimizer after the '
      'scheme.'
    )
  if 'apply_if_finite' in callers or _skips_by_gradient():
    raise ValueError(
      'a gradsparse scheme cannot run inside optax.apply_if_finite or '
      'optax.MultiSteps(should_skip_update_fn=...): one worker with a NaN '
      'would skip the exchange while the others wait for it. '
      'gs.skip_rejected can be around a scheme, or around what follows it: '
      'optax.chain(gs.dgc(...), gs.skip_rejected(optax.sgd(lr))). The scheme '
      'itself rejects a step with a non-finite gradient on all workers '
      'together.'
    )


def refuse_masked(tree: Any) -> None:
  """`optax.masked(scheme)` passes the other leaves' local gradients on.

  Raises:
    ValueError: some leaves are masked, and not by optax.partition.
  """

  def is_masked(x):
    return isinstance(x, optax.MaskedNode)

  leaves = jax.tree.leaves(tree, is_leaf=is_masked)
  if not any(map(is_masked, leaves)):
    return
  # optax.partition masks by optax.masked, and leaves no leaf out.
  callers = _optax_callers()
  by_hand = [
    outer
    for inner, outer in zip(callers, [*callers[1:], ''], strict=True)
    if inner == 'masked' and outer != 'partition'
  ]
  if by_hand or 'partition' not in callers:
    raise ValueError(
      'optax.masked around a gradsparse scheme leaves the masked leaves '
      'without anybody to average them: workers would drift apart. Use '
      "optax.partition({'a': gs.dgc(...), 'b': gs.dense(...)}, labels), and "
      'optax.set_to_zero() in place of gs.dense for those that are frozen.'
    )


# Fields in which optax accumulates updates: momentum, and the first moment of
# Adam and its kin.
_MOMENTA = {'trace', 'mu'}


def _following_states() -> Iterator[Any]:
  """States of what follows us in the chains that we are called from."""
  for frame in _optax_frames():
    name, own = frame.f_code.co_qualname, frame.f_locals
    if name == 'chain.<locals>.update_fn':
      yield list(own.get('state', ()))[len(own.get('new_state', ())) + 1 :]
    elif name == 'named_chain.<locals>.update_fn':
      done = {*own.get('new_state', ()), own.get('name')}
      yield [x for link, x in own.get('state', {}).items() if link not in done]


def _second_momentum(grads: Any) -> str | None:
  """The state, after us, that accumulates what we return for these leaves."""

  def accumulates(x):
    return bool(_MOMENTA.intersection(getattr(x, '_fields', ())))

  def paths(tree):
    return {path for path, _ in jax.tree_util.tree_leaves_with_path(tree)}

  own = paths(grads)
  for state in jax.tree.leaves(list(_following_states()), is_leaf=accumulates):
    if accumulates(state):
      fields = _MOMENTA.intersection(state._fields)
      if any(own & paths(getattr(state, field)) for field in fields):
        return type(state).__name__
  return None


class Warner:
  """Warns of what surrounds one transformation; says each thing once."""

  def __init__(self) -> None:
    self._said: set[str] = set()

  def _warn(self, text: str) -> None:
    if text not in self._said:
      self._said.add(text)
      warnings.warn(text, UserWarning, stacklevel=3)

  def multi_steps(self, moments: bool) -> None:
    """Our update is traced inside optax.MultiSteps.

    Args:
      moments: whether it takes a second moment.
    """
    around = _multi_steps()
    if around is None or _is_every_step(around):
      return
    if moments:
      self._warn(
        'optax.MultiSteps around a gradsparse scheme runs an exchange on every '
        'mini-step and drops all but the last, and hands on the second moment '
        'of the last mini-batch alone: of k, whose mean has a k-th of it, so '
        'less is sent than should be. gs.accumulate(tx, every=k) adds up both '
        'gradients and second moments.'
      )
    else:
      self._warn(
        'optax.MultiSteps around a gradsparse scheme runs an exchange on every '
        'mini-step and drops all but the last: updates are right, but nothing '
        'is saved. gs.accumulate(tx, every=k) gives the same updates and '
        'exchanges on every k-th mini-step only.'
      )

  def second_momentum(self, momentum: Any, grads: Any) -> None:
    """Our memory has a momentum, and so has the optimizer after us.

    Args:
      momentum: of our memory; nothing is said where it is traced.
      grads: tree of the leaves that we average.
    """
    if isinstance(momentum, jax.core.Tracer) or not momentum:
      return
    second = _second_momentum(grads)
    if second:
      self._warn(
        f'momentum correction (momentum={momentum}) is followed by a second '
        f'momentum ({second}): the gradient is accumulated twice. Use '
        'optax.sgd(lr) without momentum after gs.dgc, or '
        'gs.dgc(momentum=0.0) before Adam or another momentum.'
      )
