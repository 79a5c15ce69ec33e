"""QSVRG against plain QSGD on l2-regularised logistic regression.

Handwritten digits below five or not, simulated workers; `configs/qsvrg.py` has
the setting. Theorem 3.6 of Alistarh et al. (arXiv 1610.02132) promises an error
that shrinks by at least a factor 0.9 an epoch; plain QSGD with the same number
of exchanges stalls at a floor that its learning rate sets.
"""

from collections.abc import Callable, Mapping, Sequence
import textwrap
from typing import Any

from configs import qsvrg as configs
from experiments.program import errors
from experiments.program import tables
from experiments.run import machine
import gradsparse as gs
from gradsparse import arguments
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import ml_collections
import numpy as np
import optax
from sklearn import datasets

_AXIS = gs.workers.AXIS
_WHOLE = {  # fields, and their largest values
  'num_workers': 1797,  # images
  'epochs': arguments.LAST_STEP,
  'inner_steps': arguments.LAST_STEP,
}

# An example's loss: parameters, (image, label) -> a number.
Loss = Callable[[jax.Array, Any], jax.Array]


def check(config: ml_collections.ConfigDict) -> None:
  """Raises unless the fields are those of `configs/qsvrg.py`, and make sense.

  Raises:
    ConfigError: names the field, its rule and its value.
  """
  known, given = {*configs.get_config()}, {*config}
  for field in sorted(given - known):
    raise errors.ConfigError(
      f'unknown field {field!r}{arguments.did_you_mean(field, known)}; '
      f'fields: {", ".join(sorted(known))}'
    )
  if known - given:
    raise errors.ConfigError(
      'the configuration must have all fields of configs/qsvrg.py; missing: '
      f'{", ".join(sorted(known - given))}'
    )
  try:
    for field, most in _WHOLE.items():
      arguments.whole_number(field, config[field], 1, most)
    for field in ('penalty', 'learning_rate'):
      arguments.number(field, config[field], arguments.POSITIVE)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(str(error)) from error


def load(num_workers: int) -> list[np.ndarray]:
  """Standardised images with a constant, and labels of -1 and 1, by worker."""
  images, digits = datasets.load_digits(return_X_y=True)
  images = (images - images.mean(0)) / np.maximum(images.std(0), 1e-3)
  x = np.concatenate([images, np.ones((len(images), 1))], axis=1)
  x = x / np.linalg.norm(x, axis=1).mean()
  y = np.where(digits < 5, 1.0, -1.0)
  used = len(x) // num_workers * num_workers
  order = np.random.default_rng(0).permutation(used).reshape(num_workers, -1)
  return [a[order].astype(np.float32) for a in (x, y)]


def logistic(penalty: float) -> Loss:
  """Returns the logistic loss of one example, with the penalty."""

  def loss_fn(w, example):
    x, y = example
    return jnp.log1p(jnp.exp(-y * (x @ w))) + penalty / 2 * jnp.sum(w * w)

  return loss_fn


