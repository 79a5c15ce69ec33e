"""Times the arithmetic of a scheme on this machine's device."""

from __future__ import annotations

import time
from typing import Any

from gradsparse.advise import param_shapes
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import optax

# Parameters that are measured; times of larger models are scaled up.
MOST_ELEMENTS = 30_000_000
_REPEATS = 7


def device() -> str:
  """The name of the measured device."""
  return jax.devices()[0].device_kind


def portion(shapes: Any) -> Any:
  """The first leaves of a tree, at least one, up to MOST_ELEMENTS elements.

  A first leaf that is larger is cut to that many elements, in whole rows.
  """
  kept: list[Any] = []
  for leaf in jax.tree.leaves(shapes):
    if kept and param_shapes.elements([*kept, leaf]) > MOST_ELEMENTS:
      break
    kept.append(leaf)
  if param_shapes.elements(kept) > MOST_ELEMENTS:
    shape = kept[0].shape
    row = max(1, param_shapes.elements(kept) // max(1, shape[0]))
    rows = max(1, MOST_ELEMENTS // row)
    kept = [jax.ShapeDtypeStruct((rows, *shape[1:]), jnp.float32)]
  return kept


def seconds(
  tx: optax.GradientTransformation, shapes: Any, workers: int
) -> float:
  """Time of a step of a scheme less that of a step of momentum SGD.

  A step leads from a gradient to parameters, on one worker. Each collective is
  replaced by copies of the worker's own operand, so that the messages of all
  workers are decoded. The two steps alternate, and the shortest of each counts.

  Args:
    tx: the scheme, over one axis.
    shapes: float32 ShapeDtypeStructs.
    workers: P.

  Returns:
    Seconds, at least 0, without compilation.
  """
  leaves, tree = jax.tree.flatten(shapes)
  keys = jax.random.split(jax.random.key(0), len(leaves))
  grads = jax.tree.unflatten(
    tree,
    [
      jax.random.normal(key, leaf.shape, leaf.dtype)
      for key, leaf in zip(keys, leaves, strict=True)
    ],
  )
  with counting.recording(counting.Recorder(workers, computes=True)):
    steps = [_Step(each, shapes, grads) for each in (tx, optax.trace(0.9))]
  for _ in range(_REPEATS):
    for step in steps:
      step.run()
  scheme, sgd = (min(step.taken[1:]) for step in steps)
  return max(0.0, scheme - sgd)


class _Step:
  """A compiled step, and the times of its runs."""

  def __init__(self, tx: optax.GradientTransformation, shapes: Any, grads: Any):
    def step(params, state, grads):
      updates, state = tx.update(grads, state, params)
      params = jax.tree.map(lambda p, u: p - 0.1 * u, params, updates)
      return params, state

    params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    self._held = params, tx.init(params)
    self._grads = grads
    self._step = (
      jax.jit(step, donate_argnums=(0, 1)).lower(*self._held, grads).compile()
    )
    self.taken: list[float] = []

  def run(self) -> None:
    begin = time.perf_counter()
    self._held = jax.block_until_ready(self._step(*self._held, self._grads))
    self.taken.append(time.perf_counter() - begin)
