"""One worker of the exchange benchmark: `experiments.benchmarks.exchange`.

The program starts itself on every host of `experiments.cluster`. Schemes take
turns in every round, so that other work of the machine affects all of them
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
import time
from typing import Any, NamedTuple

from experiments.benchmarks import collectives
from experiments.benchmarks import on_hosts
from experiments.benchmarks import sharing
from experiments.benchmarks import subjects
from experiments.cluster import traffic
import gradsparse as gs
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

LOCAL = P(subjects.AXIS)
MODES = ('step', 'compute', 'collectives')
_GRADIENTS = 2  # different ones, in turn
_IDLE_SECONDS = 3.0
_BARRIERS = 5  # measured, to be subtracted
# A step that takes longer is not repeated within a round.
_LONG_STEP_SECONDS = 1.0


class Subject(NamedTuple):
  """One scheme, compiled and with its state.

  Attributes:
    run: mode -> does one step and waits for its end.
    is_long: mode -> whether a step takes so long that one a round must do.
    found: what `measure` returns of it.
  """

  run: dict[str, Callable[[], None]]
  is_long: dict[str, bool]
  found: dict[str, Any]


class Bench:
  """What all schemes share: parameters, gradients, and the mesh.

  Args:
    shapes: of the parameters, by name.
    programs: compiles for all processes.
  """

  def __init__(
    self, shapes: Mapping[str, tuple[int, ...]], programs: sharing.Programs
  ):
    self._programs, self._turn = programs, 0
    devices = jax.devices()
    self.workers = len(devices)
    self.mesh = Mesh(
      np.asarray(devices), (subjects.AXIS,), axis_types=(AxisType.Auto,)
    )
    self.shapes = {
      name: jax.ShapeDtypeStruct(shape, jnp.float32)
      for name, shape in shapes.items()
    }

    def draw(seed):
      keys = jax.random.split(jax.random.key(seed), len(shapes))
      return {
        name: jax.random.normal(key, (self.workers, *shape))
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
      }

    self.gradients = [
      self._make(functools.partial(draw, seed), LOCAL)
      for seed in range(_GRADIENTS)
    ]
    self.params = self._make(self._zeros, P())
    token = self._make(lambda: jnp.zeros(self.workers), LOCAL)
    meet = self._mapped(lambda x: jax.lax.psum(x, subjects.AXIS), LOCAL, P())
    self.barrier = lambda: jax.block_until_ready(meet(token))

  def _zeros(self) -> Any:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.shapes)

  def _mapped(self, function, in_specs, out_specs, donate=()):
    # Without types: the steps without collectives promise replicated results
    # that they do not have.
    mapped = jax.shard_map(
      function,
      mesh=self.mesh,
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=donate)

  def _make(self, function: Callable[[], Any], specs: Any) -> Any:
    """Arrays of the mesh; each process makes its own part only."""
    shardings = jax.tree.map(
      lambda spec: NamedSharding(self.mesh, spec),
      specs,
      is_leaf=lambda x: isinstance(x, P),
    )
    return jax.jit(function, out_shardings=shardings)()

  def subject(self, name: str, density: float) -> Subject:
    """Compiles the three programs of a scheme and makes its state."""
    tx = subjects.make(name, density)
    specs = gs.workers.specs(tx, self.shapes, self.workers, subjects.AXIS)

    def step(params, state, grads):
      own = jax.tree.map(lambda x, s: x if s == P() else x[0], state, specs)
      grads = jax.tree.map(lambda g: g[0], grads)
      updates, own = tx.update(grads, own, params)
      state = jax.tree.map(lambda x, s: x if s == P() else x[None], own, specs)
      return optax.apply_updates(params, updates), state

    held = [
      self._make(
        lambda: gs.workers.init(tx, self._zeros(), self.workers, subjects.AXIS),
        specs,
      )
    ]

    def runner():
      program = self._programs.compile(
        self._mapped(step, (P(), specs, LOCAL), (P(), specs), (0, 1)),
        *(self.params, held[0], self.gradients[0]),
      )

      def run():
        self._turn += 1
        grads = self.gradients[self._turn % _GRADIENTS]
        self.params, new = program(self.params, held.pop(), grads)
        held.append(new)
        jax.block_until_ready((self.params, new))

      return run

    run = {'step': runner()}
    with collectives.left_out(self.workers) as calls:
      run['compute'] = runner()
    calls = self._programs.share(lambda: calls)  # process 0 has traced
    run['collectives'] = self._alone(calls)
    first = {  # touches all memory
      mode: on_hosts.slowest(_region(self, run[mode], 1)[0]) for mode in MODES
    }
    found = {
      'scheme': name,
      'plan_bytes': gs.plan(tx, self.shapes, self.workers).sent_bytes,
      'serial_bytes': round(sum(c.serial_bytes(self.workers) for c in calls)),
      'sent_bytes': [],
      'seconds': {mode: [] for mode in MODES},
    }
    is_long = {mode: first[mode] > _LONG_STEP_SECONDS for mode in MODES}
    return Subject(run, is_long, found)

  def _alone(self, calls: list[collectives.Call]) -> Callable[[], None]:
    function, lengths = collectives.alone(calls, subjects.AXIS)
    operands = self._make(
      lambda: [jnp.zeros((self.workers, n)) for n in lengths], LOCAL
    )
    program = self._programs.compile(
      self._mapped(lambda xs: function([x[0] for x in xs])[None], LOCAL, LOCAL),
      operands,
    )
    return lambda: jax.block_until_ready(program(operands))


def _region(
  bench: Bench, run: Callable[[], None], steps: int
) -> tuple[float, float, int]:
  """Does some steps, between barriers.

  Returns:
    (seconds for the steps, seconds for all, bytes sent by this host in all).
  """
  bench.barrier()
  before, start = _sent_bytes(), time.perf_counter()
  for _ in range(steps):
    run()
  end = time.perf_counter()
  bench.barrier()  # what is queued on this host has left it then
  after, done = _sent_bytes(), time.perf_counter()
  return end - start, done - start, after - before


def _sent_bytes() -> int:
  """By this host since it is there; 0 where nobody counts."""
  count = traffic.count_here()
  return 0 if count is None else count.tx_bytes


def measure(
  names: Sequence[str],
  num_params: int,
  *,
  density: float,
  repeats: int,
  steps: int,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Measures schemes; every process returns the same.

  Args:
    names: of the schemes.
    num_params: about how many parameters.
    density: of the sparse schemes.
    repeats: rounds.
    steps: of a scheme in a round.
    folder: that all processes see, for compiled programs.
  """
  shapes = subjects.shapes(num_params)
  bench = Bench(shapes, sharing.Programs(folder))
  contenders = [bench.subject(name, density) for name in names]

  # What is sent without a step: heartbeats in a while, and a barrier.
  bench.barrier()
  before = _sent_bytes()
  time.sleep(_IDLE_SECONDS)
  quiet = (_sent_bytes() - before) / _IDLE_SECONDS
  barriers = [_region(bench, lambda: None, 0)[2] for _ in range(_BARRIERS)]

  for number in range(repeats):
    shift = number % len(contenders)
    for run, is_long, found in contenders[shift:] + contenders[:shift]:
      # A long exchange leaves TCP in a state that the next one suffers from.
      if not is_long['step']:
        run['step']()
      for mode in MODES:
        count = 1 if is_long[mode] else steps
        seconds, whole, nbytes = _region(bench, run[mode], count)
        found['seconds'][mode].append(on_hosts.slowest(seconds) / count)
        if mode == 'step':
          extra = np.median(barriers) + quiet * whole
          found['sent_bytes'].append((nbytes - extra) / count)

  rows = [subject.found for subject in contenders]
  everyones = multihost_utils.process_allgather(
    np.asarray([row['sent_bytes'] for row in rows], np.float64)
  )  # (workers, schemes, repeats)
  for number, row in enumerate(rows):
    row['sent_bytes'] = everyones[:, number].tolist()
    if traffic.count_here() is None:
      row['sent_bytes'] = None
  floats = subjects.size(shapes)
  return {'floats': floats, 'workers': bench.workers, 'schemes': rows}
