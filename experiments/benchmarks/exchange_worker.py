"""One worker of the exchange benchmark: `experiments.benchmarks.exchange`.

The program starts itself on every host of `experiments.cluster`. Schemes take
turns in every round, so that other work of the machine affects all of them
alike.
"""

from collections.abc import Callable, Sequence
import functools
import pathlib
import pickle
import time
from typing import Any, NamedTuple

from experiments.benchmarks import on_hosts
from experiments.benchmarks import subjects
from experiments.cluster import traffic
from experiments.hosts.placement import make_placement
import gradsparse as gs
import jax
from jax.experimental import multihost_utils
from jax.experimental import serialize_executable
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

_OWN = P(subjects.AXIS)
_GRADIENTS = 2  # different ones, in turn
_IDLE_SECONDS = 3.0
_BARRIERS = 5  # measured, to be subtracted
# A step that takes longer is not repeated within a round.
_LONG_STEP_SECONDS = 1.0


class _Subject(NamedTuple):
  """One scheme, compiled and with its state.

  Attributes:
    run: does one step and waits for its end.
    is_long: whether a step takes so long that one a round must do.
    found: what `measure` returns of it.
  """

  run: Callable[[], None]
  is_long: bool
  found: dict[str, Any]


class _Bench:
  """What all schemes share: parameters and gradients.

  Args:
    shapes: of the parameters, by name.
    folder: that all processes see and nobody else writes to, for programs.
  """

  def __init__(self, shapes: dict[str, tuple[int, int]], folder: pathlib.Path):
    self._folder = folder
    self._placement = make_placement('shard_map', jax.device_count())
    self.workers, self._turn = self._placement.num_workers, 0
    self._shapes = {
      name: jax.ShapeDtypeStruct(shape, jnp.float32)
      for name, shape in shapes.items()
    }

    def draw(seed):
      keys = jax.random.split(jax.random.key(seed), len(shapes))
      return {
        name: jax.random.normal(key, (self.workers, *shape))
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
      }

    make = self._placement.compile
    self._gradients = [
      make(functools.partial(draw, seed), _OWN)() for seed in range(_GRADIENTS)
    ]
    self._params = make(self._zeros)()

  def _zeros(self) -> Any:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self._shapes)

  def subject(self, name: str, density: float) -> _Subject:
    """Compiles the step of a scheme and makes its state."""
    tx = subjects.make(name, density)
    specs = gs.workers.specs(tx, self._shapes, self.workers)

    def step(params, state, grads):
      updates, state = tx.update(grads, state, params)
      return optax.apply_updates(params, updates), state

    every = {'in_specs': (P(), specs, _OWN), 'out_specs': (P(), specs)}
    parallel = self._placement.parallel
    step_of_all = parallel(step, donate_argnums=(0, 1), **every)

    def init():
      return gs.workers.init(tx, self._zeros(), self.workers)

    held = [self._placement.compile(init, specs)()]
    arguments = self._params, held[0], self._gradients[0]
    program = _compiled(self._folder / name, step_of_all, *arguments)

    def run():
      self._turn += 1
      grads = self._gradients[self._turn % _GRADIENTS]
      self._params, new = program(self._params, held.pop(), grads)
      held.append(new)
      jax.block_until_ready((self._params, new))

    run()  # touches all memory
    found = {
      'scheme': name,
      'plan_bytes': gs.plan(tx, self._shapes, self.workers).sent_bytes,
      'sent_bytes': [],
      'seconds': [],
    }
    seconds = on_hosts.slowest(_region(run, 1)[0])
    return _Subject(run, seconds > _LONG_STEP_SECONDS, found)


def _compiled(path: pathlib.Path, jitted: Any, *arguments: Any) -> Any:
  """Returns a program that process 0 compiles and the others load.

  All hosts of a rehearsal share a few cores and a file system. (JAX's own
  `jax_share_binary_between_hosts` waits for ever on CPUs of version 0.10.) Who
  loads a pickle does what it says, so nobody else may write to the folder.
  """
  made = None
  if not jax.process_index() and not path.exists():
    made = jitted.lower(*arguments).compile()
    path.write_bytes(pickle.dumps(serialize_executable.serialize(made)))
  multihost_utils.sync_global_devices(path.name)
  return made or serialize_executable.deserialize_and_load(
    *pickle.loads(path.read_bytes()),  # noqa: S301 - only ours are there
    execution_devices=jax.devices(),
  )


def _region(run: Callable[[], None], steps: int) -> tuple[float, float, int]:
  """Does some steps, between barriers.

  Returns:
    (seconds for the steps, seconds for all, bytes sent by this host in all).
  """
  _barrier()
  before, start = (traffic.sent_here() or 0), time.perf_counter()
  for _ in range(steps):
    run()
  end = time.perf_counter()
  _barrier()  # what is queued on this host has left it then
  after, done = (traffic.sent_here() or 0), time.perf_counter()
  return end - start, done - start, after - before


def _barrier() -> None:
  multihost_utils.sync_global_devices('exchange')


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
  bench = _Bench(shapes, folder)
  contenders = [bench.subject(name, density) for name in names]

  # What is sent without a step: heartbeats in a while, and a barrier.
  _barrier()
  before = traffic.sent_here() or 0
  time.sleep(_IDLE_SECONDS)
  quiet = ((traffic.sent_here() or 0) - before) / _IDLE_SECONDS
  barriers = [_region(lambda: None, 0)[2] for _ in range(_BARRIERS)]

  for number in range(repeats):
    shift = number % len(contenders)
    for run, is_long, found in contenders[shift:] + contenders[:shift]:
      # A long exchange leaves TCP in a state that the next one suffers from.
      if not is_long:
        run()
      count = 1 if is_long else steps
      seconds, whole, nbytes = _region(run, count)
      found['seconds'].append(on_hosts.slowest(seconds) / count)
      extra = np.median(barriers) + quiet * whole
      found['sent_bytes'].append((nbytes - extra) / count)

  rows = [subject.found for subject in contenders]
  everyones = multihost_utils.process_allgather(
    np.asarray([row['sent_bytes'] for row in rows], np.float64)
  )  # (workers, schemes, repeats)
  counted = traffic.sent_here() is not None
  for number, row in enumerate(rows):
    row['sent_bytes'] = everyones[:, number].tolist() if counted else None
  floats = subjects.size(shapes)
  return {'floats': floats, 'workers': bench.workers, 'schemes': rows}
