"""One training step of all workers, compiled for devices that are not there.

On one slice of TPUs, or one host of GPUs, each device is a worker and has the
whole model. On several slices each slice is a worker, as in training on pods,
where the network between slices is the slow one. The model and the
optimizer's state are sharded inside of a slice (FSDP), and the scheme, within
`gs.sharded`, works between slices.
"""

from collections.abc import Sequence
import functools
import math
import time
from typing import Any

from experiments.benchmarks.accelerators import cost
from experiments.benchmarks.accelerators import targets
from experiments.benchmarks.compress import contenders
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import optax

AXIS = gs.workers.AXIS
INSIDE = 'fsdp'  # over the devices of a slice
# Outer steps. Of a program only the step that exchanges is counted.
OUTER = {
  name: functools.partial(make, sync_every=15)
  for name, make in contenders.OUTER.items()
}


class NotShardedError(ValueError):
  """A scheme has no form for a model that is sharded inside of a worker."""


class Bench:
  """Steps on one tree of parameters.

  Args:
    shapes: of the leaves, by name.
    target: whose devices and compiler.
  """

  def __init__(
    self, shapes: dict[str, tuple[int, ...]], target: targets.Target
  ):
    axes = (AXIS, INSIDE)[: target.devices.ndim]
    self._options = dict(target.options)
    self._mesh = Mesh(
      target.devices, axes, axis_types=(AxisType.Auto,) * len(axes)
    )
    self._inside = dict(self._mesh.shape).get(INSIDE, 1)
    self._specs = {
      name: sharded(shape, self._inside) for name, shape in shapes.items()
    }
    self._params = {
      name: array(self._mesh, shape, self._specs[name])
      for name, shape in shapes.items()
    }
    self.floats = sum(
      math.prod(x.sharding.shard_shape(x.shape)) for x in self._params.values()
    )

  @property
  def workers(self) -> int:
    return self._mesh.shape[AXIS]

  @functools.cached_property
  def sgd(self) -> Any:
    """A step of momentum SGD, compiled; nothing is exchanged."""
    sgd = contenders.momentum_sgd()
    state = jax.eval_shape(sgd.init, self._params)

    def placed(x, param):
      return array(self._mesh, x.shape, param.sharding.spec)

    state = optax.tree.map_params(sgd, placed, state, self._params)
    return self._compiled(_step(sgd), self._params, state, self._params)[1]

  def row(self, scheme: gs.CompressedMean | gs.Outer) -> dict[str, Any]:
    """What the compiler makes of a step that ends in new parameters.

    Args:
      scheme: over `AXIS`; of an outer step, the step that exchanges.

    Returns:
      compile_s: seconds to trace, lower and compile.
      code_bytes: size of the program; None where the compiler does not tell.
      temp_models: temporary memory, as a multiple of the device's part of the
        model in float32.
      cycles, cycles_x_sgd: XLA's estimate, and as a multiple of momentum SGD's;
        None where it makes none.
      sizes_x_sgd: the same with each size of the message; [] if it has one.
      kernels_x_sgd: bytes that kernels read and write, of which XLA makes no
        estimate, as a multiple of momentum SGD's least.
      floor_x_sgd: the least that a step can take, as a multiple of momentum
        SGD's least, where memory decides: bytes of all arguments, each read
        once, and of all results, each written once.
      unknown_loops, launches, uncounted: as in `cost.Cost`.
      plan_bytes, program_bytes: what a device sends to other workers, by the
        plan and by the collectives of the program; of a density schedule, in
        its largest stage.
      inside_bytes: what it sends inside of its slice; 0 where a worker is a
        device.
      most_expensive: the first ten of `cost.Cost.rows`.

    Raises:
      NotShardedError: it is one that cannot be used on several slices.
    """
    outer = isinstance(scheme, gs.Outer)
    if self._inside > 1:
      try:
        scheme = gs.sharded(scheme, self._specs)
      except (TypeError, ValueError) as refused:
        raise NotShardedError(str(refused)) from refused
    tx = contenders.followed(scheme)
    specs = gs.workers.specs(tx, self._params, self.workers)
    held = gs.workers.params_spec(tx, self._params)
    stacked = {name: self._stacked(x) for name, x in self._params.items()}
    seconds, compiled = self._compiled(
      gs.workers.wrap(
        _step(tx, moments=not outer and scheme.scheme.memory.facts.moments),
        mesh=self._mesh,
        axis_name=AXIS,
        in_specs=(held, specs, P(AXIS)),
        out_specs=(held, specs),
      ),
      self._params if held == P() else stacked,
      state(tx, self._params, self._mesh, AXIS),
      stacked,
    )
    memory, found = compiled.memory_analysis(), cost.of(compiled.as_text())
    sgd_cycles = cost.of(self.sgd.as_text()).cycles
    sent = gs.audit(compiled, self._mesh).sent_by_axis
    between = [axes for axes in sent if axes == AXIS or AXIS in tuple(axes)]
    return {
      'compile_s': seconds,
      'code_bytes': memory.generated_code_size_in_bytes or None,
      'temp_models': memory.temp_size_in_bytes / 4 / self.floats,
      'cycles': found.cycles or None,
      'cycles_x_sgd': found.cycles / sgd_cycles if sgd_cycles else None,
      'sizes_x_sgd': [own / sgd_cycles for own in found.of_sizes if sgd_cycles],
      'kernels_x_sgd': found.kernel_bytes / _touched(self.sgd),
      'floor_x_sgd': _touched(compiled) / _touched(self.sgd),
      'unknown_loops': found.unknown_loops,
      'launches': found.launches,
      'uncounted': dict(found.uncounted),
      'plan_bytes': self._planned(tx),
      'program_bytes': sum(sent[axes] for axes in between),
      'inside_bytes': sum(sent[axes] for axes in set(sent) - set(between)),
      'most_expensive': found.rows[:10],
    }

  def _planned(self, tx: optax.GradientTransformation) -> int:
    """Bytes to other workers, in the largest stage of a schedule."""
    plan = functools.partial(gs.plan, tx, self._params, dict(self._mesh.shape))
    stages = [stage.first_step for stage in plan().stages] or [None]
    return max(plan(step).sent_by_axis.get(AXIS, 0) for step in stages)

  def _stacked(self, param: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The gradients of all workers.

    Side by side along the first axis: with an axis of their own the compiler
    would lay them out as no backward pass does.
    """
    shape, spec = param.shape, param.sharding.spec
    first, *rest = (*spec, *(None,) * (len(shape) - len(spec)))
    own = (AXIS,) if first is None else (AXIS, first)
    return array(
      self._mesh, (self.workers * shape[0], *shape[1:]), P(own, *rest)
    )

  def _compiled(self, step: Any, *arguments: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments)
    compiled = lowered.compile(self._options)
    return time.perf_counter() - begin, compiled


def array(
  mesh: Mesh, shape: Sequence[int], spec: P, dtype: Any = jnp.float32
) -> jax.ShapeDtypeStruct:
  """The shape of an array that is sharded over a mesh."""
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def state(
  tx: optax.GradientTransformation, params: Any, mesh: Mesh, axis_name: str
) -> Any:
  """The shapes of the state of all workers, sharded over a mesh."""
  workers = mesh.shape[axis_name]
  return jax.tree.map(
    lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
    jax.eval_shape(
      lambda p: gs.workers.init(tx, p, workers, axis_name), params
    ),
    gs.workers.shardings(tx, params, mesh, axis_name),
  )


def sharded(shape: tuple[int, ...], devices: int) -> P:
  """How a leaf is divided inside of a slice: its largest dimension that can be.

  Args:
    shape: of the leaf; one of a single dimension stays whole.
    devices: of a slice.
  """
  fit = [d for d, size in enumerate(shape) if size % devices == 0]
  if devices == 1 or len(shape) < 2 or not fit:
    return P()
  largest = max(fit, key=lambda d: shape[d])
  return P(*(INSIDE if d == largest else None for d in range(len(shape))))


def _touched(compiled: Any) -> int:
  """Bytes of what a device reads and writes at least."""
  memory = compiled.memory_analysis()
  return memory.argument_size_in_bytes + memory.output_size_in_bytes


def _step(tx: optax.GradientTransformation, *, moments: bool = False) -> Any:
  """The step of one worker."""

  def step(params, state, grads):
    if isinstance(tx, gs.Outer):
      return tx.sync(params, state)
    more = {'second_moment': jax.tree.map(jnp.square, grads)} if moments else {}
    updates, state = tx.update(grads, state, params, **more)
    return optax.apply_updates(params, updates), state

  return step
