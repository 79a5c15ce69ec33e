"""Loss and gradients of one worker's batch, with second moments if asked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import data
from experiments import tasks
import gradsparse as gs
import jax
import jax.numpy as jnp

_EXAMPLES = 'examples'


class Gradients(NamedTuple):
  """What one worker's batch gives.

  Attributes:
    loss: mean over the batch.
    measured: see `tasks.task.Outcome`.
    statistics: new running averages of batch normalisation, or empty.
    carry: what the worker's next batch begins with.
    counts: see `tasks.task.Outcome`.
    grads: of the mean loss.
    second_moment: sum over examples of (their gradient / batch size)^2, or
      None.
  """

  loss: jax.Array
  measured: Mapping[str, jax.Array]
  statistics: Any
  carry: Any
  counts: Mapping[str, jax.Array]
  grads: Any
  second_moment: Any = None


def plain(
  task: tasks.Task, params: Any, statistics: Any, carry: Any, batch: data.Batch
) -> Gradients:
  """The gradient of the batch.

  Args:
    task: has the loss.
    params: what to differentiate with respect to.
    statistics: of batch normalisation.
    carry: what the worker's last batch left, see `tasks.Task`.
    batch: one worker's.
  """
  inputs, key = batch.inputs, _key(batch.noise)

  def loss_fn(params):
    out = task.outcome(params, statistics, carry, inputs, key)
    return out.loss, out

  (loss, out), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
  return Gradients(*out._replace(loss=loss), grads)


def with_moments(
  task: tasks.Task,
  params: Any,
  statistics: Any,
  carry: Any,
  batch: data.Batch,
  microbatch: int | None = None,
) -> Gradients:
  """The same, with exact second moments of the per-example gradients.

  Args:
    task: see `plain`.
    params: see `plain`.
    statistics: see `plain`. Where there are any, examples share the batch's
      statistics, and the task must know `over_examples`.
    carry: see `plain`.
    batch: see `plain`; what dropout draws is another than there.
    microbatch: examples differentiated at a time; None where they share
      statistics.
  """
  axis_name = _EXAMPLES if jax.tree.leaves(statistics) else None
  if axis_name:
    task = task.over_examples(axis_name)
  size = len(jax.tree.leaves(batch.inputs)[0])
  noises = jax.random.key_data(jax.random.split(_key(batch.noise), size))

  def example_loss(params, example):
    inputs, carried, noise = example
    inputs, carried = jax.tree.map(lambda x: x[None], (inputs, carried))
    out = task.outcome(params, statistics, carried, inputs, _key(noise))
    left = jax.tree.map(lambda x: x[0], out.carry)
    return out.loss, out._replace(carry=left)

  (loss, out), grads, moment = gs.value_and_grad_moments(
    example_loss, microbatch=microbatch, has_aux=True, axis_name=axis_name
  )(params, (batch.inputs, carry, noises))
  return Gradients(
    loss,
    jax.tree.map(jnp.mean, out.measured),
    # Every example has computed the same statistics.
    jax.tree.map(lambda x: x[0], out.statistics),
    out.carry,
    jax.tree.map(jnp.sum, out.counts),
    grads,
    moment,
  )


def _key(noise: jax.Array) -> jax.Array:
  return jax.random.wrap_key_data(noise, impl='threefry2x32')
