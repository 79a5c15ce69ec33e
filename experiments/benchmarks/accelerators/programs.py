"""One training step of all workers, compiled for devices that are not there."""

from __future__ import annotations

import functools
import time
from typing import Any

from experiments.benchmarks.accelerators import cost
from experiments.benchmarks.compress import contenders
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

AXIS = gs.workers.AXIS


class Bench:
  """Steps on one tree of parameters, with a worker on each device.

  Args:
    shapes: of the leaves, by name.
    devices: of a topology.
  """

  def __init__(self, shapes: dict[str, tuple[int, ...]], devices: np.ndarray):
    self._mesh = Mesh(devices, (AXIS,), axis_types=(AxisType.Auto,))
    self._params = {
      name: jax.ShapeDtypeStruct(shape, jnp.float32)
      for name, shape in shapes.items()
    }
    self.floats = sum(x.size for x in self._params.values())

  @property
  def workers(self) -> int:
    return self._mesh.size

  @functools.cached_property
  def sgd_cycles(self) -> int:
    """XLA's estimate of a step of momentum SGD; nothing is exchanged."""
    sgd = contenders.momentum_sgd()
    state = jax.eval_shape(sgd.init, self._params)
    _, compiled = self._compiled(
      _step(sgd, moments=False),
      *(self._placed(x, P()) for x in (self._params, state, self._params)),
    )
    return cost.of(compiled.as_text()).cycles

  def row(self, scheme: gs.CompressedMean) -> dict[str, Any]:
    """What the compiler makes of a step that ends in new parameters.

    Args:
      scheme: over `AXIS`.

    Returns:
      compile_s: seconds to trace, lower and compile.
      code_bytes: size of the program.
      temp_models: temporary memory, in models of float32.
      cycles, cycles_x_sgd: XLA's estimate, and as a multiple of momentum SGD's;
        None where it makes none.
      unknown_loops, launches, uncounted: as in `cost.Cost`.
      plan_bytes, program_bytes: what a worker sends, by the plan and by the
        collectives of the program.
      most_expensive: the first ten of `cost.Cost.rows`.
    """
    tx = contenders.followed(scheme)
    state = jax.eval_shape(
      lambda p: gs.workers.init(tx, p, self.workers), self._params
    )
    specs = gs.workers.specs(tx, self._params, self.workers)
    step = gs.workers.wrap(
      _step(tx, moments=scheme.scheme.memory.facts.moments),
      mesh=self._mesh,
      axis_name=AXIS,
      in_specs=(P(), specs, P(AXIS)),
      out_specs=(P(), specs),
    )
    # Side by side along the first axis: with an axis of their own the compiler
    # would lay them out as no backward pass does.
    stacked = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        (self.workers * x.shape[0], *x.shape[1:]), x.dtype
      ),
      self._params,
    )
    seconds, compiled = self._compiled(
      step,
      self._placed(self._params, P()),
      jax.tree.map(self._placed, state, specs),
      self._placed(stacked, P(AXIS)),
    )
    memory, found = compiled.memory_analysis(), cost.of(compiled.as_text())
    sgd = self.sgd_cycles
    return {
      'compile_s': seconds,
      'code_bytes': memory.generated_code_size_in_bytes,
      'temp_models': memory.temp_size_in_bytes / 4 / self.floats,
      'cycles': found.cycles or None,
      'cycles_x_sgd': found.cycles / sgd if sgd else None,
      'unknown_loops': found.unknown_loops,
      'launches': found.launches,
      'uncounted': dict(found.uncounted),
      'plan_bytes': gs.plan(tx, self._params, self.workers).sent_bytes,
      'program_bytes': gs.audit(compiled, self._mesh).sent_bytes,
      'most_expensive': found.rows[:10],
    }

  def _placed(self, tree: Any, spec: P) -> Any:
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(self._mesh, spec)
      ),
      tree,
    )

  def _compiled(self, step: Any, *arguments: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments).compile()
    return time.perf_counter() - begin, compiled


def _step(tx: optax.GradientTransformation, *, moments: bool) -> Any:
  """One worker's."""

  def step(params, state, grads):
    more = {'second_moment': jax.tree.map(jnp.square, grads)} if moments else {}
    updates, state = tx.update(grads, state, params, **more)
    return optax.apply_updates(params, updates), state

  return step
