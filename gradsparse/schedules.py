"""Schedules of density: the papers' warm-ups.

A `DensitySchedule` can be used in two ways. Passed to a recipe, one compiled
program holds every stage (a ladder of message sizes). Or the training loop
rebuilds the recipe with each stage's density on the same state, which never
depends on density: no switch in the steady state, and what a long run wants.

  for first_step, density in schedule.stages:
    tx = gs.dgc(density, axis_name='workers')   # same opt_state goes on

A recipe also takes any other function of the step, or a traced density.
`ladder_of` lists the message sizes that its program then holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from gradsparse import arguments
import jax
import jax.numpy as jnp
import numpy as np

# Sparsity 75, 93.75, 98.4375, 99.6 % (Lin et al., section 4.1).
DGC_DENSITIES = (0.25, 0.0625, 0.015625, 0.004)
# Shi et al., section IV (0.0725 as printed).
GTOPK_DENSITIES = (0.25, 0.0725, 0.015, 0.004)

# A schedule ends with what it says at this one.
LAST_STEP = arguments.LAST_STEP

# For a density of which nothing is known before the program runs.
TRACED_LADDER = (0.001, 0.004, 0.015625, 0.0625, 0.25, 1.0)
_LARGEST_FACTOR = 4


@dataclasses.dataclass(frozen=True)
class DensitySchedule:
  """Density that is constant in stages.

  Attributes:
    stages: (first step, density) pairs, ascending by step, from step 0.

  Raises:
    TypeError: stages are not pairs of a whole number and a number.
    ValueError: they do not begin at step 0 and ascend, or a density is out of
      (0, 1].
  """

  stages: tuple[tuple[int, float], ...]

  def __post_init__(self):
    try:
      pairs = [(step, density) for step, density in self.stages]
    except (TypeError, ValueError) as e:
      raise TypeError(
        f'stages must be (first step, density) pairs, got {self.stages!r}'
      ) from e
    stages = tuple(
      (
        arguments.whole_number('the first step of a stage', step, 0),
        arguments.number('the density of a stage', density, arguments.FRACTION),
      )
      for step, density in pairs
    )
    steps = [step for step, _ in stages]
    if not steps or steps[0] != 0 or sorted(set(steps)) != steps:
      raise ValueError(
        f'stages must begin at step 0 and ascend, got first steps {steps}'
      )
    object.__setattr__(self, 'stages', stages)  # plain numbers; frozen

  @property
  def ladder(self) -> tuple[float, ...]:
    """The distinct densities, smallest first."""
    return tuple(sorted({density for _, density in self.stages}))

  def __call__(self, step: jax.Array | int) -> jax.Array:
    """Density at a step, float32 scalar."""
    first = jnp.asarray([s for s, _ in self.stages])
    densities = jnp.asarray([d for _, d in self.stages], jnp.float32)
    return densities[jnp.sum(first <= step) - 1]

  def at(self, step: int) -> float:
    """Density at a step, outside of a program.

    Raises:
      TypeError: the step is no whole number.
      ValueError: it is negative.
    """
    step = arguments.whole_number('step', step, 0)
    return [d for s, d in self.stages if s <= step][-1]


def staged_warmup(
  densities: Sequence[float], final_density: float, warmup_steps: int
) -> DensitySchedule:
  """Equal stages of `densities` within the warm-up, then the final density.

  Stages whose density is not above the final one are not used. The n that
  remain share all of the warm-up: stage i begins at step
  floor(i * warmup_steps / n), so that their lengths differ by one step at
  most. With fewer steps than stages, there is one stage for each step, and
  the last of `densities` is among them.

  Args:
    densities: density of each stage, fractions.
    final_density: density after the warm-up, in (0, 1].
    warmup_steps: steps that the stages share; 0 is no warm-up.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: a negative number of steps, or a density out of range.
  """
  warmup_steps = arguments.whole_number('warmup_steps', warmup_steps, 0)
  final_density = arguments.number(
    'final_density', final_density, arguments.FRACTION
  )
  densities = [
    arguments.number('each of densities', density, arguments.FRACTION)
    for density in arguments.sequence('densities', densities)
  ]
  used = [density for density in densities if density > final_density]
  firsts = [i * warmup_steps // len(used) for i in range(len(used))]
  # A stage without a step begins where the next one does, which replaces it.
  stages = dict(zip(firsts, used, strict=True))
  stages[warmup_steps if used else 0] = final_density
  return DensitySchedule(tuple(stages.items()))


def dgc_warmup(
  final_density: float = 0.001, warmup_steps: int = 0
) -> DensitySchedule:
  """DGC's: 0.25, 0.0625, 0.015625, 0.004, then the final density.

  The stages share the warm-up: 4 of 164 epochs for CIFAR-10, 1 of 40 for PTB.
  Those that are not above the final density are not used (`staged_warmup`).

  References:
    Lin et al., arXiv 1712.01887, sections 3.3 and 4.1.
  """
  return staged_warmup(DGC_DENSITIES, final_density, warmup_steps)


def gtopk_warmup(
  final_density: float = 0.001, warmup_steps: int = 0
) -> DensitySchedule:
  """gTop-k's: 0.25, 0.0725, 0.015, 0.004 in the first four epochs.

  Those that are not above the final density are not used, and the others
  share the four epochs (`staged_warmup`): PTB at 0.005 has three.

  References:
    Shi et al., arXiv 1901.04359, section IV.
  """
  return staged_warmup(GTOPK_DENSITIES, final_density, warmup_steps)


@dataclasses.dataclass(frozen=True)
class LinearDropRatio:
  """The local-gradient paper's warm-up: R_t = R min(1, t / T).

  The text prints max(1, t / T), which would be R from the first step on.

  Attributes:
    drop_ratio: R, the fraction dropped after the warm-up, in [0, 1).
    warmup_steps: T.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Aji et al., section 5.1.
  """

  drop_ratio: float = 0.99
  warmup_steps: int = 1000

  def __post_init__(self):
    ratio = arguments.number(
      'drop_ratio', self.drop_ratio, arguments.LESS_THAN_ONE
    )
    steps = arguments.whole_number('warmup_steps', self.warmup_steps, 1)
    object.__setattr__(self, 'drop_ratio', ratio)  # plain numbers; frozen
    object.__setattr__(self, 'warmup_steps', steps)

  @property
  def ladder(self) -> tuple[float, ...]:
    """From the density after the warm-up to 1, where it begins."""
    return ladder_up(1 - self.drop_ratio)

  def __call__(self, step: jax.Array | int) -> jax.Array:
    """Density 1 - R_t at a step, float32 scalar."""
    # Not 1 - R: in float32 that could exceed the ladder's own 1 - R.
    to_go = 1 - jnp.minimum(1.0, step / self.warmup_steps)
    return (1 - self.drop_ratio) + self.drop_ratio * to_go


def ladder_up(density: float) -> tuple[float, ...]:
  """From a density to 1 by equal factors of at most 4, smallest first.

  Raises:
    TypeError: the density is no number.
    ValueError: it is out of (0, 1].
  """
  density = arguments.number('density', density, arguments.FRACTION)
  factors = math.ceil(math.log(1 / density, _LARGEST_FACTOR) - 1e-9)
  return (*(density ** (1 - i / factors) for i in range(factors)), 1.0)


def ladder_of(density: Callable[[Any], Any] | jax.Array) -> tuple[float, ...]:
  """Densities for which a program that reads the density holds a message.

  A step takes the smallest that is not below its density, or else the largest.
  The coordinates sent are those of the density itself; room that is left over
  travels empty.

  Args:
    density: a function of the step, or a traced scalar. A function may have
      an attribute `ladder` that lists them. Otherwise they lead from its last
      density (its value at `LAST_STEP`) to 1, by factors of at most 4, so
      that after a warm-up messages have the size of a fixed density. Where the
      last density is traced (`optax.inject_hyperparams`; give the recipe the
      schedule itself to do better), or is none that can be used (a schedule
      that fades after the run), they are `TRACED_LADDER`.

  Returns:
    Densities, smallest first.

  Raises:
    TypeError: its own ladder is no sequence of numbers.
    ValueError: that ladder is empty, or not within (0, 1].
  """
  if hasattr(density, 'ladder'):
    name = 'the ladder of a schedule'
    ladder = arguments.sequence(name, density.ladder)
    if not ladder:
      raise ValueError(f'{name} must have a density, got ()')
    rungs = {arguments.number(name, x, arguments.FRACTION) for x in ladder}
    return tuple(sorted(rungs))
  if not callable(density):
    return TRACED_LADDER
  try:
    with jax.ensure_compile_time_eval():
      last = density(jnp.int32(LAST_STEP))
      last = last if isinstance(last, float) else _decimal(float(last))
  except jax.errors.ConcretizationTypeError:  # a function of what is traced
    return TRACED_LADDER
  return ladder_up(last) if 0 < last <= 1 else TRACED_LADDER


def _decimal(x: float) -> float:
  """The shortest decimal that is x in float32: 0.1, and not 0.100000001."""
  return float(str(np.float32(x)))


def look_up(
  number_at: Callable[[jax.Array], jax.Array], steps: Sequence[int]
) -> list[int]:
  """An integer function of the step, outside of a program."""
  arguments.function('number_at', number_at)
  with jax.ensure_compile_time_eval():
    numbers = jax.vmap(number_at)(jnp.asarray(steps, jnp.int32))
    return np.asarray(numbers).tolist()


def changes(
  number_at: Callable[[jax.Array], jax.Array],
) -> tuple[tuple[int, int], ...]:
  """Where an integer function of the step changes.

  Every one of the first 65,536 steps is looked at. After them, changes are
  found by halving the way from one power of two to the next: all of a function
  that only falls or only rises on that way, but nothing of one that has come
  back at its end.

  Returns:
    (first step, number) pairs, from step 0.
  """
  later = (1 << j for j in range(16, 31))
  steps = [*range(1 << 16), *later, LAST_STEP]
  numbers = look_up(number_at, steps)
  found = [(0, numbers[0])]
  for i in range(1, len(steps)):
    low = steps[i - 1]
    while found[-1][1] != numbers[i]:
      now, high = found[-1][1], steps[i]
      while high - low > 1:
        middle = (low + high) // 2
        same = look_up(number_at, [middle]) == [now]
        low, high = (middle, high) if same else (low, middle)
      found.append((high, *look_up(number_at, [high])))
      low = high
  return tuple(found)
