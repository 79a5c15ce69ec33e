"""A scheme for parameters that are sharded over other axes of the mesh."""

from __future__ import annotations

from typing import Any

from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.compressed_mean import compressed_mean
from gradsparse.transform.described import described


@described
def sharded(tx: CompressedMean, param_specs: Any) -> CompressedMean:
  """The same scheme for parameters that are sharded inside of each worker.

  A worker is then a replica of several devices (fully sharded or tensor
  parallel), and the scheme works between replicas. Use it where only the axis
  of the replicas is manual:

    mesh = jax.make_mesh((2, 4), ('replica', 'fsdp'))
    specs = {'kernel': P('fsdp', None), 'bias': P()}
    tx = optax.chain(
        gs.sharded(gs.dgc(0.001, axis_name='replica'), specs), optax.sgd(0.1))
    jax.shard_map(step, mesh=mesh, axis_names={'replica'}, ...)

  Each device sends the message of its own shards, once, to the devices that
  have the same shards in the other replicas. Nothing is gathered inside a
  replica; there travel only a few numbers on which its devices agree (whether
  the step counts, the size of messages), and PowerSGD's small factors. A leaf
  that is whole on all devices of a replica is exchanged by each of them, as it
  would be without compression. Leaves that are divided over different axes
  travel in messages of their own.

  What a scheme does with a leaf it does with a shard: a density counts a
  shard's elements, a bucket or a scale is a shard's. `min_size` and the rules
  which leaves stay dense look at whole leaves. With scope='chunk' the result is
  that of whole leaves to the bit, where chunks lie inside of shards; PowerSGD
  approximates whole leaves.

  State that is shaped like parameters is sharded like them:
  `gs.workers.shardings` says how to place it. Sizes in `gs.plan`
  (`num_workers={'replica': 2, 'fsdp': 4}`) and in `gs.metrics` are those of one
  device, and counts of elements those of the replica. `sent_bytes` of the
  metrics are those across the scheme's axis: `sent_by_axis['replica']` of the
  plan, whose own `sent_bytes` have the few bytes inside a replica too.

  On a mesh without other axes, and in a simulation by `vmap`, leaves are whole
  and nothing is divided.

  Args:
    tx: a scheme itself, not a chain around it.
    param_specs: a tree, or a prefix of one, of PartitionSpecs over the other
      axes of the mesh; P() is a leaf that is whole.

  Raises:
    TypeError: tx is not a scheme, or param_specs no tree of PartitionSpecs.
    ValueError: the scheme selects from all leaves together (scope='global',
      gTop-k), or param_specs names its own axis; from init and update:
      param_specs does not fit the parameters or the mesh.
  """
  if not isinstance(tx, CompressedMean):
    raise TypeError(
      'gs.sharded needs a gradsparse scheme such as gs.dgc(...), got '
      f'{type(tx).__name__}: put it inside of a chain, '
      'optax.chain(gs.sharded(gs.dgc(...), specs), optax.sgd(lr))'
    )
  if param_specs is None:
    raise TypeError(
      'param_specs must be a tree of PartitionSpecs, got None; P() is a leaf '
      'that is whole'
    )
  return compressed_mean(
    **tx.scheme._replace(param_specs=param_specs)._asdict()
  )
