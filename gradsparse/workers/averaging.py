"""The bytes of averages of parameters that differ between workers."""

from __future__ import annotations

import math
from typing import Any

from gradsparse import arguments
from gradsparse import health
from gradsparse.state.inspection import is_scheme
from gradsparse.traffic import counting
from gradsparse.traffic.plan import Plan
from gradsparse.workers import axis
from gradsparse.workers import placing
from gradsparse.wrappers.local_gradient import may_be_averaged
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax


def plan_average(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int,
  *,
  every: int = 500,
  axis_name: str = axis.AXIS,
) -> Plan:
  """The bytes that `gs.periodic_average` sends in a step that averages.

  Parameters, and optimizer state that differs between workers, are each
  all-reduced as float32, or as float64. These bytes are in addition to those of
  `gs.plan(tx, ...)`:

  >>> import gradsparse as gs
  >>> import jax.numpy as jnp
  >>> import optax
  >>> dropping = gs.gradient_dropping(0.01, axis_name='workers')
  >>> tx = optax.chain(gs.local_gradient(dropping, 'partial'), optax.sgd(0.1))
  >>> shapes = {'w': jnp.zeros((1000, 100))}
  >>> gradients = gs.plan(tx, shapes, num_workers=4)
  >>> average = gs.workers.plan_average(tx, shapes, num_workers=4, every=50)
  >>> print(average)
  leaf         elements  dense B  payload B  ratio  transport
  params['w']   100,000  400,000    400,000    1.0  average, all-reduce
  total         100,000  400,000    400,000    1.0  sent by a worker: 600,000 B
  in one of 50 updates; nothing in the others
  >>> gradients.over_run(500).sent_bytes, average.over_run(500).sent_bytes
  (15240.0, 12000.0)

  Args:
    tx: a transformation with `gs.local_gradient` inside.
    params: arrays or ShapeDtypeStructs, of one worker.
    num_workers: P.
    every: as for `gs.periodic_average`.
    axis_name: as for `gs.periodic_average`.

  Returns:
    A plan whose payload and sent bytes are those of one average; without rows
    if no parameters differ.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range; or `gs.workers.specs` refuses tx.
  """
  num_workers = arguments.num_workers(num_workers)
  every = arguments.whole_number('every', every, 1)
  own = placing.params_spec(tx, params, axis_name)
  differs = own, placing.specs(tx, params, num_workers, axis_name=axis_name)
  both = axis.shapes(params), jax.eval_shape(tx.init, params)
  specs = axis.over(lambda spec, _: spec, differs, both)
  leaves = jax.tree_util.tree_leaves_with_path(both, is_leaf=is_scheme)
  by_leaf = jax.tree.leaves(specs, is_leaf=is_scheme)
  rows = []
  for i in may_be_averaged(both):
    if by_leaf[i] == P():
      continue
    (whose, *path), leaf = leaves[i]
    rows.append(
      counting.Row(
        ('params', 'state')[whose.idx] + jax.tree_util.keystr(tuple(path)),
        leaf.size,
        4 * leaf.size,
        leaf.size * jnp.dtype(health.wide(leaf.dtype)).itemsize,
        'average, all-reduce',
        axis_name,
        every,
      )
    )
  sent = sum(
    max(counting.sent_bytes('all_reduce', row.payload_bytes, num_workers))
    for row in rows
  )
  return Plan(
    tuple(rows),
    math.ceil(sent),
    num_workers,
    sent_by_axis={axis_name: math.ceil(sent)},
  )
