"""From names in a configuration to gradient transformations.

The optimizer chain of every experiment, in the order of the update:

  weight decay -> local clipping -> compressed exchange -> optimizer

Weight decay belongs on the local gradient, before a memory sees it: the
gradient of an L2 penalty is a gradient like any other (but not for the
variance-based schemes, whose moments it would spoil: there it comes after the
exchange, as their paper says). The optimizer comes
after the exchange; for a scheme with a momentum of its own (DGC) it is plain
SGD, because a second momentum would count twice.
"""

from collections.abc import Callable, Mapping, Sequence
import difflib
import inspect
import typing
from typing import Any, NamedTuple

from experiments import errors
import gradsparse as gs
import jax.numpy as jnp
import optax

OPTIMIZERS = ('adam', 'sgd')
SCHEDULES = ('constant', 'cosine', 'steps')
# 'paper': that of the scheme's own paper, DGC's where it has none.
WARMUPS = ('paper', 'dgc', 'gtopk', 'linear_drop_ratio')
# Fields of `config.compression` that are not arguments of the factory.
OWN_FIELDS = (
  'name',
  'warmup',
  'warmup_steps',
  'clip_norm',
  'local_gradient',
  'average_every',
  'microbatch',
)
# Schemes whose update takes second moments of per-example gradients.
NEED_MOMENTS = ('variance_based', 'variance_strom')


class Stage(NamedTuple):
  """Steps during which the program stays the same.

  Attributes:
    first_step: counted from 0.
    density: a number; a schedule, where it changes inside the program; None
      where the scheme has none.
  """

  first_step: int
  density: float | Callable[[int], Any] | None

  def density_at(self, step: int) -> float | None:
    """Returns the density at a step of this stage, counted from 0."""
    if callable(self.density):
      return float(self.density(step))
    return self.density


def check_arguments(scheme: str, arguments: Mapping[str, Any]) -> None:
  """Raises unless the scheme exists and accepts the arguments.

  Args:
    scheme: name of a recipe.
    arguments: its keywords, without `axis_name`.

  Raises:
    ConfigError: names the valid schemes, or shows the factory's signature.
  """
  known = gs.recipes.RECIPES
  if scheme not in known:
    raise errors.ConfigError(
      f'unknown compression.name {scheme!r}{did_you_mean(scheme, known)}; '
      f'valid names: {", ".join(sorted(known))}'
    )
  valid = signature(scheme)
  shown = f'{scheme}{valid}'
  for name in arguments:
    if name not in valid.parameters:
      raise errors.ConfigError(
        f'compression.{name} is not an argument of {scheme}'
        f'{did_you_mean(name, [*valid.parameters, *OWN_FIELDS])}; '
        f'its signature is {shown}'
      )
  try:
    known[scheme].factory(**arguments, axis_name=None)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(
      f'compression of {scheme}: {error}; its signature is {shown}'
    ) from error


def signature(scheme: str) -> inspect.Signature:
  """Returns what the command line may set: all but the axis name."""
  whole = inspect.signature(gs.recipes.RECIPES[scheme].factory)
  return whole.replace(
    parameters=[
      parameter.replace(annotation=inspect.Parameter.empty)
      for parameter in whole.parameters.values()
      if parameter.name != 'axis_name'
    ],
    return_annotation=inspect.Signature.empty,
  )


