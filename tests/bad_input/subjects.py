"""What is used wrongly: small parameters, schemes, states, a loss."""

from __future__ import annotations

from typing import Any

import gradsparse as gs
import jax
import jax.numpy as jnp
from tests.schemes import example

AXIS = gs.workers.AXIS
PARAMS = {'kernel': jnp.ones((4, 3)), 'bias': jnp.ones(3)}
ONES = jnp.ones(3)


def scheme(name: str, axis_name: str | None = None) -> gs.CompressedMean:
  return example(name, axis_name=axis_name, min_size=0, rank=1)


DENSE = gs.dense(axis_name=None)
DROPPING, DROPPING_ON = (
  scheme('gradient_dropping', axis) for axis in (None, AXIS)
)
STATE = DROPPING.init(PARAMS)
SCHEMES = {name: scheme(name) for name in gs.recipes.RECIPES}
SCHEMES['scattered'] = example(
  'one_bit_sgd', axis_name=None, exchange='reduce_scatter'
)
NO_TRANSFORMATIONS = (None, 'dgc', 3, gs.dgc, (1, 2), {})


def dot(params: Any, example: Any) -> Any:
  return sum(jnp.sum(p) for p in jax.tree.leaves(params)) * jnp.sum(example)


def fresh(tx: Any) -> Any:
  """Shapes of a scheme's first state."""
  return jax.eval_shape(tx.init, PARAMS)


def traced(tx: Any, grads: Any, state: Any, **extra: Any) -> Any:
  """An update of one worker, traced only."""
  return jax.eval_shape(lambda g, s: tx.update(g, s, **extra), grads, state)
