"""What schemes promise for a large model; programs of few and many leaves."""

from __future__ import annotations

from collections.abc import Iterator
import inspect
import time
from typing import Any

from experiments.program import errors
from experiments.studies.large_models import model
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

_COLUMNS = 128  # of each leaf of a tree

TREES = {
  'dense': lambda: gs.dense(axis_name=gs.workers.AXIS),
  'gradient_dropping': lambda: gs.gradient_dropping(
    0.001, axis_name=gs.workers.AXIS
  ),
  'dgc': lambda: gs.dgc(0.001, axis_name=gs.workers.AXIS),
  'dgc_chunk': lambda: gs.dgc(0.001, scope='chunk', axis_name=gs.workers.AXIS),
  'qsgd': lambda: gs.qsgd(7, min_size=0, axis_name=gs.workers.AXIS),
  'power_sgd': lambda: gs.power_sgd(2, axis_name=gs.workers.AXIS),
}


def _by_leaf() -> Iterator[tuple[str, gs.CompressedMean]]:
  """Every recipe that need not select from all leaves together."""
  for name, recipe in gs.recipes.RECIPES.items():
    scopes = {}
    if 'scope' in inspect.signature(recipe.factory).parameters:
      scopes = {name: 'leaf', f'{name}_chunk': 'chunk'}
    for label, scope in (scopes or {name: None}).items():
      arguments = {'scope': scope} if scope else {}
      try:
        tx = recipe.make(axis_name=gs.workers.AXIS, **arguments)
      except ValueError:  # gTop-k has one scope, all leaves
        continue
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
  tx, params, workers = TREES[name](), tree(leaves, elements), 2
  own = gs.workers.specs(tx, params, workers)

  def stacked(x, spec):
    shape = x.shape if spec == P() else (workers, *x.shape)
    return jax.ShapeDtypeStruct(shape, x.dtype)

  grads = jax.tree.map(lambda x: stacked(x, P(gs.workers.AXIS)), params)
  state = jax.tree.map(stacked, jax.eval_shape(tx.init, params), own)
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
