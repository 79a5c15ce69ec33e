"""What a test of a classifier is given; its scores are evaluation's tests."""

from experiments import data
from experiments import tasks
from experiments.tasks import classification
from flax import linen as nn
import jax
import numpy as np


class _Linear(nn.Module):
  @nn.compact
  def __call__(self, x, train=False):
    x = nn.BatchNorm(not train)(x.reshape(len(x), -1))
    return nn.Dense(3)(x)


def test_parameters_are_put_on_the_device_once(check_one_copy, monkeypatch):
  monkeypatch.setattr(classification, '_IMAGES', 5)
  images = np.zeros((10, 2, 2, 1), np.uint8)
  one = tasks.Classification(
    _Linear(),
    image_shape=images.shape[1:],
    mean=[0.0],
    std=[1.0],
    classes=3,
    examples=data.Split(images, np.zeros(10, np.int32)),
  )
  check_one_copy(one, *one.init(jax.random.key(0)))
