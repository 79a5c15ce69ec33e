"""QSVRG against plain QSGD on l2-regularised logistic regression.

Handwritten digits below five or not, four simulated workers. Theorem 3.6 of
Alistarh et al. (arXiv 1610.02132) promises an error that shrinks by at least a
factor 0.9 an epoch; plain QSGD with the same number of exchanges stalls at a
floor that its learning rate sets.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from matplotlib import pyplot as plt
import numpy as np
import optax
from sklearn import datasets

_AXIS = gs.workers.AXIS
_WORKERS = 4
_PENALTY = 0.01  # lambda / 2 ||w||^2; what makes it strongly convex
_INNER_STEPS = 1000
_LEARNING_RATE = 0.05


def load() -> tuple[np.ndarray, np.ndarray]:
  """Standardised images with a constant, and labels of -1 and 1, by worker."""
  images, digits = datasets.load_digits(return_X_y=True)
  images = (images - images.mean(0)) / np.maximum(images.std(0), 1e-3)
  x = np.concatenate([images, np.ones((len(images), 1))], axis=1)
  x = x / np.linalg.norm(x, axis=1).mean()
  y = np.where(digits < 5, 1.0, -1.0)
  order = np.random.default_rng(0).permutation(len(x) // _WORKERS * _WORKERS)

  def split(a):
    return a[order].reshape(_WORKERS, -1, *a.shape[1:])

  return split(x).astype(np.float32), split(y).astype(np.float32)


def loss_fn(w: jax.Array, example: Any) -> jax.Array:
  """Logistic loss of one example, with the penalty."""
  x, y = example
  return jnp.log1p(jnp.exp(-y * (x @ w))) + _PENALTY / 2 * jnp.sum(w * w)


def optimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """The minimiser, by Newton's method in float64."""
  x, y = x.reshape(-1, x.shape[-1]).astype(np.float64), y.reshape(-1)
  w = np.zeros(x.shape[1])
  for _ in range(30):
    p = 1 / (1 + np.exp(y * (x @ w)))
    gradient = -(x.T @ (y * p)) / len(y) + _PENALTY * w
    curvature = (x.T * (p * (1 - p))) @ x / len(y) + _PENALTY * np.eye(len(w))
    w -= np.linalg.solve(curvature, gradient)
  return w


def excess(w: Any, best: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
  """f(w) - f(best), in float64."""
  x, y = x.reshape(-1, x.shape[-1]).astype(np.float64), y.reshape(-1)

  def value(w):
    losses = np.logaddexp(0, -y * (x @ w))
    return losses.mean() + _PENALTY / 2 * (w @ w)

  return float(value(np.asarray(w, np.float64)) - value(best))


def run_qsvrg(
  data: Any, best: np.ndarray, epochs: int
) -> tuple[list[float], list[int]]:
  """f(y) - f* after each epoch of QSVRG, and the bytes a worker sent in it."""
  optimizer = gs.qsvrg(
    loss_fn,
    learning_rate=_LEARNING_RATE,
    inner_steps=_INNER_STEPS,
    axis_name=_AXIS,
  )
  epoch = gs.workers.parallel(
    optimizer.epoch,
    runner='simulate',
    num_workers=_WORKERS,
    in_specs=(PartitionSpec(), PartitionSpec(_AXIS)),
    out_specs=PartitionSpec(),
  )
  state = optimizer.init(jnp.zeros(data[0].shape[-1]))
  errors, sent = [excess(state.params, best, *data)], []
  for _ in range(epochs):
    state = epoch(state, data)
    errors.append(excess(state.params, best, *data))
    sent.append(int(state.sent_bytes))
  return errors, sent


def run_qsgd(data: Any, best: np.ndarray, epochs: int) -> list[float]:
  """The same number of exchanges of plain QSGD, as many levels."""
  size = data[0].shape[-1]
  levels = int(np.ceil(np.sqrt(size)))
  tx = optax.chain(
    gs.qsgd(levels, bucket_size=size, norm='l2', min_size=0, axis_name=_AXIS),
    optax.sgd(_LEARNING_RATE),
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

    keys = jax.random.split(key, _INNER_STEPS)
    return jax.lax.scan(inner, (w, state), keys)[0]

  w = jnp.zeros(size)
  specs = gs.workers.specs(tx, w, _WORKERS)
  run = gs.workers.parallel(
    epoch,
    runner='simulate',
    num_workers=_WORKERS,
    in_specs=(PartitionSpec(), specs, PartitionSpec(), PartitionSpec(_AXIS)),
    out_specs=(PartitionSpec(), specs),
  )
  state = gs.workers.init(tx, w, _WORKERS)
  errors = [excess(w, best, *data)]
  for number in range(epochs):
    w, state = run(w, state, jnp.int32(number), data)
    errors.append(excess(w, best, *data))
  return errors


def rate(errors: Sequence[float], floor: float = 1e-7) -> float:
  """Mean factor an epoch, as long as float32 can tell (above the floor)."""
  seen = [e for e in errors if e > floor]
  return float((seen[-1] / seen[0]) ** (1 / (len(seen) - 1)))


def message_bits(sent: Sequence[int], size: int) -> float:
  """Bits of a quantised message, the mean of all epochs."""
  return 8 * (float(np.mean(sent)) - 4 * size) / _INNER_STEPS


def theorem_bits(data: Any) -> float:
  """2.8 n + 32, theorem 3.6's bits a message."""
  return 2.8 * data[0].shape[-1] + 32


def measure(epochs: int) -> dict[str, Any]:
  """Runs both, and returns what is kept of it."""
  data = load()
  best = optimum(*data)
  errors, sent = run_qsvrg(data, best, epochs)
  return {
    'excess_loss': {'QSVRG': errors, 'QSGD': run_qsgd(data, best, epochs)},
    'qsvrg_factor_per_epoch': rate(errors),
    'qsvrg_sent_bytes_per_epoch': sent,
    'qsvrg_bits_per_message': message_bits(sent, data[0].shape[-1]),
    'theorem_bits_per_message': theorem_bits(data),
  }


def plot(results: dict[str, list[float]], path: pathlib.Path) -> None:
  """Error against epochs."""
  figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
  for name, errors in results.items():
    epochs = np.arange(len(errors))
    axes.semilogy(epochs, np.maximum(errors, 1e-9), marker='o', label=name)
  promised = results['QSVRG'][0] * 0.9 ** np.arange(len(results['QSVRG']))
  axes.semilogy(promised, 'k:', label='theorem 3.6: 0.9 an epoch')
  axes.set_xlabel(f'epochs of {_INNER_STEPS} exchanges')
  axes.set_ylabel('f(w) - f*')
  axes.set_title('Logistic regression on digits, 4 workers')
  axes.grid(alpha=0.3)
  axes.legend()
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=120)
  plt.close(figure)
