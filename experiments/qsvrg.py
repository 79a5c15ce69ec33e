r"""Runs QSVRG against plain QSGD on l2-regularised logistic regression.

  python -m experiments.qsvrg --config=configs/qsvrg.py \
    --json=experiments/results/qsvrg.json

The task is to tell whether a handwritten digit is below five; workers are
simulated. Theorem 3.6 of Alistarh et al. (arXiv 1610.02132) promises an error
that shrinks by at least a factor 0.9 an epoch. Plain QSGD with the same number
of exchanges stalls at a floor that its learning rate sets. Set any field of the
configuration by `--config.FIELD=VALUE`.
"""

from typing import Any

from absl import flags
from configs import qsvrg as configs
from experiments.program import command_line
from experiments.program import errors
from experiments.program import files
from experiments.run import machine
import gradsparse as gs
from gradsparse import arguments
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pandas as pd
from sklearn import datasets
from sklearn import linear_model

_CONFIG = command_line.define_config()
_JSON = command_line.define_json()

_AXIS = gs.workers.AXIS
_FLOOR = 1e-7  # of the error: float32 tells no less


def check() -> None:
  """Raises unless the configuration makes sense."""
  command_line.check_config(_CONFIG)
  known, given = {*configs.get_config()}, {*_CONFIG.value}
  if given != known:
    raise errors.ConfigError(
      f'the fields must be {", ".join(sorted(known))}, got '
      f'{", ".join(sorted(given))}'
    )
  try:
    for field, value in _CONFIG.value.items():
      arguments.number(field, value, arguments.POSITIVE)
  except (TypeError, ValueError) as error:
    raise errors.ConfigError(str(error)) from error


def _load(num_workers: int) -> list[np.ndarray]:
  """Standardised images with a constant, and labels of -1 and 1, by worker."""
  images, digits = datasets.load_digits(return_X_y=True)
  images = (images - images.mean(0)) / np.maximum(images.std(0), 1e-3)
  x = np.concatenate([images, np.ones((len(images), 1))], axis=1)
  x = x / np.linalg.norm(x, axis=1).mean()
  y = np.where(digits < 5, 1.0, -1.0)
  used = len(x) // num_workers * num_workers
  order = np.random.default_rng(0).permutation(used).reshape(num_workers, -1)
  return [a[order].astype(np.float32) for a in (x, y)]


def _measured(data: Any, config: Any) -> dict[str, Any]:
  """The errors f(w) - f* after each epoch, and the bytes that QSVRG sent."""
  x, y = data[0].reshape(-1, data[0].shape[-1]).astype(float), data[1].ravel()
  size, rate = x.shape[-1], config.learning_rate
  least = linear_model.LogisticRegression(
    C=1 / (len(y) * config.penalty),
    fit_intercept=False,
    solver='newton-cholesky',
    tol=1e-12,
  ).fit(x, y)

  def value(w):
    w = np.asarray(w, float)
    return np.logaddexp(0, -y * (x @ w)).mean() + config.penalty / 2 * (w @ w)

  def excess(w):
    return float(value(w) - value(least.coef_[0]))

  def loss_fn(w, example):
    x, y = example
    return jnp.log1p(jnp.exp(-y * (x @ w))) + config.penalty / 2 * (w @ w)

  def parallel(function, *specs):
    return gs.workers.parallel(
      function,
      runner='simulate',
      num_workers=config.num_workers,
      in_specs=(*specs, P(_AXIS)),
      out_specs=specs if specs[1:] else specs[0],
    )

  optimizer = gs.qsvrg(
    loss_fn, learning_rate=rate, inner_steps=config.inner_steps, axis_name=_AXIS
  )
  run, state = parallel(optimizer.epoch, P()), optimizer.init(jnp.zeros(size))
  left, sent = [excess(state.params)], []
  for _ in range(config.epochs):
    state = run(state, data)
    left.append(excess(state.params))
    sent.append(int(state.sent_bytes))

  # As many exchanges of plain QSGD, with as many levels.
  levels = int(np.ceil(np.sqrt(size)))
  tx = optax.chain(
    gs.qsgd(levels, bucket_size=size, norm='l2', min_size=0, axis_name=_AXIS),
    optax.sgd(rate),
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
  specs = gs.workers.specs(tx, w, config.num_workers)
  run = parallel(epoch, P(), specs, P())
  state = gs.workers.init(tx, w, config.num_workers)
  plain = [excess(w)]
  for _ in range(config.epochs):
    w, state, number = run(w, state, number, data)
    plain.append(excess(w))
  seen = [e for e in left if e > _FLOOR]
  return {
    'excess_loss': {'QSVRG': left, 'QSGD': plain},
    'qsvrg_factor_per_epoch': (seen[-1] / seen[0]) ** (1 / (len(seen) - 1)),
    'qsvrg_sent_bytes_per_epoch': sent,
    # Of a quantised one; beside them an epoch sends a gradient in float32.
    'qsvrg_bits_per_message': (
      8 * (float(np.mean(sent)) - 4 * size) / config.inner_steps
    ),
    'theorem_bits_per_message': 2.8 * size + 32,
  }


def main() -> None:
  """Runs both, prints the errors and writes the record."""
  config = _CONFIG.value
  found = _measured(_load(config.num_workers), config)
  print(pd.DataFrame(found['excess_loss']).map('{:.2e}'.format).to_string())
  for name in ('factor_per_epoch', 'bits_per_message'):
    print(f'qsvrg_{name}: {found[f"qsvrg_{name}"]:.4g}')
  if _JSON.value:
    record = {
      'command': command_line.typed(),
      'date': machine.today(),
      'environment': machine.describe(),
      'setting': config.to_dict(),
      **found,
    }
    files.write_json(_JSON.value, record)


if __name__ == '__main__':
  flags.mark_flag_as_required('config')
  command_line.run(main, check=check)
