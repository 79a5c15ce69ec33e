"""A scheme for parameters that are sharded over other axes of the mesh."""

from __future__ import annotations

from typing import Any

from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.described import described


@described
def sharded(tx: CompressedMean, param_specs: Any) -> CompressedMean:
  """The same scheme for parameters that are sharded inside each worker.

  A worker is then a replica of several devices (fully sharded or tensor
  parallel), and the scheme exchanges between replicas. Only the axis of the
  replicas may be manual:

    mesh = jax.make_mesh((2, 4), ('replica', 'fsdp'))
    specs = {'kernel': P('fsdp', None), 'bias': P()}
    tx = optax.chain(
        gs.sharded(gs.dgc(0.001, axis_name='replica'), specs), optax.sgd(0.1))
    jax.shard_map(step, mesh=mesh, axis_names={'replica'}, ...)

  Each device sends the message of its own shards, once, to the devices that
  have the same shards in the other replicas. Nothing is gathered inside a
  replica: its devices exchange only a few numbers on which they agree (whether
  the step is accepted, the size of messages), and PowerSGD's small factors.
  Each device of a replica exchanges the replicated leaves, as without
  compression. Leaves that are sharded over different axes have separate
  messages.

  A scheme treats a shard like a leaf: a density counts a shard's elements, and
  a bucket or a scale is a shard's. `min_size` and the rules for dense leaves
  apply to whole leaves. With scope='chunk' the result is bit-identical to that
  of whole leaves, if chunks lie inside shards and values have no scale of the
  leaf ('float32', 'bfloat16'). PowerSGD approximates whole
  leaves.

  State that is shaped like parameters is sharded like them; see
  `gs.workers.shardings`. Sizes in `gs.plan` (`num_workers={'replica': 2,
  'fsdp': 4}`) and in `gs.metrics` are those of one device; counts of elements
  are those of the replica. `sent_bytes` of the metrics are those across the
  scheme's axis, the plan's `sent_by_axis['replica']`; the plan's `sent_bytes`
  include the few bytes inside a replica.

  On a mesh without other axes, and in a simulation by `vmap`, leaves are not
  sharded.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> from jax.sharding import PartitionSpec as P
  >>> scheme = gs.dense(axis_name='replica')
  >>> tx = gs.sharded(scheme, {'kernel': P('fsdp', None)})
  >>> params, axes = {'kernel': jnp.zeros((8, 2))}, {'replica': 2, 'fsdp': 4}
  >>> gs.plan(tx, params, num_workers=axes).payload_bytes  # of 2 rows
  16

  Args:
    tx: a scheme, not a chain around it.
    param_specs: tree, or prefix tree, of PartitionSpecs over the other axes of
      the mesh; P() is a replicated leaf.

  Raises:
    TypeError: tx is not a scheme, or param_specs is not a tree of
      PartitionSpecs.
    ValueError: the scheme selects from all leaves together (scope='global',
      gTop-k), or param_specs name its own axis; from init and update:
      param_specs do not fit the parameters or the mesh.
  """
  if not isinstance(tx, CompressedMean):
    raise TypeError(
      'tx must be a gradsparse scheme such as gs.dgc(...), got '
      f'{type(tx).__name__}: put it inside a chain, '
      'optax.chain(gs.sharded(gs.dgc(...), specs), optax.sgd(lr))'
    )
  if param_specs is None:
    raise TypeError(
      'param_specs must be a tree of PartitionSpecs, got None; P() is a '
      'replicated leaf'
    )
  return compressed_mean(
    **tx.scheme._replace(param_specs=param_specs)._asdict()
  )
