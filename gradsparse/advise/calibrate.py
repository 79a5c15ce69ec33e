"""How long the arithmetic of a scheme takes on this machine's device."""

from __future__ import annotations

import time
from typing import Any

from gradsparse.advise import shapes as shapes_of
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import optax

# Of what is measured at once; more parameters are scaled up from so many.
MOST_ELEMENTS = 30_000_000
_REPEATS = 7


def device() -> str:
  """What is measured on, in words."""
  return jax.devices()[0].device_kind


def portion(shapes: Any) -> Any:
  """The first leaves of a tree, at least one, up to MOST_ELEMENTS.

  Of a single leaf that is larger, as many rows.
  """
  kept: list[Any] = []
  for leaf in jax.tree.leaves(shapes):
    if kept and shapes_of.elements([*kept, leaf]) > MOST_ELEMENTS:
      break
    kept.append(leaf)
  if shapes_of.elements(kept) > MOST_ELEMENTS:
    shape = kept[0].shape
    row = max(1, shapes_of.elements(kept) // max(1, shape[0]))
    rows = max(1, MOST_ELEMENTS // row)
    kept = [jax.ShapeDtypeStruct((rows, *shape[1:]), jnp.float32)]
  return kept


def seconds(
  tx: optax.GradientTransformation, shapes: Any, workers: int
) -> float:
  """By how much a step of a scheme is longer than one of momentum SGD.

  A step leads from a gradient to parameters, on one worker. Each collective is
  replaced by copies of the worker's own operand, so that the messages of all
  workers are decoded. Both steps take turns, and the shortest of each counts.

  Args:
    tx: the scheme, over one axis.
    shapes: float32 ShapeDtypeStructs.
    workers: P.

  Returns:
    Seconds, at least 0; compilation left out.
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
  """A step that is compiled, and how long it took each time."""

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
