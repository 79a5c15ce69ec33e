"""The optimizer that a configuration asks for, and its learning rate.

The optimizer chain of every experiment, in the order of the update:

  weight decay -> local clipping -> compressed exchange -> optimizer

Weight decay belongs on the local gradient, before a memory sees it: the
gradient of an L2 penalty is a gradient like any other (but not for the
variance-based schemes, whose moments it would spoil: there it comes after the
exchange, as their paper says). The optimizer comes after the exchange; for a
scheme with a momentum of its own (DGC) it is plain SGD, because a second
momentum would count twice. It does not see a step that was rejected. With
`optimizer.accumulate` all of it happens once in several steps, with the mean of
their gradients. With `optimizer.sync_every` the exchange is not of gradients:

  clipping -> optimizer, of each worker alone -> outer step, with the exchange

How the learning rate falls (`optimizer.schedule`):

  constant    not at all
  cosine      to 0 at the end of the run
  steps       to a tenth after a half, to a hundredth after three quarters
  milestones  by `lr_decay_factor` after each of some epochs
  periodic    by `lr_decay_factor` after every so many epochs: halved every 25
              (the variance paper's momentum SGD), annealed each epoch
  plateau     by `lr_decay_factor` when `patience` tests in a row have found no
              smaller loss than those before; how far it has fallen is a part of
              the optimizer's state

Beside that it may rise linearly to its first value at the beginning of the run
(Goyal et al. 2017, arXiv 1706.02677), and be smaller while the density falls
(DGC, section 3.3; gTop-k, section IV-B).
"""

from collections.abc import Callable
import itertools
import math
from typing import Any

from experiments.config import schemes
from experiments.program import errors
import gradsparse as gs
import jax
import jax.numpy as jnp
import ml_collections
import optax

OPTIMIZERS = ('adam', 'adamw', 'muon', 'sgd')
_B2 = 0.95  # of adamw and muon: a usual value for transformers
# Learning rates that do not depend on how long the run is, and those that do.
FREE_OF_LENGTH = ('constant', 'milestones', 'periodic', 'plateau')
SCHEDULES = (*FREE_OF_LENGTH, 'cosine', 'steps')


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
  every = section.accumulate
  momentum, nesterov = section.momentum, section.nesterov
  arguments = schemes.arguments_of(compression)
  if density is not None:
    arguments['density'] = _at_exchange(density, every)
  taken = schemes.signature(compression.name).parameters
  if 'momentum' in taken and 'nesterov' in taken:
    # In an outer step, momentum is that of the workers' own optimizers.
    moves = section.name == 'sgd' and not section.sync_every
    inside = momentum if moves else 0.0
    arguments.setdefault('momentum', inside)
    arguments.setdefault('nesterov', nesterov and bool(inside))
    if moves:
      momentum, nesterov = 0.0, False
  exchange = schemes.factory(compression.name)(**arguments, axis_name=axis_name)
  moments = schemes.needs_moments(exchange)
  if compression.local_gradient:
    exchange = gs.local_gradient(exchange, compression.local_gradient)
  chain = [exchange]
  if norm := compression.clip_norm:
    chain.insert(0, gs.clip_local_norm(norm, axis_name=axis_name))
  if section.weight_decay and section.name in ('adam', 'sgd'):
    last = section.decay_after_exchange or moments
    decay = optax.add_decayed_weights(section.weight_decay)
    chain.insert(len(chain) if last else 0, decay)
  rate = _at_exchange(rate, every)
  if section.name == 'sgd':
    after = optax.sgd(rate, momentum or None, nesterov=nesterov)
  else:
    after = _adaptive(section.name, rate, section.weight_decay)
  if section.schedule == 'plateau':
    # Its updates are multiplied by what `fall` leaves of this.
    follow = optax.inject_hyperparams(
      lambda plateau_scale: optax.scale(plateau_scale)
    )
    after = optax.chain(after, follow(plateau_scale=1.0))
  if section.sync_every:
    return _with_outer_steps(section, norm, after, exchange)
  chain.append(gs.skip_rejected(after))
  return gs.accumulate(optax.chain(*chain), every=every)


