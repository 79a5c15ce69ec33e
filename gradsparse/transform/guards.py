"""Refuses compositions with optax that hang or skip the averaging.

A scheme does not see the code around it, but it sees its callers: these checks
read the Python stack, once, during tracing. They refuse compositions that would
fail, and warn of those that are correct but wasteful, or apply momentum twice.
"""

from __future__ import annotations

from collections.abc import Iterator
import sys
import types
from typing import Any
import warnings

from gradsparse import arguments
from gradsparse.sockets import MemoryFacts
from gradsparse.state.inspection import is_masked
import jax
import optax

# Transformations that run their inner one in some steps only.
_SELDOM = frozenset({'conditionally_transform', 'conditionally_mask'})
# Fields in which optax accumulates updates: momentum, and the first moment of
# Adam and its kin.
_MOMENTA = frozenset({'trace', 'mu'})


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
  """Whether optax.MultiSteps traces this update only for its shapes.

  That trace, by `eval_shape`, must count no exchange.
  """
  names = [f.f_code.co_qualname for f in _optax_frames()]
  return any(
    n.startswith('MultiSteps.') and n.endswith('._skip_update') for n in names
  )


def refuse_outer(name: str, inside: str) -> None:
  """Refuses an outer step inside of another transformation.

  Raises:
    ValueError: always.
  """
  raise ValueError(
    f'{name} must take gradients, but gs.outer takes and returns parameters, '
    f'and cannot be inside of {inside}. Call it after the inner optimizer: '
    'params, state = tx.sync(params, state)'
  )


def refuse_optax(name: str) -> None:
  """Refuses an outer step that is traced inside of optax's transformations.

  Raises:
    ValueError: one of optax's functions is a caller.
  """
  callers = _optax_callers()
  if callers:
    refuse_outer(name, f'optax.{callers[0]}')


def check_optimizer(name: str, tx: Any, inside: str) -> None:
  """Checks a transformation of gradients that another one has inside.

  Raises:
    TypeError: it is no optax transformation.
    ValueError: it is an outer step.
  """
  arguments.instance(name, tx, optax.GradientTransformation)
  if hasattr(tx, 'sync'):
    refuse_outer(name, inside)


def check_update(facts: MemoryFacts, grads: Any, said: set[str]) -> None:
  """Checks the transformations around an update, and those beside it.

  In `optax.apply_if_finite(scheme)`, or in MultiSteps with a rule such as
  `optax.skip_not_finite`, workers would wait for each other forever. Other
  transformations skip a step on all workers, and lose its gradients.

  Args:
    facts: of the memory.
    grads: tree of the leaves that the scheme averages.
    said: warnings of this transformation so far; each is given once.

  Raises:
    ValueError: the update is traced inside one that skips steps.
  """
  callers = _optax_callers()
  seldom = [name for name in callers if name in _SELDOM]
  if seldom:
    raise ValueError(
      f'a gradsparse scheme cannot run inside optax.{seldom[0]}: in a step '
      'that it skips, gradients are not averaged, or are lost. '
      'gs.accumulate(tx, every=k) exchanges on every k-th step and adds up the '
      'gradients of the others; put other conditions around the optimizer '
      'after the scheme.'
    )
  selves = [frame.f_locals.get('self') for frame in _optax_frames()]
  around = [x for x in selves if isinstance(x, optax.MultiSteps)][:1]
  if 'apply_if_finite' in callers or any(
    _is_given(x._should_skip_update_fn) for x in around
  ):
    raise ValueError(
      'a gradsparse scheme cannot run inside optax.apply_if_finite or '
      'optax.MultiSteps(should_skip_update_fn=...): one worker with a NaN '
      'would skip the exchange while the others wait for it. '
      'Use gs.skip_rejected around a scheme, or around the optimizer after it: '
      'optax.chain(gs.dgc(...), gs.skip_rejected(optax.sgd(lr))). The scheme '
      'itself rejects a step with a non-finite gradient on all workers '
      'together.'
    )
  texts = []
  for x in around:
    schedule: Any = x._every_k_schedule
    if _is_given(schedule) or schedule(0) != 1:
      texts.append(_EVERY_MINI_STEP + _WHAT_FOR[facts.moments])
  momentum = facts.momentum
  if not isinstance(momentum, jax.core.Tracer) and momentum:
    second = _second_momentum(grads)
    if second:
      texts.append(
        f'momentum correction (momentum={momentum}) has a second momentum '
        f'({second}) beside it: momentum is applied twice. Use '
        'optax.sgd(lr) without momentum after gs.dgc, or '
        'gs.dgc(momentum=0.0) with Adam or another momentum.'
      )
  for text in texts:
    if text not in said:
      said.add(text)
      warnings.warn(text, UserWarning, stacklevel=2)


_EVERY_MINI_STEP = (
  'optax.MultiSteps around a gradsparse scheme runs an exchange on every '
  'mini-step and drops all but the last'
)
# By whether the scheme takes second moments.
_WHAT_FOR = {
  False: ': updates are right, but nothing is saved. gs.accumulate(tx, '
  'every=k) gives the same updates and exchanges on every k-th mini-step only.',
  True: ', and passes on the second moment of the last mini-batch alone, which '
  'is k times that of the mean of k gradients, so too little is sent. '
  'gs.accumulate(tx, every=k) accumulates both gradients and second moments.',
}


def _is_given(function: Any) -> bool:
  """Whether a function of optax.MultiSteps is the user's own."""
  return not getattr(function, '__qualname__', '').startswith('MultiSteps.')


def refuse_masked(tree: Any) -> None:
  """Refuses `optax.masked(scheme)`, which does not average the masked leaves.

  Raises:
    ValueError: leaves are masked, and not by optax.partition.
  """
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
      'without averaging, so that workers would drift apart. Use '
      "optax.partition({'a': gs.dgc(...), 'b': gs.dense(...)}, labels), and "
      'optax.set_to_zero() in place of gs.dense for those that are frozen.'
    )


def _second_momentum(grads: Any) -> str | None:
  """The type of another state with momentum of these leaves, or None."""
  others: list[Any] = []
  for frame in _optax_frames():
    name, own = frame.f_code.co_qualname, frame.f_locals
    if name == 'chain.<locals>.update_fn':
      here = len(own.get('new_state', ()))
      others += [x for n, x in enumerate(own.get('state', ())) if n != here]
    elif name == 'named_chain.<locals>.update_fn':
      links = own.get('state', {}).items()
      others += [x for link, x in links if link != own.get('name')]

  def accumulates(x):
    return bool(_MOMENTA.intersection(getattr(x, '_fields', ())))

  def paths(tree):
    return {path for path, _ in jax.tree_util.tree_leaves_with_path(tree)}

  own_paths = paths(grads)
  for state in jax.tree.leaves(others, is_leaf=accumulates):
    for field in _MOMENTA.intersection(getattr(state, '_fields', ())):
      if own_paths & paths(getattr(state, field)):
        return type(state).__name__
  return None