def optimum(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
  """The minimiser, by Newton's method in float64."""
  x, y = x.reshape(-1, x.shape[-1]).astype(np.float64), y.reshape(-1)
  w = np.zeros(x.shape[1])
  for _ in range(30):
    p = 1 / (1 + np.exp(y * (x @ w)))
    gradient = -(x.T @ (y * p)) / len(y) + penalty * w
    curvature = (x.T * (p * (1 - p))) @ x / len(y) + penalty * np.eye(len(w))
    w -= np.linalg.solve(curvature, gradient)
  return w


def excess(
  w: Any, best: np.ndarray, x: np.ndarray, y: np.ndarray, penalty: float
) -> float:
  """f(w) - f(best), in float64."""
  x, y = x.reshape(-1, x.shape[-1]).astype(np.float64), y.reshape(-1)

  def value(w):
    losses = np.logaddexp(0, -y * (x @ w))
    return losses.mean() + penalty / 2 * (w @ w)

  return float(value(np.asarray(w, np.float64)) - value(best))


def _parallel(function, config, *state_specs):
  """A function of state and data, under simulated workers."""
  data = PartitionSpec(_AXIS)
  return gs.workers.parallel(
    function,
    runner='simulate',
    num_workers=config.num_workers,
    in_specs=(*state_specs, data),
    out_specs=state_specs if state_specs[1:] else state_specs[0],
  )


def run_qsvrg(
  data: Any, best: np.ndarray, config: ml_collections.ConfigDict
) -> tuple[list[float], list[int]]:
  """f(y) - f* after each epoch of QSVRG, and the bytes a worker sent in it."""
  optimizer = gs.qsvrg(
    logistic(config.penalty),
    learning_rate=config.learning_rate,
    inner_steps=config.inner_steps,
    axis_name=_AXIS,
  )
  epoch = _parallel(optimizer.epoch, config, PartitionSpec())
  state = optimizer.init(jnp.zeros(data[0].shape[-1]))
  left, sent = [excess(state.params, best, *data, config.penalty)], []
  for _ in range(config.epochs):
    state = epoch(state, data)
    left.append(excess(state.params, best, *data, config.penalty))
    sent.append(int(state.sent_bytes))
  return left, sent


def run_qsgd(
  data: Any, best: np.ndarray, config: ml_collections.ConfigDict
) -> list[float]:
  """The same number of exchanges of plain QSGD, as many levels."""
  size = data[0].shape[-1]
  levels = int(np.ceil(np.sqrt(size)))
  loss_fn = logistic(config.penalty)
  tx = optax.chain(
    gs.qsgd(levels, bucket_size=size, norm='l2', min_size=0, axis_name=_AXIS),
    optax.sgd(config.learning_rate),
  )

  def epoch(w, state, number, data):
    key = jax.random.fold_in(jax.random.key(1), number)
    key = jax.random.fold_in(key, jax.lax.axis_index(_AXIS))

    def inner(carry, key):
      w, state = carry
      j = jax.random.randint(key, (), 0, data[0].shape[0])
      own = gs.workers.local(w, _AXIS)
      grads = jax.grad(loss_fn)(own, (data[0][j], data[1][j]))
      updates, state = tx.update(grads, state, w)
      return (optax.apply_updates(w, updates), state), None

    keys = jax.random.split(key, config.inner_steps)
    w, state = jax.lax.scan(inner, (w, state), keys)[0]
    return w, state, number + 1

  w, number = jnp.zeros(size), jnp.int32(0)
  shared = PartitionSpec()
  specs = gs.workers.specs(tx, w, config.num_workers)
  run = _parallel(epoch, config, shared, specs, shared)
  state = gs.workers.init(tx, w, config.num_workers)
  left = [excess(w, best, *data, config.penalty)]
  for _ in range(config.epochs):
    w, state, number = run(w, state, number, data)
    left.append(excess(w, best, *data, config.penalty))
  return left


def rate(left: Sequence[float], floor: float = 1e-7) -> float:
  """Mean factor an epoch, as long as float32 can tell (above the floor)."""
  seen = [e for e in left if e > floor]
  return float((seen[-1] / seen[0]) ** (1 / (len(seen) - 1)))


def measure(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Runs both, and returns what is kept of it.

  Args:
    config: see `configs/qsvrg.py`.

  Raises:
    ConfigError: a field is wrong.
  """
  check(config)
  data = load(config.num_workers)
  size = data[0].shape[-1]
  best = optimum(*data, config.penalty)
  left, sent = run_qsvrg(data, best, config)
  return {
    'date': machine.today(),
    'environment': machine.describe(),
    'setting': config.to_dict(),
    'excess_loss': {'QSVRG': left, 'QSGD': run_qsgd(data, best, config)},
    'qsvrg_factor_per_epoch': rate(left),
    'qsvrg_sent_bytes_per_epoch': sent,
    # Of a quantised one; beside them an epoch sends a gradient in float32.
    'qsvrg_bits_per_message': (
      8 * (float(np.mean(sent)) - 4 * size) / config.inner_steps
    ),
    'theorem_bits_per_message': 2.8 * size + 32,
  }


def header(found: Mapping[str, Any]) -> str:
  """Returns the table for the head of `configs/qsvrg.py`.

  Args:
    found: what `measure` returned.
  """
  losses = found['excess_loss']
  epochs = len(losses['QSVRG']) - 1
  rows = [
    ('factor an epoch', '0.9', f'{found["qsvrg_factor_per_epoch"]:.3f}'),
    (
      'bits of a message',
      f'{found["theorem_bits_per_message"]:.1f}',
      f'{found["qsvrg_bits_per_message"]:.1f}',
    ),
    *(
      (f'error of {name}, epoch {epochs}', '-', f'{left[-1]:.1e}')
      for name, left in losses.items()
    ),
  ]
  made = tables.make(('', 'theorem 3.6', 'ours'), rows)
  place = machine.place(found['environment'])
  shown = textwrap.dedent(tables.text(made))
  return '\n'.join([shown, '', f'{place}, {found["date"]}'])
