"""The ways to compute second moments, on three models."""

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments import models
from experiments.benchmarks.compress import programs
from flax import linen as nn
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax

_CLASSES = 10
_LETTERS = 64
_EXAMPLES = 'examples'
_PLAIN = 'plain gradient'


class _Recurrent(nn.Module):
  """Letters to letters: embedding, LSTM, a dense layer."""

  @nn.compact
  def __call__(self, letters: jax.Array, *, train: bool) -> jax.Array:
    del train  # the same in training and in testing
    x = nn.Embed(_LETTERS, 64)(letters)
    return nn.Dense(_LETTERS)(nn.RNN(nn.OptimizedLSTMCell(256))(x))


class Task(NamedTuple):
  """A model and a batch for it.

  Attributes:
    model: called as `model.apply(variables, inputs, train=bool)`.
    inputs: examples first.
    labels: one for each vector of logits.
  """

  model: nn.Module
  inputs: jax.Array
  labels: jax.Array


def _images(model: nn.Module, batch: int, *shape: int) -> Task:
  rng = np.random.default_rng(0)
  images = jnp.asarray(rng.normal(size=(batch, *shape)), jnp.float32)
  return Task(model, images, jnp.arange(batch) % _CLASSES)


def _letters(batch: int, length: int) -> Task:
  text = np.random.default_rng(0).integers(0, _LETTERS, (batch, length + 1))
  return Task(_Recurrent(), jnp.asarray(text[:, :-1]), jnp.asarray(text[:, 1:]))


TASKS: dict[str, Callable[[int], Task]] = {
  'perceptron 784-1024-10': lambda batch: _images(
    models.MLP(_CLASSES, (1024,)), batch, 28, 28, 1
  ),
  'resnet20, 32 x 32 images': lambda batch: _images(
    models.create('resnet20', _CLASSES), batch, 32, 32, 3
  ),
  'lstm 256, 32 letters': lambda batch: _letters(batch, 32),
}


def ways(
  task: Task, *, copies: bool
) -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
  """Parameters, and functions of them and of (inputs, labels) by name."""
  init = jax.jit(lambda x: task.model.init(jax.random.key(0), x, train=False))
  variables = init(task.inputs)
  others = {k: v for k, v in variables.items() if k != 'params'}
  shared = _EXAMPLES if others else None

  def loss_of(model, params, inputs, labels):
    logits, _ = model.apply(
      {'params': params, **others}, inputs, train=True, mutable=[*others]
    )
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, labels
    ).mean()

  def batch_loss(params, batch):
    return loss_of(task.model, params, *batch)

  def example_loss(params, example):
    model = task.model.clone(batch_axis=shared) if shared else task.model
    return loss_of(model, params, *(x[None] for x in example))

  def losses_of_copies(params, batch):
    each = jax.vmap(example_loss, axis_name=_EXAMPLES)(params, batch)
    return each.mean()

  found = {
    _PLAIN: jax.value_and_grad(batch_loss),
    'exact': gs.value_and_grad_moments(example_loss, axis_name=shared),
    'estimate from 4 parts': gs.moments_from_microbatches(batch_loss, 4),
  }
  if len(task.inputs) % 4:
    del found['estimate from 4 parts']
  if copies:
    found['a copy for each example'] = gs.batch_value_and_grad_moments(
      losses_of_copies
    )
  return variables['params'], found


def measure(
  name: str, batch: int, rounds: int, *, copies: bool
) -> list[dict[str, Any]]:
  """One row a way."""
  task = TASKS[name](batch)
  params, functions = ways(task, copies=copies)
  arguments = (params, (task.inputs, task.labels))

  made = {
    way: programs.program(function, *arguments)
    for way, function in functions.items()
  }
  found = programs.compared(made, rounds, _PLAIN, 'plain_ratio')
  setting = {'model': name, 'batch': batch}
  return [setting | {'way': way} | row for way, row in found.items()]
