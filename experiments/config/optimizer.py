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

from collections.abc import Callable
from typing import Any

from experiments.config import learning_rate
from experiments.config import schemes
import gradsparse as gs
import ml_collections
import optax

OPTIMIZERS = ('adam', 'sgd')


def make(
  config: ml_collections.ConfigDict,
  rate: Callable[[Any], Any],
  density: float | Callable[[int], Any] | None,
  *,
  axis_name: str | None,
) -> optax.GradientTransformation:
  """Returns the chain from local gradients to updates, of one stage of a run.

  A scheme that takes `momentum` and `nesterov` (DGC) gets the optimizer's, and
  plain SGD follows, unless `config.compression` names a momentum. With Adam
  such a scheme keeps no momentum: residual accumulation, then Adam after the
  exchange. No paper defines that combination; this is ours.

  Args:
    config: see `configs/default.py`.
    rate: of learning, a function of the step.
    density: of the stage; None where the scheme has none.
    axis_name: of the workers.

  Raises:
    ValueError: the scheme refuses its arguments, or the local gradient.
  """
  compression, section = config.compression, config.optimizer
  every, momentum, nesterov = (
    section.accumulate,
    section.momentum,
    section.nesterov,
  )
  arguments = schemes.arguments_of(compression)
  if density is not None:
    arguments['density'] = _at_exchange(density, every)
  if {'momentum', 'nesterov'} <= {
    *schemes.signature(compression.name).parameters
  }:
    inside = momentum if section.name == 'sgd' else 0.0
    arguments.setdefault('momentum', inside)
    arguments.setdefault('nesterov', nesterov and bool(inside))
    momentum, nesterov = 0.0, False
  exchange = schemes.factory(compression.name)(**arguments, axis_name=axis_name)
  moments = schemes.needs_moments(exchange)
  if compression.local_gradient:
    exchange = gs.local_gradient(exchange, compression.local_gradient)
  decay, clip = [], []
  if section.weight_decay:
    decay = [optax.add_decayed_weights(section.weight_decay)]
  if compression.clip_norm:
    clip = [gs.clip_local_norm(compression.clip_norm, axis_name=axis_name)]
  if section.decay_after_exchange or moments:
    chain = [*clip, exchange, *decay]
  else:
    chain = [*decay, *clip, exchange]
  rate = _at_exchange(rate, every)
  if section.name == 'adam':
    after = optax.adam(rate)
  else:
    after = optax.sgd(rate, momentum or None, nesterov=nesterov)
  if section.schedule == 'plateau':
    after = optax.chain(after, learning_rate.follow_tests())
  return gs.accumulate(
    optax.chain(*chain, gs.skip_rejected(after)), every=every
  )


def _at_exchange(schedule: Any, accumulate: int) -> Any:
  """Returns a function of the step as one of the exchanges done before it.

  A number stays a number.
  """
  if accumulate == 1 or not callable(schedule):
    return schedule
  if isinstance(schedule, gs.schedules.DensitySchedule):
    # Of stages that begin before the same exchange the last one stays.
    stages = {-(-first // accumulate): d for first, d in schedule.stages}
    return gs.schedules.DensitySchedule(tuple(stages.items()))
  # As a float: the last exchange that int32 can count is asked for, too.
  return lambda exchanges: schedule(exchanges * float(accumulate))
