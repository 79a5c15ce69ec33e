"""What every loader returns: raw integer images and how to normalise them."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Split(NamedTuple):
  """Examples in the order of their file."""

  images: np.ndarray  # uint8[n, height, width, channels]
  labels: np.ndarray  # int32[n]

  def take(self, rows: np.ndarray) -> 'Split':
    return Split(self.images[rows], self.labels[rows])


class Dataset(NamedTuple):
  """A data set held in memory, bytes as they came.

  Images stay uint8 until they are on the device (a quarter of the float32
  bytes); `normalise` is part of the compiled step.
  """

  train: Split
  test: Split
  classes: int
  mean: tuple[float, ...]  # a channel, in units of the stored bytes
  std: tuple[float, ...]  # a channel, in units of the stored bytes


def normalise(
  images: jax.Array, mean: Sequence[float], std: Sequence[float]
) -> jax.Array:
  """Returns `(images - mean) / std` as float32, channel by channel.

  >>> normalise(jnp.full((1, 1, 1), 16, jnp.uint8), (0.0,), (16.0,)).item()
  1.0
  """
  return (images.astype(jnp.float32) - jnp.asarray(mean)) / jnp.asarray(std)


def hold_out(
  train: Split, fraction: float, seed: int = 0
) -> tuple[Split, Split]:
  """Splits a training set in two, for choosing settings.

  Args:
    train: the training set.
    fraction: share of the examples that the second part gets.
    seed: of the permutation that decides which ones.

  Returns:
    `(rest, held_out)`; together they are `train`.
  """
  # RandomState, not default_rng: NumPy guarantees its stream for good.
  order = np.random.RandomState(seed).permutation(len(train.labels))
  size = round(fraction * len(order))
  return train.take(np.sort(order[size:])), train.take(np.sort(order[:size]))
