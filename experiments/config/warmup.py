"""Warm-up of the density: the stages of a run, and their programs."""

from collections.abc import Callable, Mapping, Sequence
import typing
from typing import Any, NamedTuple

from experiments.config import schemes
from experiments.program import errors
import gradsparse as gs

# 'paper': that of the scheme's own paper, DGC's where it has none.
WARMUPS = ('paper', 'dgc', 'gtopk', 'linear_drop_ratio')


Density = float | Callable[[Any], Any] | None


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
    if callable(self.density):
      return float(self.density(step))
    return self.density


def stages_of(
  scheme: str,
  arguments: Mapping[str, Any],
  warmup_steps: int,
  warmup: str = 'paper',
) -> tuple[Stage, ...]:
  """Returns the stages of a run, the first of which starts at step 0.

  Stages share a program where the scheme takes schedules. A density that
  changes at every step is one stage, and the final density the next, with a
  program of its own.

  Args:
    scheme: name of a recipe.
    arguments: its keywords.
    warmup_steps: steps before the final density is reached; 0 for none.
    warmup: one of `WARMUPS`.

  Raises:
    ConfigError: the scheme cannot follow the warm-up.
  """
  density = arguments.get('density')
  if not warmup_steps:
    return (Stage(0, density, density),)
  if density is None:
    raise errors.ConfigError(
      f'compression.warmup_steps needs a scheme with a density; {scheme} has '
      'none'
    )
  hints = typing.get_type_hints(schemes.factory(scheme))
  fixed = hints.get('density', float) is float
  if warmup == 'linear_drop_ratio':
    if fixed:
      raise errors.ConfigError(
        'compression.warmup=linear_drop_ratio needs a scheme whose density '
        f'may be a schedule; that of {scheme} is one number'
      )
    falling = gs.schedules.LinearDropRatio(1 - density, warmup_steps)
    return (Stage(0, falling, falling), Stage(warmup_steps, density, density))
  if warmup == 'paper':
    warmup = 'gtopk' if scheme == 'gtopk' else 'dgc'
  if warmup == 'gtopk':
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


def exchanged_at(stages: Sequence[Stage], step: int, every: int) -> Stage:
  """Returns the stage whose density the exchange at a step has.

  Args:
    stages: of the run.
    step: counted from 0.
    every: steps that an exchange is for. A program that follows a schedule
      reads it at the first of them.
  """
  if callable(stages[-1].given):
    step = step // every * every
  return stage_at(stages, step)
