"""What schemes promise for a large model; programs of few and many leaves."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import inspect
import time
from typing import Any

from experiments.program import errors
from experiments.studies.large_models import model
from experiments.studies.large_models import steps
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

_COLUMNS = 128  # of each leaf of a tree

TREES = {
  'dense': gs.dense,
  'gradient_dropping': functools.partial(gs.gradient_dropping, 0.001),
  **steps.SCHEMES,
  'qsgd': functools.partial(gs.qsgd, 7, min_size=0),
}


def _by_leaf() -> Iterator[tuple[str, gs.CompressedMean]]:
  """Every recipe that need not select from all leaves together."""
  for name, recipe in gs.recipes.RECIPES.items():
    scopes = {name: {}}
    if 'scope' in inspect.signature(recipe.factory).parameters:
      scopes = {name: {'scope': 'leaf'}, f'{name}_chunk': {'scope': 'chunk'}}
    for label, scope in scopes.items():
      # gTop-k has one scope, all leaves.
      with contextlib.suppress(ValueError):
        tx = recipe.make(axis_name=gs.workers.AXIS, **scope)
        if not tx.scheme.compressor.selects_globally:
          yield label, tx


def planned(
  transformer: model.Transformer, workers: int
) -> list[dict[str, Any]]:
  """Each such recipe's plan, and how long it took to make."""
  shapes, rows = transformer.shapes(), []
  for name, tx in _by_leaf():
    begin = time.perf_counter()
    plan = gs.plan(tx, shapes, workers)
    rows.append(
      {
        'scheme': name,
        'seconds': round(time.perf_counter() - begin, 1),
        'payload_bytes': plan.payload_bytes,
        'ratio': round(plan.ratio, 1),
      }
    )
  return rows


def tree(leaves: int, elements: int) -> dict[str, Any]:
  """Shapes of as many matrices, all of one size.

  Raises:
    ConfigError: there are not enough elements.
  """
  rows = elements // (leaves * _COLUMNS)
  if rows < 1:
    raise errors.ConfigError(
      f'--elements must be at least {_COLUMNS} a leaf, {_COLUMNS * leaves} for '
      f'{leaves}, got {elements}'
    )
  leaf = jax.ShapeDtypeStruct((rows, _COLUMNS), jnp.float32)
  return {f'{number:05}': leaf for number in range(leaves)}


def compile_tree(name: str, leaves: int, elements: int) -> dict[str, Any]:
  """Seconds of CPU to compile a scheme's update on two devices.

  Other work on the machine makes no difference to these.

  Args:
    name: of `TREES`.
    leaves: of the tree.
    elements: of all of them together.
  """
  params, workers = tree(leaves, elements), 2
  tx = TREES[name](axis_name=gs.workers.AXIS)
  own = gs.workers.specs(tx, params, workers)
  grads = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((workers, *x.shape), x.dtype), params
  )
  state = jax.eval_shape(lambda p: gs.workers.init(tx, p, workers), params)
  program = gs.workers.parallel(
    lambda grads, state: tx.update(grads, state),
    runner='shard_map',
    num_workers=workers,
    in_specs=(P(gs.workers.AXIS), own),
    out_specs=(P(), own),
  )
  begin = time.process_time()
  lowered = program.lower(grads, state)
  middle = time.process_time()
  lowered.compile()
  end = time.process_time()
  return {
    'scheme': name,
    'leaves': leaves,
    'trace_cpu_seconds': round(middle - begin, 1),
    'compile_cpu_seconds': round(end - middle, 1),
    'program_bytes': len(lowered.as_text()),
  }
