"""The steps, on a device a worker, and what is measured between them.

A perceptron learns digits whose labels are drawn anew for one image in ten, in
each step: however long it trains, gradients do not vanish.
"""

from collections.abc import Callable, Iterator
import contextlib
import pathlib
import resource
from typing import Any, NamedTuple

from experiments import data
from experiments.hosts import placement as placing
from experiments.models import mlp
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import optax

AXIS = placing.AXIS
DENSITY = 0.01
_LEARNING_RATE = 0.05
_MOMENTUM = 0.9
_WEIGHT_DECAY = 1e-4
_BATCH = 16  # examples of a worker
_WIDTHS = (32,)
_OTHER_LABELS = 0.1  # of the images

_COMPILED = '/jax/core/compile/backend_compile_duration'


def _followed_by_momentum(
  scheme: optax.GradientTransformation,
) -> optax.GradientTransformation:
  return optax.chain(scheme, optax.sgd(_LEARNING_RATE, momentum=_MOMENTUM))


SCHEMES: dict[str, Callable[[], optax.GradientTransformation]] = {
  'dgc': lambda: optax.chain(
    gs.dgc(DENSITY, momentum=_MOMENTUM, min_size=0, axis_name=AXIS),
    optax.sgd(_LEARNING_RATE),
  ),
  'gtopk': lambda: _followed_by_momentum(
    gs.gtopk(DENSITY, min_size=0, axis_name=AXIS)
  ),
  'power_sgd': lambda: _followed_by_momentum(gs.power_sgd(2, axis_name=AXIS)),
  'qsgd': lambda: _followed_by_momentum(gs.qsgd(7, min_size=0, axis_name=AXIS)),
}


class State(NamedTuple):
  """What a step changes."""

  step: Any  # int32[]
  params: Any
  opt_state: Any


class Point(NamedTuple):
  """What was measured after some steps.

  Attributes:
    step: steps done.
    rss_bytes: memory of the process that is in use, None where the system
      does not tell.
    peak_bytes: the most that it has used so far.
    live_arrays: that JAX holds.
    live_bytes: of them.
    compilations: of XLA since the first call had returned.
    residual_norm: 2-norm of what a worker owes, mean over workers and over
      the steps since the last point.
    largest_residual_norm: likewise, the largest of any worker in any step.
    loss: mean over the steps since the last point.
    rejected_steps: so far.
  """

  step: int
  rss_bytes: int | None
  peak_bytes: int
  live_arrays: int
  live_bytes: int
  compilations: int
  residual_norm: float
  largest_residual_norm: float
  loss: float
  rejected_steps: int


class _Chunk(NamedTuple):
  """What some steps gave; the norms are of each worker."""

  residual_norm: Any  # float32[P]
  largest_residual_norm: Any  # float32[P]
  loss: Any  # float32[]
  rejected_steps: Any  # int32[P]


def measure(
  name: str, *, steps: int, every: int, chunk: int, num_workers: int
) -> Iterator[Point]:
  """Takes steps and measures now and then.

  Args:
    name: of a scheme in `SCHEMES`.
    steps: how many; a multiple of every.
    every: steps between two points; a multiple of chunk.
    chunk: steps in one call of the compiled program.
    num_workers: a device each.

  Yields:
    Points, as they are measured.

  Raises:
    DisagreementError: workers have drifted apart; looked for at each point.
  """
  placement = placing.provide('shard_map', num_workers)
  state, batch, run, check = _programs(name, placement, chunk)
  with _compilations() as compiled:
    told: list[_Chunk] = []
    for done in range(chunk, steps + 1, chunk):
      state, values = run(state, batch)
      told.append(jax.device_get(values))
      if done == chunk:
        check(state)
        compiled.count = 0
      if done % every == 0:
        check(state)
        yield _point(done, told, compiled.count)
        told.clear()