def did_you_mean(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
  """Returns a hint such as `' (did you mean "dgc"?)'`, or nothing."""
  close = difflib.get_close_matches(name, list(known), n=1)
  return f' (did you mean "{close[0]}"?)' if close else ''


def warmup_stages(
  scheme: str,
  arguments: Mapping[str, Any],
  warmup_steps: int,
  warmup: str = 'paper',
) -> tuple[Stage, ...]:
  """Returns the stages of a run, the first of which starts at step 0.

  A density that changes at every step is one stage, whose program follows the
  schedule; the final density has a program of its own after it.

  Args:
    scheme: name of a recipe.
    arguments: its keywords.
    warmup_steps: steps before the final density is reached; 0 for none.
    warmup: one of `WARMUPS`.

  Raises:
    ConfigError: an unknown warm-up, or one that the scheme cannot follow.
  """
  if warmup not in WARMUPS:
    raise errors.ConfigError(
      f'compression.warmup must be one of {", ".join(WARMUPS)}, '
      f'got {warmup!r}{did_you_mean(warmup, WARMUPS)}'
    )
  density = arguments.get('density')
  if not warmup_steps:
    return (Stage(0, density),)
  if warmup_steps < 0:
    raise errors.ConfigError(
      f'compression.warmup_steps must be 0 (off) or more, got {warmup_steps}'
    )
  if density is None:
    raise errors.ConfigError(
      f'compression.warmup_steps needs a scheme with a density; {scheme} has '
      'none'
    )
  if warmup == 'linear_drop_ratio':
    factory = gs.recipes.RECIPES[scheme].factory
    if typing.get_type_hints(factory)['density'] is float:
      raise errors.ConfigError(
        'compression.warmup=linear_drop_ratio needs a scheme whose density '
        f'may be a schedule; that of {scheme} is one number'
      )
    falling = gs.schedules.LinearDropRatio(1 - density, warmup_steps)
    return (Stage(0, falling), Stage(warmup_steps, density))
  if warmup == 'paper':
    warmup = 'gtopk' if scheme == 'gtopk' else 'dgc'
  staged = {
    'dgc': gs.schedules.dgc_warmup,
    'gtopk': gs.schedules.gtopk_warmup,
  }
  schedule = staged[warmup](density, warmup_steps)
  return tuple(Stage(int(first), float(d)) for first, d in schedule.stages)


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
  """Returns the stage that `step` belongs to."""
  return [stage for stage in stages if stage.first_step <= step][-1]


def learning_rate_schedule(
  name: str,
  learning_rate: float,
  steps: int,
  *,
  warmup_steps: int = 0,
  warmup_factor: float = 1.0,
) -> Callable[[Any], Any]:
  """Returns the learning rate as a function of the step.

  Args:
    name: `'constant'`; `'cosine'`, which decays to 0; `'steps'`, which
      divides by ten after a half and after three quarters of the run.
    learning_rate: at the start.
    steps: length of the run.
    warmup_steps: steps of the density's warm-up.
    warmup_factor: what the schedule is multiplied by during these.

  Raises:
    ConfigError: an unknown name.
  """
  if name == 'constant':
    schedule = optax.constant_schedule(learning_rate)
  elif name == 'cosine':
    schedule = optax.cosine_decay_schedule(learning_rate, max(steps, 1))
  elif name == 'steps':
    drops = {steps // 2: 0.1, steps * 3 // 4: 0.1}
    schedule = optax.piecewise_constant_schedule(learning_rate, drops)
  else:
    raise errors.ConfigError(
      f'optimizer.schedule must be one of {", ".join(SCHEDULES)}, got {name!r}'
    )
  if warmup_factor == 1:
    return schedule
  return lambda step: (
    jnp.where(step < warmup_steps, warmup_factor, 1.0) * schedule(step)
  )


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
  clip_norm: float = 0.0,
  local_gradient: str = '',
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
    weight_decay: factor of the L2 penalty's gradient, on each worker.
    clip_norm: threshold of `gs.clip_local_norm`; 0 for none.
    local_gradient: mode of `gs.local_gradient` around the scheme, or ''.

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
  if 'momentum' in signature(scheme).parameters:
    inside = momentum if optimizer == 'sgd' else 0.0
    arguments.setdefault('momentum', inside)
    arguments.setdefault('nesterov', nesterov and bool(inside))
    momentum, nesterov = 0.0, False
  chain = []
  decay_first = scheme not in NEED_MOMENTS
  if weight_decay and decay_first:
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
  if weight_decay and not decay_first:
    chain.append(optax.add_decayed_weights(weight_decay))
  if optimizer == 'adam':
    chain.append(optax.adam(learning_rate))
  else:
    chain.append(optax.sgd(learning_rate, momentum or None, nesterov=nesterov))
  return optax.chain(*chain)
