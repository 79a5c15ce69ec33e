"""Schedules of density: the papers' warm-ups.

A `DensitySchedule` can be used in two ways. Passed to a recipe, one compiled
program holds every stage (a ladder of message sizes). Or the training loop
rebuilds the recipe with each stage's density on the same state, which never
depends on density: no switch in the steady state, and what a long run wants.

  for first_step, density in schedule.stages:
    tx = gs.dgc(density, axis_name='workers')   # same opt_state goes on
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from gradsparse import arguments
import jax
import jax.numpy as jnp

# Sparsity 75, 93.75, 98.4375, 99.6 % (Lin et al., section 4.1).
DGC_DENSITIES = (0.25, 0.0625, 0.015625, 0.004)
# Shi et al., section IV (0.0725 as printed).
GTOPK_DENSITIES = (0.25, 0.0725, 0.015, 0.004)


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
    """Density at a step, outside of a program."""
    return [d for s, d in self.stages if s <= step][-1]


def staged_warmup(
  densities: Sequence[float], final_density: float, warmup_steps: int
) -> DensitySchedule:
  """Equal stages of `densities` within the warm-up, then the final density.

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
    for density in densities
  ]
  stages = []
  for i, density in enumerate(densities):
    first = i * warmup_steps // len(densities)
    last = (i + 1) * warmup_steps // len(densities)
    if last > first and density > final_density:
      stages.append((first, float(density)))
  begin = warmup_steps if stages else 0
  return DensitySchedule((*stages, (begin, float(final_density))))


def dgc_warmup(
  final_density: float = 0.001, warmup_steps: int = 0
) -> DensitySchedule:
  """DGC's: 0.25, 0.0625, 0.015625, 0.004, then the final density.

  The stages share the warm-up: 4 of 164 epochs for CIFAR-10, 1 of 40 for PTB.

  References:
    Lin et al., arXiv 1712.01887, sections 3.3 and 4.1.
  """
  return staged_warmup(DGC_DENSITIES, final_density, warmup_steps)


def gtopk_warmup(
  final_density: float = 0.001, warmup_steps: int = 0
) -> DensitySchedule:
  """gTop-k's: 0.25, 0.0725, 0.015, 0.004 in the first four epochs.

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
    arguments.number('drop_ratio', self.drop_ratio, arguments.LESS_THAN_ONE)
    arguments.whole_number('warmup_steps', self.warmup_steps, 1)

  def __call__(self, step: jax.Array | int) -> jax.Array:
    """Density 1 - R_t at a step, float32 scalar."""
    return 1 - self.drop_ratio * jnp.minimum(1.0, step / self.warmup_steps)