def _adaptive(name, rate, weight_decay) -> optax.GradientTransformation:
  """Returns Adam, AdamW or Muon."""

  def matrices(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)

  def dimensions(params):
    def of(path, x):
      inside = x.ndim == 2 and 'embedding' not in jax.tree_util.keystr(path)
      return optax.contrib.MuonDimensionNumbers() if inside else None

    return jax.tree.map_with_path(of, params)

  if name == 'adam':
    return optax.adam(rate)
  if name == 'adamw':
    return optax.adamw(rate, b2=_B2, weight_decay=weight_decay, mask=matrices)
  return optax.contrib.muon(
    rate,
    weight_decay=weight_decay,
    adam_b2=_B2,
    muon_weight_dimension_numbers=dimensions,
    # Then both parts do well at one rate: an update has the size of AdamW's.
    consistent_rms=0.2,
  )


def _with_outer_steps(section, clip_norm, after, exchange) -> gs.Outer:
  """Returns a worker's optimizer and the outer step, as one transformation.

  Its update takes gradients and returns parameters.

  Args:
    section: `config.optimizer`.
    clip_norm: of a worker's gradient; 0: any.
    after: the worker's optimizer.
    exchange: the scheme of the outer step.
  """
  inner = gs.skip_rejected(after)
  if clip_norm:
    inner = optax.chain(optax.clip_by_global_norm(clip_norm), inner)
  momentum = section.outer_momentum
  rate = section.outer_learning_rate
  moves = optax.sgd(rate, momentum or None, nesterov=bool(momentum))
  outer = gs.outer(exchange, moves, sync_every=section.sync_every)

  def init(params):
    return inner.init(params), outer.init(params)

  def update(grads, state, params=None, **extra):
    del extra
    alone, shared = state
    updates, alone = inner.update(grads, alone, params)
    params, shared = outer.sync(optax.apply_updates(params, updates), shared)
    return params, (alone, shared)

  return gs.Outer.of(init, update)


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


def learning_rate(
  config: ml_collections.ConfigDict, steps_per_epoch: int
) -> Callable[[Any], Any]:
  """Returns the learning rate as a function of the step, counted from 0.

  With 'plateau' it is the rate before the first test.

  Args:
    config: see `configs/default.py`.
    steps_per_epoch: steps in which all examples are seen.
  """
  section, steps = config.optimizer, config.train.steps
  base, decay = config.train.learning_rate, section.lr_decay_factor
  period = max(1, round(section.decay_epochs * steps_per_epoch))
  epochs = milestones(section.milestones)
  after = {round(epoch * steps_per_epoch): decay for epoch in epochs}
  drops = {steps // 2: 0.1, steps * 3 // 4: 0.1}
  schedule = {
    'cosine': optax.cosine_decay_schedule(base, steps),
    'steps': optax.piecewise_constant_schedule(base, drops),
    'milestones': optax.piecewise_constant_schedule(base, after),
    'periodic': optax.exponential_decay(base, period, decay, staircase=True),
  }.get(section.schedule, optax.constant_schedule(base))
  rises, first = section.linear_warmup_steps, section.linear_warmup_from
  factor, density_steps = section.warmup_factor, config.compression.warmup_steps

  def at(step):
    rate = schedule(step)
    if rises:
      risen = jnp.minimum(step / rises, 1.0)
      rate = rate * (first + (1 - first) * risen)
    if factor != 1:
      rate = rate * jnp.where(step < density_steps, factor, 1.0)
    return rate

  return at


def milestones(text: str) -> tuple[float, ...]:
  """Returns the epochs that a field names, such as `'81,122'`.

  Raises:
    ConfigError: they are no rising positive numbers.
  """
  try:
    epochs = tuple(float(word) for word in text.split(',') if text)
  except ValueError:
    epochs = (math.nan,)
  if not all(a < b for a, b in itertools.pairwise((0.0, *epochs, math.inf))):
    raise errors.ConfigError(
      'optimizer.milestones must be rising epochs > 0 with commas between '
      f"them, such as '81,122', got {text!r}"
    )
  return epochs


def fall(opt_state: Any, decay: float) -> Any:
  """Returns the state of an optimizer whose updates are smaller by a factor."""
  before = optax.tree.get(opt_state, 'plateau_scale')
  # It stays on the devices on which it is.
  after = jax.jit(lambda x: decay * x, out_shardings=before.sharding)(before)
  return optax.tree.set(opt_state, plateau_scale=after)
