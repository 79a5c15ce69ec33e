"""Warm-up of the density: the stages of a run, with a program for each."""

from collections.abc import Callable, Mapping, Sequence
import typing
from typing import Any, NamedTuple

from experiments.program import errors
import gradsparse as gs
from gradsparse.arguments import did_you_mean

# 'paper': that of the scheme's own paper, DGC's where it has none.
WARMUPS = ('paper', 'dgc', 'gtopk', 'linear_drop_ratio')


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


def stages_of(
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
