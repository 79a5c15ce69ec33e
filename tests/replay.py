"""A scheme on simulated workers, step by step, as the oracles see it.

Oracles take and give `trees[w][leaf]`; these helpers draw gradients in that
form, run a scheme over them, and hand its results back in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gradsparse as gs
from gradsparse.sockets import ownership
import jax
from jax.sharding import PartitionSpec as P
import numpy as np

AXIS = gs.workers.AXIS
OWN = P(AXIS)

# A kernel, a vector, a scalar and a matrix: 252 numbers, in no tidy order.
SHAPES = ((6, 5, 4), (11,), (), (12, 10))
STEPS = 4

# Programs that run for microseconds: half the time to compile.
QUICKLY = {'xla_backend_optimization_level': 0}

Trees = list[list[np.ndarray]]


class Step(NamedTuple):
  """One step of all workers.

  Attributes:
    grads: grads[w][leaf], what went in.
    moments: moments[w][leaf], the second moments that went with it.
    mean: mean[leaf], what came back.
    delivered: delivered[w][leaf].
    pending: pending[w][leaf], after the step.
    metrics: of the state after the step.
    state: after the step, with worker axes.
  """

  grads: Trees
  moments: Trees
  mean: list[np.ndarray]
  delivered: Trees
  pending: Trees
  metrics: dict[str, float]
  state: Any


def draw(num_workers: int, *, seed: int, shapes=SHAPES) -> Trees:
  """Normal gradients; magnitudes differ a lot within a leaf."""
  rng = np.random.default_rng([seed, num_workers])

  def leaf(shape):
    scale = 2.0 ** rng.integers(-3, 2, shape)
    return np.asarray(scale * rng.normal(size=shape), np.float32)

  return [[leaf(s) for s in shapes] for _ in range(num_workers)]


def draw_moments(grads: Trees, *, seed: int) -> Trees:
  """Second moments that a batch of 2..20 examples could have had."""
  rng = np.random.default_rng([seed, len(grads), 1])
  return [
    [np.asarray(g**2 * rng.uniform(0.1, 2, g.shape), np.float32) for g in tree]
    for tree in grads
  ]


def stack(trees: Trees) -> list[np.ndarray]:
  return [np.stack(leaves) for leaves in zip(*trees, strict=True)]


def unstack(tree: Any) -> Trees:
  leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
  return [[x[w] for x in leaves] for w in range(leaves[0].shape[0])]


def specs_of(state: Any) -> Any:
  """Of a scheme's state, as its classes say; `workers.specs` traces a step."""
  return jax.tree.map(
    lambda own: OWN if own else P(), ownership.is_local(state)
  )


def stacked(state: Any, specs: Any, num_workers: int) -> Any:
  """With worker axes where specs say so."""
  return jax.tree.map(
    lambda x, spec: gs.workers.stack(x, num_workers) if spec else x,
    state,
    specs,
  )


def replay(tx: gs.CompressedMean, steps: list[tuple[Trees, Trees]]):
  """Runs a scheme under `simulate`.

  Args:
    tx: a scheme over AXIS.
    steps: gradients and second moments of each step.

  Yields:
    Step.
  """
  num_workers = len(steps[0][0])
  params = [np.zeros(np.shape(g), np.float32) for g in steps[0][0][0]]
  state = tx.init(params)
  specs = specs_of(state)
  # By NumPy: JAX would compile a program for each shape.
  state = jax.tree.map(
    lambda x, spec: np.stack([x] * num_workers) if spec else x, state, specs
  )
  fn = gs.workers.parallel(
    lambda state, g, m: tx.step(g, state, second_moment=m),
    runner='simulate',
    num_workers=num_workers,
    in_specs=(specs, OWN, OWN),
    out_specs=(P(), specs, OWN),
    check_vma=False,  # types are checked where all settings meet all laws
  )
  lowered = fn.lower(state, *map(stack, steps[0]))
  fn = lowered.compile(QUICKLY)
  for grads, moments in steps:
    mean, state, delivered = fn(state, stack(grads), stack(moments))
    pending = gs.pending(state)
    if not state.owes():
      # Without memory there is no worker axis: everybody owes nothing.
      pending = gs.workers.stack(pending, num_workers)
    yield Step(
      grads,
      moments,
      [np.asarray(x) for x in mean],
      unstack(delivered),
      unstack(pending),
      {k: float(v) for k, v in gs.metrics(state).items()},
      state,
    )


def drawn_steps(num_workers: int, *, count: int = STEPS, shapes=SHAPES):
  """Gradients and second moments of a few steps."""
  out = []
  for t in range(count):
    grads = draw(num_workers, seed=t, shapes=shapes)
    out.append((grads, draw_moments(grads, seed=t)))
  return out
