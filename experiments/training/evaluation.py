"""How good a model is on the examples that it is tested on."""

from collections.abc import Callable, Sequence
import math
from typing import Any

from experiments import data
from experiments.hosts import placement as placing
from experiments.training import training_step
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

_TOP = 5  # classes
_NUMBERS = 16_000_000  # of the images that are tested together


def make(
  model: nn.Module,
  test: data.Examples,
  *,
  classes: int,
  mean: Sequence[float],
  std: Sequence[float],
  placement: placing.Placement,
  average: Callable[[Any], Any],
  batch_size: int | None = None,
) -> Callable[[training_step.TrainState], dict[str, float]]:
  """Returns a function of a state that tests it on the whole set.

  It returns `test/loss`, `test/accuracy` and, where there are more than five
  classes, `test/top5_accuracy`: how often the label is among the five classes
  with the largest logits.

  The processes share the work; all must call it.

  Args:
    model: see `experiments.models.create`.
    test: the examples.
    classes: how many there are.
    mean: see `training_step.make_train_step`.
    std: see `training_step.make_train_step`.
    placement: of the workers.
    average: `training_step.make_average_params`; what it returns is evaluated.
    batch_size: examples in one call; the last batch may be smaller. None: 500,
      or fewer where the images are large.
  """
  if batch_size is None:
    batch_size = min(500, max(1, _NUMBERS // math.prod(test.image_shape)))

  @jax.jit
  def sums(params, statistics, images, labels):
    logits = model.apply(
      {'params': params, 'batch_stats': statistics},
      data.normalise(images, mean, std),
      train=False,
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    _, largest = jax.lax.top_k(logits, min(_TOP, classes))
    right = logits.argmax(-1) == labels
    among = jnp.any(largest == labels[:, None], axis=-1)
    return jnp.stack([losses.sum(), right.sum(), among.sum()])

  def evaluate(state: training_step.TrainState) -> dict[str, float]:
    # One device is enough, and all devices hold the same parameters.
    params, statistics = jax.device_get(
      (average(state.params), state.statistics)
    )
    total = np.zeros(3)
    count = len(test.labels)
    own = range(
      placement.process * batch_size, count, placement.processes * batch_size
    )
    for first in own:
      images, labels = test.take(slice(first, first + batch_size))
      total += np.asarray(sums(params, statistics, images, labels))
    loss, right, among = (placement.total(total) / count).tolist()
    tested = {'test/loss': loss, 'test/accuracy': right}
    return tested | ({'test/top5_accuracy': among} if classes > _TOP else {})

  return evaluate