def _programs(name: str, placement: placing.Placement, chunk: int):
  """(state, batch, steps as a program, check of it)."""
  digits = data.load('digits', '', 'test')
  num_workers = placement.num_workers
  rows = len(digits.train.labels) // num_workers
  everything = digits.train.take(np.arange(rows * num_workers))
  batch = jax.tree.map(
    lambda x: x.reshape(num_workers, rows, *x.shape[1:]), everything
  )
  model = mlp.MLP(digits.classes, _WIDTHS)
  tx = optax.chain(optax.add_decayed_weights(_WEIGHT_DECAY), SCHEMES[name]())

  def params():
    images = jnp.zeros((1, *batch.images.shape[2:]), jnp.float32)
    return model.init(jax.random.key(0), images, train=False)['params']

  def create():
    made = params()
    return State(
      jnp.int32(0), made, gs.workers.init(tx, made, num_workers, AXIS)
    )

  def loss_fn(params, images, labels):
    logits = model.apply({'params': params}, images, train=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()

  def one(state, split):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), state.step))
    chosen = jax.random.randint(keys[0], [_BATCH], 0, rows)
    drawn = jax.random.randint(keys[1], [_BATCH], 0, 10 * digits.classes)
    labels = jnp.where(
      drawn < 10 * digits.classes * _OTHER_LABELS,
      drawn % digits.classes,
      split.labels[chosen],
    )
    images = data.normalise(split.images[chosen], digits.mean, digits.std)
    own = gs.workers.local(state.params, AXIS)
    loss, grads = jax.value_and_grad(loss_fn)(own, images, labels)
    updates, opt_state = tx.update(grads, state.opt_state, own)
    new = State(
      state.step + 1, optax.apply_updates(state.params, updates), opt_state
    )
    norm = gs.metrics(opt_state)['residual_norm']
    return new, (norm, gs.workers.mean(loss, AXIS))

  def many(state, split):
    state, (norms, losses) = jax.lax.scan(
      lambda state, _: one(state, split), state, length=chunk
    )
    rejected = gs.metrics(state.opt_state)['rejected_steps']
    return state, _Chunk(
      jnp.mean(norms), jnp.max(norms), jnp.mean(losses), rejected
    )

  shapes = jax.eval_shape(params)
  shared, own = PartitionSpec(), PartitionSpec(AXIS)
  specs = State(shared, shared, gs.workers.specs(tx, shapes, num_workers, AXIS))

  def parallel(function, in_specs, out_specs, donate=()):
    return gs.workers.parallel(
      function,
      runner=placement.runner,
      num_workers=placement.axes,
      in_specs=in_specs,
      out_specs=out_specs,
      donate_argnums=donate,
      devices=placement.devices,
    )

  run = parallel(
    many, (specs, own), (specs, _Chunk(own, own, shared, own)), donate=(0,)
  )
  prints = parallel(
    lambda state: gs.workers.fingerprint(state, specs), (specs,), shared
  )

  def check(state):
    gs.workers.check_agreement(prints(state), state, specs)

  state = placement.compile(create, specs)()
  return state, placement.batch(batch), run, check


def _point(step: int, told: list[_Chunk], compilations: int) -> Point:
  live = jax.live_arrays()
  return Point(
    step=step,
    rss_bytes=_rss_bytes(),
    peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    live_arrays=len(live),
    live_bytes=sum(x.nbytes for x in live),
    compilations=compilations,
    residual_norm=float(np.mean([x.residual_norm for x in told])),
    largest_residual_norm=float(
      np.max([x.largest_residual_norm for x in told])
    ),
    loss=float(np.mean([x.loss for x in told])),
    rejected_steps=int(np.max(told[-1].rejected_steps)),
  )


def _rss_bytes() -> int | None:
  path = pathlib.Path('/proc/self/statm')
  if not path.exists():
    return None
  return int(path.read_text().split()[1]) * resource.getpagesize()


class _Count:
  """How many programs XLA has compiled."""

  def __init__(self):
    self.count = 0

  def __call__(self, event: str, seconds: float, **_: Any) -> None:
    del seconds
    self.count += event == _COMPILED


@contextlib.contextmanager
def _compilations() -> Iterator[_Count]:
  counter = _Count()
  jax.monitoring.register_event_duration_secs_listener(counter)
  try:
    yield counter
  finally:
    jax.monitoring.unregister_event_duration_listener(counter)
