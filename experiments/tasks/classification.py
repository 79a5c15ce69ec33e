"""Images, each of one class."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from experiments import data
from experiments import models
from experiments.tasks import task
import jax
import jax.numpy as jnp
import numpy as np
import optax

_TOP = 5  # classes
# Images that are tested together, and the numbers in them, at most.
_IMAGES, _NUMBERS = 500, 16_000_000


@dataclasses.dataclass(frozen=True)
class Classification(task.Task):
  """A model that tells classes of images, see `task.Task`.

  A batch has `images`, uint8[batch, height, width, channels], and `labels`,
  int32[batch].

  A test gives `test/loss`, `test/accuracy` and, where there are more than five
  classes, `test/top5_accuracy`: how often the label is among the five classes
  with the largest logits.

  Attributes:
    model: see `experiments.models.create`.
    image_shape: height, width, channels.
    mean: of a channel of the images, in units of the stored bytes.
    std: likewise.
    classes: how many there are.
    examples: that it is tested on.
  """

  image_shape: Sequence[int]
  mean: Sequence[float]
  std: Sequence[float]
  classes: int = 0
  examples: Any = None  # see `data.Split`

  def example(self) -> tuple[Any, ...]:
    return (jnp.zeros((1, *self.image_shape), jnp.float32),)

  def outcome(self, params, statistics, carry, inputs, key):
    labels = inputs['labels']
    logits, statistics = self._logits(params, statistics, inputs['images'], key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = jnp.mean(logits.argmax(-1) == labels)
    return task.Outcome(losses.mean(), {'accuracy': right}, statistics, carry)

  def _logits(self, params, statistics, images, key=None):
    images = data.normalise(images, self.mean, self.std)
    return self.apply(params, statistics, images, key=key)

  def make_test(self) -> task.Test:
    examples = self.examples
    size = min(_IMAGES, max(1, _NUMBERS // math.prod(self.image_shape)))

    @jax.jit
    def sums(params, statistics, images, labels):
      logits, _ = self._logits(params, statistics, images)
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      _, largest = jax.lax.top_k(logits, min(_TOP, self.classes))
      right = logits.argmax(-1) == labels
      among = jnp.any(largest == labels[:, None], axis=-1)
      return jnp.stack([losses.sum(), right.sum(), among.sum()])

    def test(params, statistics, process, processes):
      total = np.zeros(3)
      count = len(examples.labels)
      for first in range(process * size, count, processes * size):
        taken = examples.take(slice(first, first + size))
        total += np.asarray(sums(params, statistics, *taken))
      return total

    return test

  def scores(self, total: np.ndarray) -> dict[str, float]:
    loss, right, among = (total / len(self.examples.labels)).tolist()
    tested = {'test/loss': loss, 'test/accuracy': right}
    if self.classes > _TOP:
      tested['test/top5_accuracy'] = among
    return tested


def load(section, split, _):
  """See `experiments.tasks`."""
  return data.load(section.name, section.dir, split, section.image_size)


def build(config, dataset, **drawn):
  """See `experiments.tasks`."""
  shape, name = dataset.train.image_shape, config.model.name
  sampler = data.Sampler(dataset.train, augment=config.data.augment, **drawn)
  if dataset.ahead:
    sampler = data.Ahead(sampler, dataset.ahead, config.train.steps)
  model = models.create(name, dataset.classes, 'images')
  models.check_images(name, shape)
  given = dataset.mean, dataset.std, dataset.classes, dataset.test
  return Classification(model, shape, *given), sampler
