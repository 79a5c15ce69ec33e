"""Loss and gradients of one worker's batch, with second moments if asked."""

from typing import Any, NamedTuple

from flax import linen as nn
import gradsparse as gs
import jax
import jax.numpy as jnp
import optax

_EXAMPLES = 'examples'


class Gradients(NamedTuple):
  """What one worker's batch gives.

  Attributes:
    loss: mean over the batch.
    accuracy: of the batch.
    statistics: new running averages of batch normalisation, or empty.
    grads: of the mean loss.
    second_moment: sum over examples of (their gradient / batch size)^2, or
      None.
  """

  loss: jax.Array
  accuracy: jax.Array
  statistics: Any
  grads: Any
  second_moment: Any = None


def plain(
  model: nn.Module,
  params: Any,
  statistics: Any,
  images: jax.Array,
  labels: jax.Array,
  noise: jax.Array,
) -> Gradients:
  """The gradient of the batch.

  Args:
    model: see `experiments.models.create`.
    params: what to differentiate with respect to.
    statistics: of batch normalisation.
    images: float32[B, height, width, channels].
    labels: int[B].
    noise: uint32[2], from which dropout draws.
  """

  def loss_fn(params):
    loss, accuracy, changed = _apply(
      model, params, statistics, images, labels, _key(noise)
    )
    return loss, (accuracy, changed)

  (loss, (accuracy, changed)), grads = jax.value_and_grad(
    loss_fn, has_aux=True
  )(params)
  return Gradients(loss, accuracy, changed, grads)


def with_moments(
  model: nn.Module,
  params: Any,
  statistics: Any,
  images: jax.Array,
  labels: jax.Array,
  noise: jax.Array,
  microbatch: int | None = None,
) -> Gradients:
  """The same, with exact second moments of the per-example gradients.

  Args:
    model: see `plain`.
    params: see `plain`.
    statistics: see `plain`. Where there are any, examples share the batch's
      statistics, and the model must have a `batch_axis`.
    images: see `plain`.
    labels: see `plain`.
    noise: see `plain`; what is drawn is another than there.
    microbatch: examples differentiated at a time; None where they share
      statistics.
  """
  axis_name = _EXAMPLES if jax.tree.leaves(statistics) else None
  if axis_name:
    model = model.clone(batch_axis=axis_name)
  noises = jax.random.key_data(jax.random.split(_key(noise), len(labels)))

  def example_loss(params, example):
    image, label, own = example
    loss, accuracy, changed = _apply(
      model, params, statistics, image[None], label[None], _key(own)
    )
    return loss, (accuracy, changed)

  (loss, (accuracies, changed)), grads, moment = gs.value_and_grad_moments(
    example_loss, microbatch=microbatch, has_aux=True, axis_name=axis_name
  )(params, (images, labels, noises))
  # Every example has computed the same statistics.
  changed = jax.tree.map(lambda x: x[0], changed)
  return Gradients(loss, accuracies.mean(), changed, grads, moment)


def _key(noise: jax.Array) -> jax.Array:
  return jax.random.wrap_key_data(noise, impl='threefry2x32')


def _apply(model, params, statistics, images, labels, key):
  """(mean loss, accuracy, new statistics)."""
  logits, changed = model.apply(
    {'params': params, 'batch_stats': statistics},
    images,
    train=True,
    mutable=['batch_stats'],
    rngs={'dropout': key},
  )
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
  accuracy = jnp.mean(logits.argmax(-1) == labels)
  return loss, accuracy, changed.get('batch_stats', {})
