"""Schedules of density: the papers' warm-ups.

A `DensitySchedule` can be used in two ways. Passed to a recipe, one compiled
program holds every stage: a ladder of message sizes. Or the training loop
rebuilds the recipe with each stage's density and keeps the state, which does
not depend on density. The second way suits a long run: its program holds one
message size.

  for first_step, density in schedule.stages:
    tx = gs.dgc(density, axis_name='workers')   # same opt_state goes on

A recipe also takes any other function of the step, or a traced density.
`ladder_of` lists the message sizes of that program.
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

# The density at this step is a schedule's last density.
LAST_STEP = arguments.LAST_STEP

# The message sizes for a density that is known at run time only.
TRACED_LADDER = (0.001, 0.004, 0.015625, 0.0625, 0.25, 1.0)
_LARGEST_FACTOR = 4


@dataclasses.dataclass(frozen=True)
class DensitySchedule:
  """Density that is constant in stages.

  >>> import gradsparse as gs
  >>> schedule = gs.schedules.DensitySchedule(((0, 0.25), (100, 0.01)))
  >>> schedule.at(99), schedule.at(100), schedule.ladder
  (0.25, 0.01, (0.01, 0.25))

  Attributes:
    stages: (first step, density) pairs, ascending by step, from step 0.

  Raises:
    TypeError: stages are not pairs of a whole number and a number.
    ValueError: stages do not begin at step 0 and ascend, or a density is not in
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
    object.__setattr__(self, 'stages', stages)  # the class is frozen

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
    """Density at a step, a Python number.

    Raises:
      TypeError: the step is not a whole number.
      ValueError: the step is negative.
    """
    step = arguments.whole_number('step', step, 0)
    return [d for s, d in self.stages if s <= step][-1]


