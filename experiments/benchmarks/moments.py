"""What second moments cost, as multiples of a plain gradient.

  python -m experiments.benchmarks.moments --json=FILE

Measured side by side in one process: rounds go over all ways, and each ratio
is the median over the rounds. For a perceptron (a dense layer's per-example
gradients are as large as the layer) and for a small residual network.
"""

from collections.abc import Callable
import time
from typing import Any

from experiments import models
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
from experiments.training import gradients
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np

_JSON = command_line.define_json()
_REPEATS = command_line.define_repeats()

_BATCH = 16
_CHUNK = 8
_CLASSES = 10
_WIDTH = 1024


# A function and its arguments; as constants, XLA would fold them in.
Way = tuple[Callable[..., Any], tuple[Any, ...]]


def perceptron() -> dict[str, Way]:
  """Ways for one hidden layer of 1024 units on 784 inputs."""
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape) * 0.05, jnp.float32)

  params = {'a': draw(784, _WIDTH), 'b': draw(_WIDTH, _CLASSES)}
  taps = jax.tree.map(jnp.zeros_like, params)
  x, y = draw(_BATCH, 784), jnp.arange(_BATCH) % _CLASSES

  def forward(p, x, t=None, dot=lambda x, w, t: x @ w):
    t = t or {'a': None, 'b': None}
    return dot(jax.nn.relu(dot(x, p['a'], t['a'])), p['b'], t['b'])

  def loss(logits, y):
    return -jnp.mean(
      jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
    )

  def batch_loss(p, batch):
    return loss(forward(p, batch[0]), batch[1])

  def example_loss(p, example):
    return loss(forward(p, example[0][None]), example[1][None])

  def tapped(p, t, batch):
    return loss(forward(p, batch[0], t, gs.dense_with_moment), batch[1])

  args = (params, (x, y))
  return {
    'plain gradient': (jax.value_and_grad(batch_loss), args),
    f'exact, chunks of {_CHUNK}': (
      gs.value_and_grad_moments(example_loss, microbatch=_CHUNK),
      args,
    ),
    'estimate from 4 parts': (
      gs.moments_from_microbatches(batch_loss, 4),
      args,
    ),
    'exact, dense identity': (
      jax.value_and_grad(tapped, (0, 1)),
      (params, taps, (x, y)),
    ),
  }


def resnet() -> dict[str, Way]:
  """Ways for ResNet-20 on 32 x 32 images, with batch normalisation."""
  model = models.create('resnet20', _CLASSES)
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(_BATCH, 32, 32, 3)), jnp.float32)
  y = jnp.arange(_BATCH) % _CLASSES
  variables = model.init(jax.random.key(0), x, train=False)
  args = (variables['params'], (x, y))
  statistics = variables['batch_stats']

  def batch_loss(p, batch):
    images, labels = batch
    logits, _ = model.apply(
      {'params': p, 'batch_stats': statistics},
      images,
      train=True,
      mutable=['batch_stats'],
    )
    return -jnp.mean(
      jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    )

  def exact(p, batch):
    return gradients.with_moments(model, p, statistics, *batch, _CHUNK)

  return {
    'plain gradient': (
      lambda p, batch: gradients.plain(model, p, statistics, *batch)[:4],
      args,
    ),
    f'exact, chunks of {_CHUNK}': (exact, args),
    'estimate from 4 parts': (
      gs.moments_from_microbatches(batch_loss, 4),
      args,
    ),
  }


def measure(ways: dict[str, Way], rounds: int) -> dict[str, dict[str, float]]:
  """Milliseconds and ratios to the first way, medians over rounds."""
  compiled = {name: (jax.jit(way), args) for name, (way, args) in ways.items()}
  for way, args in compiled.values():
    jax.block_until_ready(way(*args))
  seconds: dict[str, list[float]] = {name: [] for name in ways}
  for _ in range(rounds):
    for name, (way, args) in compiled.items():
      begin = time.perf_counter()
      jax.block_until_ready(way(*args))
      seconds[name].append(time.perf_counter() - begin)
  base = np.asarray(seconds[next(iter(ways))])
  return {
    name: {
      'milliseconds': round(1e3 * float(np.median(s)), 3),
      'times_plain': round(float(np.median(np.asarray(s) / base)), 2),
    }
    for name, s in seconds.items()
  }


def main() -> None:
  """Measures and prints."""
  results = {
    'perceptron 784-1024-10': measure(perceptron(), _REPEATS.value),
    'resnet20, 32 x 32 images': measure(resnet(), _REPEATS.value),
  }
  for model, ways in results.items():
    tables.show(
      tables.make(
        ('way', 'ms', 'times plain'),
        [
          (name, f'{way["milliseconds"]:.1f}', f'{way["times_plain"]:.1f}')
          for name, way in ways.items()
        ],
        title=f'{model}, batch of {_BATCH}',
      )
    )
  if _JSON.value:
    files.write_json(
      _JSON.value,
      {
        'command': command_line.typed(),
        'environment': machine.describe(),
        'batch': _BATCH,
        'results': results,
      },
    )


if __name__ == '__main__':
  command_line.run(main)
