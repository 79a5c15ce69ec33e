"""The optimizer that a configuration asks for.

The optimizer chain of every experiment, in the order of the update:

  weight decay -> local clipping -> compressed exchange -> optimizer

Weight decay belongs on the local gradient, before a memory sees it: the
gradient of an L2 penalty is a gradient like any other (but not for the
variance-based schemes, whose moments it would spoil: there it comes after the
exchange, as their paper says). The optimizer comes after the exchange; for a
scheme with a momentum of its own (DGC) it is plain SGD, because a second
momentum would count twice. It hears nothing of a step that was rejected. With
`optimizer.accumulate` all of it happens once in several steps, with the mean of
their gradients.
"""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.config import plateau
from experiments.config import schemes
from experiments.program import errors
import gradsparse as gs
import ml_collections
import optax

OPTIMIZERS = ('adam', 'sgd')


def make_transformation(
  scheme: str,
  arguments: Mapping[str, Any],
  *,
  axis_name: str,
  optimizer: str,
  learning_rate: Callable[[Any], Any],
  momentum: float,
  nesterov: bool = False,
  weight_decay: float = 0.0,
  decay_after_exchange: bool = False,
  clip_norm: float = 0.0,
  local_gradient: str = '',
  accumulate: int = 1,
  follow_plateau: bool = False,
) -> optax.GradientTransformation:
  """Returns the chain from local gradients to updates.

  A scheme that takes a `momentum` (DGC) gets the optimizer's, and plain SGD
  follows, unless its arguments name one. With Adam such a scheme keeps no
  momentum: residual accumulation, then Adam after the exchange. No paper
  defines that combination; this is ours.

  Args:
    scheme: name of a recipe.
    arguments: its keywords, without `axis_name`.
    axis_name: of the workers.
    optimizer: `'sgd'` or `'adam'`.
    learning_rate: schedule, a function of the step.
    momentum: factor of the heavy ball; Adam's first decay is its own 0.9.
    nesterov: whether the momentum is Nesterov's.
    weight_decay: factor of the L2 penalty's gradient.
    decay_after_exchange: whether that is added after the exchange, as it always
      is for schemes with second moments, or to each worker's gradient before.
    clip_norm: threshold of `gs.clip_local_norm`; 0 for none.
    local_gradient: mode of `gs.local_gradient` around the scheme, or ''.
    accumulate: steps whose gradients are averaged before the chain sees them.
      Schedules are functions of the step all the same.
    follow_plateau: whether `plateau.observe` changes the learning rate.

  Raises:
    ConfigError: an unknown optimizer or mode.
  """
  if optimizer not in OPTIMIZERS:
    raise errors.ConfigError(
      f'optimizer.name must be one of {", ".join(OPTIMIZERS)}, '
      f'got {optimizer!r}'
    )
  factory = gs.recipes.RECIPES[scheme].factory
  arguments = dict(arguments)
  if callable(arguments.get('density')):
    arguments['density'] = _at_exchange(arguments['density'], accumulate)
  learning_rate = _at_exchange(learning_rate, accumulate)
  if 'momentum' in schemes.signature(scheme).parameters:
    inside = momentum if optimizer == 'sgd' else 0.0
    arguments.setdefault('momentum', inside)
    arguments.setdefault('nesterov', nesterov and bool(inside))
    momentum, nesterov = 0.0, False
  chain = []
  decay_last = decay_after_exchange or scheme in schemes.NEED_MOMENTS
  if weight_decay and not decay_last:
    chain.append(optax.add_decayed_weights(weight_decay))
  if clip_norm:
    chain.append(gs.clip_local_norm(clip_norm, axis_name=axis_name))
  exchange = factory(**arguments, axis_name=axis_name)
  if local_gradient:
    try:
      exchange = gs.local_gradient(exchange, local_gradient)
    except ValueError as error:
      raise errors.ConfigError(
        f'compression.local_gradient: {error}'
      ) from error
  chain.append(exchange)
  if weight_decay and decay_last:
    chain.append(optax.add_decayed_weights(weight_decay))
  if optimizer == 'adam':
    after = optax.adam(learning_rate)
  else:
    after = optax.sgd(learning_rate, momentum or None, nesterov=nesterov)
  if follow_plateau:
    after = optax.chain(after, plateau.scale_updates())
  chain.append(gs.skip_rejected(after))
  return gs.accumulate(optax.chain(*chain), every=accumulate)


def _at_exchange(
  schedule: Callable[[Any], Any], accumulate: int
) -> Callable[[Any], Any]:
  """Returns a function of the step as one of the exchanges done before it."""
  if accumulate == 1:
    return schedule
  if isinstance(schedule, gs.schedules.DensitySchedule):
    # Of stages that begin before the same exchange the last one stays.
    stages = {-(-first // accumulate): d for first, d in schedule.stages}
    return gs.schedules.DensitySchedule(tuple(stages.items()))
  # As a float: the last exchange that int32 can count is asked for, too.
  return lambda exchanges: schedule(exchanges * float(accumulate))


def from_config(
  config: ml_collections.ConfigDict,
  learning_rate: Callable[[Any], Any],
  density: float | Callable[[int], Any] | None,
  *,
  axis_name: str,
) -> optax.GradientTransformation:
  """Returns the chain of one stage of a run.

  Args:
    config: see `configs/default.py`.
    learning_rate: schedule, a function of the step.
    density: of the stage; None where the scheme has none.
    axis_name: of the workers.
  """
  arguments = schemes.arguments_of(config.compression)
  if density is not None:
    arguments['density'] = density
  return make_transformation(
    config.compression.name,
    arguments,
    axis_name=axis_name,
    optimizer=config.optimizer.name,
    learning_rate=learning_rate,
    momentum=config.optimizer.momentum,
    nesterov=config.optimizer.nesterov,
    weight_decay=config.optimizer.weight_decay,
    decay_after_exchange=config.optimizer.decay_after_exchange,
    clip_norm=config.compression.clip_norm,
    local_gradient=config.compression.local_gradient,
    accumulate=config.optimizer.accumulate,
    follow_plateau=config.optimizer.schedule == 'plateau',
  )
