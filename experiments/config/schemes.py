"""Schemes by name: their arguments, and the stages of a density's warm-up."""

from collections.abc import Callable, Mapping, Sequence
import inspect
import typing
from typing import Any, NamedTuple

from configs import default
from experiments.program import errors
from experiments.program import factories
import gradsparse as gs
from gradsparse.arguments import did_you_mean
import optax

# Fields of `config.compression` that are not arguments of the factory.
OWN_FIELDS = tuple(default.get_config().compression)


# 'paper': that of the scheme's own paper, DGC's where it has none.
WARMUPS = ('paper', 'dgc', 'gtopk', 'linear_drop_ratio')


Density = float | Callable[[Any], Any] | None


def factory(name: str) -> Callable[..., Any]:
  """Returns the factory of a scheme.

  Args:
    name: of a recipe, or `package.module:factory`, which Python can import and
      which takes `axis_name` as a keyword.

  Raises:
    ConfigError: there is no such factory.
  """
  if name in gs.recipes.RECIPES:
    return gs.recipes.RECIPES[name].factory
  if ':' not in name:
    known = sorted(gs.recipes.RECIPES)
    raise errors.ConfigError(
      f'compression.name must be one of {", ".join(known)} or '
      f'package.module:factory, got {name!r}{did_you_mean(name, known)}'
    )
  return factories.find(
    'compression.name',
    name,
    lambda signature: signature.bind_partial(axis_name=None),
    'a function that takes axis_name as a keyword',
  )


def arguments_of(section: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the factory's keywords in `config.compression`, but None."""
  return {
    name: value
    for name, value in section.items()
    if name not in OWN_FIELDS and value is not None
  }


def needs_moments(made: optax.GradientTransformation) -> bool:
  """Whether a scheme's update takes second moments of per-example gradients."""
  scheme = getattr(made, 'scheme', None)
  return scheme is not None and scheme.memory.facts.moments


def check(section: Mapping[str, Any]) -> optax.GradientTransformation:
  """Returns a scheme, of one worker, if it accepts its arguments.

  Args:
    section: `config.compression`.

  Raises:
    ConfigError: shows the factory's signature.
  """
  scheme, arguments = section['name'], arguments_of(section)
  valid = signature(scheme)
  takes_any = any(p.kind is p.VAR_KEYWORD for p in valid.parameters.values())
  shown = f'its signature is {scheme}{valid}'
  for name in arguments:
    if name == 'axis_name' or (name not in valid.parameters and not takes_any):
      raise errors.ConfigError(
        f'compression.{name} is not an argument of {scheme}'
        f'{did_you_mean(name, [*valid.parameters, *OWN_FIELDS])}; {shown}'
      )
  try:
    made = factory(scheme)(**arguments, axis_name=None)
  except (TypeError, ValueError) as error:
    told = f'compression of {scheme}: {error}; {shown}'
    raise errors.ConfigError(told) from error
  if not (hasattr(made, 'init') and hasattr(made, 'update')):
    raise errors.ConfigError(
      f'compression of {scheme}: the factory must return a transformation, '
      f'returned {made!r}'
    )
  return made


def signature(scheme: str) -> inspect.Signature:
  """Returns what the command line may set: all but the axis name."""
  whole, nothing = inspect.signature(factory(scheme)), inspect.Parameter.empty
  shown = [
    parameter.replace(annotation=nothing)
    for name, parameter in whole.parameters.items()
    if name != 'axis_name'
  ]
  return whole.replace(parameters=shown, return_annotation=nothing)


# --- the density of a run ----------------------------------------------------


class Stage(NamedTuple):
  """Steps with one density, or with one that changes at every step.

  Attributes:
    first_step: counted from 0.
    density: a number; a schedule, where it changes at every step; None where
      the scheme has none.
    given: the density that the scheme's factory gets: a schedule where stages
      share a program, which then follows it.
  """

  first_step: int
  density: Density
  given: Density

  def density_at(self, step: int) -> float | None:
    """Returns the density at a step of this stage, counted from 0."""
    own = self.density
    return float(own(step)) if callable(own) else own


def stages(section: Mapping[str, Any]) -> tuple[Stage, ...]:
  """Returns the stages of a run, the first of which starts at step 0.

  Stages share a program where the scheme takes schedules. A density that
  changes at every step is one stage, and the final density the next, with a
  program of its own.

  Args:
    section: `config.compression`.

  Raises:
    ConfigError: the scheme cannot follow the warm-up.
  """
  scheme, arguments = section['name'], arguments_of(section)
  warmup_steps, warmup = section['warmup_steps'], section['warmup']
  density = arguments.get('density')
  if not warmup_steps:
    return (Stage(0, density, density),)
  if density is None:
    told = 'compression.warmup_steps needs a scheme with a density'
    raise errors.ConfigError(f'{told}; {scheme} has none')
  hints = typing.get_type_hints(factory(scheme))
  fixed = hints.get('density', float) is float
  if warmup == 'linear_drop_ratio':
    if fixed:
      raise errors.ConfigError(
        'compression.warmup=linear_drop_ratio needs a scheme whose density '
        f'may be a schedule; that of {scheme} is one number'
      )
    falling = gs.schedules.LinearDropRatio(1 - density, warmup_steps)
    return (Stage(0, falling, falling), Stage(warmup_steps, density, density))
  if warmup == 'gtopk' or (warmup, scheme) == ('paper', 'gtopk'):
    schedule = gs.schedules.gtopk_warmup(density, warmup_steps)
  else:
    schedule = gs.schedules.dgc_warmup(density, warmup_steps)
  return tuple(
    Stage(first, density, density if fixed else schedule)
    for first, density in schedule.stages
  )


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
  """Returns the stage that `step` belongs to."""
  return [stage for stage in stages if stage.first_step <= step][-1]
