"""Before training on many hosts: who is there, what a step sends, how fast.

  python docs/check_pod.py                # the devices of this process
  python docs/check_pod.py --multihost    # and those of all others

After --multihost may stand COORDINATOR NUM_PROCESSES PROCESS_ID. Without them
these come from the environment (GRADSPARSE_COORDINATOR and so on, which
experiments.cluster sets), or else jax.distributed.initialize() finds them.
docs/pods.md says how to read what it prints.
"""

import os
import sys
import time

if __name__ == '__main__' and {'-h', '--help'} & {*sys.argv}:
  sys.exit(print(__doc__))

import gradsparse as gs
import jax
from jax.experimental import mesh_utils
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax


def join(place):
  """Joins the other processes."""
  names = ('COORDINATOR', 'NUM_PROCESSES', 'PROCESS_ID')
  known = [os.environ.get(f'GRADSPARSE_{name}') for name in names]
  place = place or (known if all(known) else [])
  if place:
    address, processes, number = place
    jax.distributed.initialize(
      address,
      int(processes),
      int(number),
      cluster_detection_method='deactivate',  # all GPUs of this host
    )
  else:
    jax.distributed.initialize()


def make_mesh():
  """A replica is a slice of TPUs, or a process, or half of the only one's."""
  devices, names = jax.devices(), ('replica', 'inner')
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  if slices > 1:
    inner = len(devices) // slices
    return Mesh(
      mesh_utils.create_hybrid_device_mesh((1, inner), (slices, 1)), names
    )
  replicas = max(2, jax.process_count())
  return jax.make_mesh(
    (replicas, len(devices) // replicas),
    names,
    axis_types=(AxisType.Auto, AxisType.Auto),
  )


def audited(mesh):
  """What a step sends along each axis, and what its plan says.

  Take your own chain and your own parameters.
  """
  replicas = mesh.shape['replica']

  def place(shape, spec):
    where = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)

  param_specs = {'w': P('inner', None)}
  params = {'w': place((1024, 1024), param_specs['w'])}
  tx = optax.chain(
    gs.sharded(gs.dgc(0.01, axis_name='replica'), param_specs),
    gs.skip_rejected(optax.sgd(0.1)),
  )

  def step(params, state, x):
    own = gs.workers.local(params, 'replica')
    grads = jax.grad(lambda params: jnp.mean((x @ params['w']) ** 2))(own)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  specs = gs.workers.specs(tx, params, replicas, 'replica')
  train = gs.workers.wrap(
    step,
    mesh=mesh,
    axis_name='replica',
    in_specs=(P(), specs, P('replica')),
    out_specs=(P(), specs),
  )
  state = jax.eval_shape(
    lambda params: gs.workers.init(tx, params, replicas, 'replica'), params
  )
  x = place((8 * mesh.size, 1024), P(('replica', 'inner')))
  audit = gs.audit(train, params, state, x, mesh=mesh)
  plan = gs.plan(tx, params, dict(mesh.shape))
  return audit.sent_by_axis, plan.sent_by_axis


def exchange(mesh, elements):
  """Bytes that a device sends in a mean over replicas, and its seconds.

  The seconds are the median of ten means, and of all processes.
  """
  mean = jax.shard_map(
    lambda x: jax.lax.pmean(x, 'replica'),
    mesh=mesh,
    in_specs=P('replica', 'inner'),
    out_specs=P(None, 'inner'),
  )
  where = NamedSharding(mesh, P('replica', 'inner'))
  ones = jax.jit(jnp.ones, static_argnums=0, out_shardings=where)
  x = ones((mesh.shape['replica'], mesh.shape['inner'] * elements))
  compiled = jax.jit(mean).lower(x).compile()
  seconds = []
  for _ in range(10):
    start = time.perf_counter()
    jax.block_until_ready(compiled(x))
    seconds.append(time.perf_counter() - start)
  middle = multihost_utils.process_allgather(np.median(seconds))
  return gs.audit(compiled, mesh).sent_by_axis['replica'], np.median(middle)


def long_exchange(mesh):
  """An exchange of 10 ms or more, or else of a GiB a device."""
  for elements in (2**20, 2**22, 2**24, 2**26, 2**28):
    found = exchange(mesh, elements)
    if found[1] >= 0.01:
      break
  return found


def message_and_rate(shape, short, long):
  """Seconds of one message, and bits a second of a replica.

  The arguments are the mesh's shape and two results of `exchange`. A mean over
  P replicas has 2 (P - 1) messages, one after the other.
  """
  (few, latency), (many, seconds) = short, long
  rate = 8 * shape['inner'] * (many - few) / (seconds - latency)
  return latency / (2 * (shape['replica'] - 1)), rate


def main(args):
  if args[:1] == ['--multihost']:
    join(args[1:])
  elif args:
    sys.exit(__doc__)
  if len(jax.devices()) < 2:
    sys.exit(
      'the check needs two devices: --multihost, or on a CPU set '
      'JAX_NUM_CPU_DEVICES=8'
    )
  print(f'process {jax.process_index()} of {jax.process_count()}')
  mesh = make_mesh()
  print(f'{mesh.size} devices: {dict(mesh.shape)}')
  for number, devices in enumerate(mesh.devices):
    processes = sorted({device.process_index for device in devices})
    slices = sorted({getattr(device, 'slice_index', 0) for device in devices})
    print(f'replica {number}: processes {processes}, slices {slices}')
  sent, planned = audited(mesh)
  print(f'a step sends {sent}, planned {planned}')
  latency, rate = message_and_rate(
    mesh.shape, exchange(mesh, 1), long_exchange(mesh)
  )
  print(f'{1e3 * latency:.2g} ms a message, {rate / 1e9:.2g} Gbit/s a replica')


if __name__ == '__main__':
  main(sys.argv[1:])