def staged_warmup(
  densities: Sequence[float], final_density: float, warmup_steps: int
) -> DensitySchedule:
  """Equal stages of `densities` within the warm-up, then the final density.

  Densities that are not above the final one are dropped. The n others share
  the warm-up: stage i begins at step floor(i * warmup_steps / n), so that the
  lengths differ by one step at most. With fewer steps than stages, there is one
  stage for each step, and the last of `densities` is among them.

  >>> import gradsparse as gs
  >>> gs.schedules.staged_warmup((0.5, 0.1), 0.01, warmup_steps=30).stages
  ((0, 0.5), (15, 0.1), (30, 0.01))

  Args:
    densities: the stages' densities, fractions.
    final_density: density after the warm-up, in (0, 1].
    warmup_steps: steps that the stages share; 0 is no warm-up.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: warmup_steps is negative, or a density is out of range.
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
  """DGC's warm-up: 0.25, 0.0625, 0.015625, 0.004, then the final density.

  The stages share the warm-up equally: 4 of 164 epochs for CIFAR-10, 1 of 40
  for PTB. Stages that are not above the final density are dropped
  (`staged_warmup`).

  >>> import gradsparse as gs
  >>> gs.schedules.dgc_warmup(0.01, warmup_steps=30).stages
  ((0, 0.25), (10, 0.0625), (20, 0.015625), (30, 0.01))

  Args:
    final_density: density after the warm-up, in (0, 1].
    warmup_steps: steps of the whole warm-up, often about a fortieth of the run.
      0, the default, is no warm-up.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Lin et al., arXiv 1712.01887, sections 3.3 and 4.1.
  """
  return staged_warmup(DGC_DENSITIES, final_density, warmup_steps)


def gtopk_warmup(
  final_density: float = 0.001, warmup_steps: int = 0
) -> DensitySchedule:
  """gTop-k's warm-up: 0.25, 0.0725, 0.015, 0.004 in the first four epochs.

  Stages that are not above the final density are dropped, and the others
  share the four epochs (`staged_warmup`): PTB at 0.005 has three stages.

  >>> import gradsparse as gs
  >>> gs.schedules.gtopk_warmup(0.005, warmup_steps=30).stages
  ((0, 0.25), (10, 0.0725), (20, 0.015), (30, 0.005))

  Args:
    final_density: density after the warm-up, in (0, 1].
    warmup_steps: steps of the whole warm-up; 0, the default, is no warm-up.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Shi et al., arXiv 1901.04359, section IV.
  """
  return staged_warmup(GTOPK_DENSITIES, final_density, warmup_steps)


@dataclasses.dataclass(frozen=True)
class LinearDropRatio:
  """The local-gradient paper's warm-up: R_t = R min(1, t / T).

  The text prints max(1, t / T), which would be R from the first step on.

  >>> import gradsparse as gs
  >>> density = gs.schedules.LinearDropRatio(0.75, warmup_steps=4)
  >>> [float(density(step)) for step in (0, 2, 4)]
  [1.0, 0.625, 0.25]

  Attributes:
    drop_ratio: R, the fraction dropped after the warm-up, in [0, 1).
    warmup_steps: T, at least 1.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Aji, Heafield & Bogoychev, "Combining global sparse gradients with local
    gradients", section 5.1.
  """

  drop_ratio: float = 0.99
  warmup_steps: int = 1000

  def __post_init__(self):
    ratio = arguments.number(
      'drop_ratio', self.drop_ratio, arguments.LESS_THAN_ONE
    )
    steps = arguments.whole_number('warmup_steps', self.warmup_steps, 1)
    object.__setattr__(self, 'drop_ratio', ratio)  # the class is frozen
    object.__setattr__(self, 'warmup_steps', steps)

  @property
  def ladder(self) -> tuple[float, ...]:
    """Densities from the one after the warm-up to the first, which is 1."""
    return ladder_up(1 - self.drop_ratio)

  def __call__(self, step: jax.Array | int) -> jax.Array:
    """Density 1 - R_t at a step, float32 scalar."""
    # Not 1 - R: in float32 that could exceed the ladder's own 1 - R.
    to_go = 1 - jnp.minimum(1.0, step / self.warmup_steps)
    return (1 - self.drop_ratio) + self.drop_ratio * to_go


def ladder_up(density: float) -> tuple[float, ...]:
  """Densities from `density` to 1 by equal factors of at most 4.

  >>> import gradsparse as gs
  >>> gs.schedules.ladder_up(0.0625)
  (0.0625, 0.25, 1.0)

  Raises:
    TypeError: density is not a number.
    ValueError: density is not in (0, 1].
  """
  density = arguments.number('density', density, arguments.FRACTION)
  factors = math.ceil(math.log(1 / density, _LARGEST_FACTOR) - 1e-9)
  return (*(density ** (1 - i / factors) for i in range(factors)), 1.0)


def ladder_of(density: Callable[[Any], Any] | jax.Array) -> tuple[float, ...]:
  """The message sizes of a program whose density changes, as densities.

  A step uses the smallest that is not below its density, or else the largest.
  It sends as many coordinates as its own density says; the rest of the message
  is empty.

  >>> import gradsparse as gs
  >>> gs.schedules.ladder_of(gs.schedules.dgc_warmup(0.01, warmup_steps=30))
  (0.01, 0.015625, 0.0625, 0.25)

  Args:
    density: a function of the step, or a traced scalar. A function's attribute
      `ladder` is used if there is one. Otherwise the densities lead from its
      value at `LAST_STEP` to 1, by factors of at most 4, so that after a
      warm-up messages have the size of a fixed density. They are
      `TRACED_LADDER` if that value is traced (`optax.inject_hyperparams`; pass
      the schedule itself to do better) or not in (0, 1] (a schedule that fades
      after the run).

  Returns:
    Densities, smallest first.

  Raises:
    TypeError: the attribute `ladder` is not a sequence of numbers.
    ValueError: the attribute `ladder` is empty, or not within (0, 1].
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
  except jax.errors.ConcretizationTypeError:  # the function reads a tracer
    return TRACED_LADDER
  return ladder_up(last) if 0 < last <= 1 else TRACED_LADDER


def _decimal(x: float) -> float:
  """The shortest decimal that is x in float32: 0.1, not 0.100000001."""
  return float(str(np.float32(x)))


def look_up(
  number_at: Callable[[jax.Array], jax.Array], steps: Sequence[int]
) -> list[int]:
  """Evaluates an integer function of the step at `steps`, outside a trace.

  >>> import gradsparse as gs
  >>> gs.schedules.look_up(lambda step: step // 10, [0, 9, 25])
  [0, 0, 2]

  Raises:
    TypeError: number_at is not a function.
  """
  arguments.function('number_at', number_at)
  with jax.ensure_compile_time_eval():
    numbers = jax.vmap(number_at)(jnp.asarray(steps, jnp.int32))
    return np.asarray(numbers).tolist()


def changes(
  number_at: Callable[[jax.Array], jax.Array],
) -> tuple[tuple[int, int], ...]:
  """Finds the steps at which an integer function of the step changes.

  Each of the first 65,536 steps is evaluated. Later changes are found by
  bisection between powers of two. Bisection finds all changes of a function
  that is monotonic between them, and none if the function is equal at both.

  >>> import gradsparse as gs
  >>> gs.schedules.changes(lambda step: 3 * (step >= 100))
  ((0, 0), (100, 3))

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
