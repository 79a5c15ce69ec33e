"""A training step on a mesh, compiled and never run.

Nothing of the model's size is made: the step is compiled for shapes, and the
compiled program says what it would send and how much memory it would take.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
import functools
import time
from typing import Any

from experiments.benchmarks.accelerators import programs
from experiments.program import errors
from experiments.run import machine
from experiments.studies.large_models import model
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

REPLICAS = 'replica'  # the axis between replicas
_RATE = 0.1

# All have one momentum: DGC its own, the others that of the optimizer.
SCHEMES: dict[str, Callable[..., gs.CompressedMean]] = {
  'dense': gs.dense,
  'dgc': functools.partial(gs.dgc, 0.001),
  'dgc_chunk': functools.partial(gs.dgc, 0.001, scope='chunk'),
  'qsgd': functools.partial(gs.qsgd, 7),
  'power_sgd': functools.partial(gs.power_sgd, 2),
}

# The default order is for speed on many cores, and keeps everything longer.
_FOR_CPUS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}


def make_mesh(devices: Any) -> Mesh:
  """A mesh of all replicas.

  Args:
    devices: an array of them, replicas first; of a `targets.Target`, a replica
      is a slice of TPUs that need not be here.
  """
  axes = (REPLICAS, programs.INSIDE)
  return Mesh(devices, axes, axis_types=(AxisType.Auto,) * 2)


def devices_here(replicas: int, shards: int) -> np.ndarray:
  """Devices of this machine, as many as replicas of so many shards need.

  Raises:
    ConfigError: there are not as many.
  """
  if jax.device_count() < replicas * shards:
    raise errors.ConfigError(
      f'--replicas={replicas} of --shards={shards} need {replicas * shards} '
      f'devices, {jax.default_backend()} has {jax.device_count()}; '
      'JAX_PLATFORMS=cpu gives any number of devices'
    )
  found = jax.devices()[: replicas * shards]
  return np.array(found).reshape(replicas, shards)


def _lowered(name, transformer, mesh, sequences):
  """The step of a scheme as a program, and its plan."""
  specs = transformer.specs()
  params = jax.tree.map(
    lambda x, spec: programs.array(mesh, x.shape, spec),
    transformer.shapes(),
    specs,
  )
  momentum = None if name.startswith('dgc') else 0.9
  scheme = SCHEMES[name](axis_name=REPLICAS)
  tx = optax.chain(
    gs.sharded(scheme, specs), optax.sgd(_RATE, momentum=momentum)
  )
  own = gs.workers.specs(tx, params, mesh.shape[REPLICAS], REPLICAS)
  value_and_grad = transformer.value_and_grad()

  def step(params, state, tokens):
    loss, grads = value_and_grad(gs.workers.local(params, REPLICAS), tokens)
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    return params, state, gs.workers.mean(loss, REPLICAS)

  wrapped = gs.workers.wrap(
    step,
    mesh=mesh,
    axis_name=REPLICAS,
    in_specs=(P(), own, P(REPLICAS)),
    out_specs=(P(), own, P()),
  )
  lowered = jax.jit(wrapped, donate_argnums=(0, 1)).lower(
    params,
    programs.state(tx, params, mesh, REPLICAS),
    programs.array(
      mesh,
      (sequences * mesh.size, transformer.context + 1),
      P((REPLICAS, programs.INSIDE)),
      jnp.int32,
    ),
  )
  return lowered, gs.plan(tx, params, dict(mesh.shape))


def over(sent_by_axis: Any, axis: str) -> int:
  """Bytes that cross an axis, alone or with others."""
  return sum(
    sent
    for axes, sent in sent_by_axis.items()
    if axis in (axes if isinstance(axes, tuple) else (axes,))
  )


def collectives(audit: gs.Audit) -> list[dict[str, Any]]:
  """The collectives of a step, largest first, those that are alike together.

  Of each conditional those of the branch that sends most.
  """
  found: collections.Counter[Any] = collections.Counter()

  def count(part):
    found.update((c.nbytes, c.kind, c.axes) for c in part.collectives)
    for branches in part.conditionals:
      count(max(branches, key=lambda branch: branch.sent_bytes))

  count(audit)
  return [
    {'kind': kind, 'bytes': nbytes, 'axes': ' '.join(axes), 'times': times}
    for (nbytes, kind, axes), times in sorted(found.items(), reverse=True)
  ]


def compiled(
  name: str,
  transformer: model.Transformer,
  mesh: Mesh,
  sequences: int,
  options: Mapping[str, Any] = _FOR_CPUS,
) -> dict[str, Any]:
  """What the compiled step of a scheme would send, and the memory it takes.

  Args:
    name: of `SCHEMES`.
    transformer: the model.
    mesh: from `make_mesh`.
    sequences: of tokens, that a device has in a step.
    options: of the compiler.

  Returns:
    Bytes are those of one device; memory is its peak, parameters and state
    included.
  """
  begin = time.perf_counter()
  lowered, plan = _lowered(name, transformer, mesh, sequences)
  middle = time.perf_counter()
  program = lowered.compile(compiler_options=dict(options))
  end = time.perf_counter()
  audit = gs.audit(program, mesh)
  return {
    'scheme': name,
    'sent_bytes': over(audit.sent_by_axis, REPLICAS),
    'plan_bytes': over(plan.sent_by_axis, REPLICAS),
    'inside_bytes': audit.sent_by_axis.get(programs.INSIDE, 0),
    'argument_bytes': program.memory_analysis().argument_size_in_bytes,
    'peak_bytes': machine.peak_bytes(program),
    'trace_seconds': round(middle - begin, 1),
    'compile_seconds': round(end - middle, 1),
    'collectives': collectives(audit),
  }
