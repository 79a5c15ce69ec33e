"""What every loader returns: raw integer images and how to normalise them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.data import augmentation
import jax
import jax.numpy as jnp
import numpy as np

VALIDATION_FRACTION = 0.2  # of a training set, where none is published


class Split(NamedTuple):
  """Examples in memory, in the order of their file.

  Those on disk, such as `imagenet.JpegFiles`, have the same methods.
  """

  images: np.ndarray  # uint8[n, height, width, channels]
  labels: np.ndarray  # int32[n]

  @property
  def image_shape(self) -> tuple[int, ...]:
    return self.images.shape[1:]

  def take(
    self, rows: np.ndarray | slice, drawn: Sequence[np.ndarray] | None = None
  ) -> 'Split':
    """Returns some examples.

    Args:
      rows: which.
      drawn: the entries of these rows of what `draw` returned, by which they
        are shifted and mirrored; None: the images as they are tested.
    """
    images = self.images[rows]
    if drawn is not None:
      drawn = augmentation.Shifts(*drawn)
      images = augmentation.shift_and_flip(images, drawn)
    return Split(images, self.labels[rows])

  def draw(self, rng: np.random.Generator, count: int) -> Sequence[np.ndarray]:
    """Draws how so many images are augmented; arrays with an entry each."""
    return augmentation.draw_shifts(rng, count, self.images.shape[1])

  def subset(self, rows: np.ndarray) -> 'Split':
    """Returns these rows as examples of their own."""
    return self.take(rows)


class Dataset(NamedTuple):
  """A data set, bytes as they came.

  Images stay uint8 until they are on the device (a quarter of the float32
  bytes); `normalise` is part of the compiled step.
  """

  train: Any  # `Split`, or what has its methods
  test: Any
  classes: int
  mean: tuple[float, ...]  # a channel, in units of the stored bytes
  std: tuple[float, ...]  # a channel, in units of the stored bytes
  ahead: int = 0  # batches to read before they are asked for


def normalise(
  images: jax.Array, mean: Sequence[float], std: Sequence[float]
) -> jax.Array:
  """Returns `(images - mean) / std` as float32, channel by channel.

  >>> normalise(jnp.full((1, 1, 1), 16, jnp.uint8), (0.0,), (16.0,)).item()
  1.0
  """
  return (images.astype(jnp.float32) - jnp.asarray(mean)) / jnp.asarray(std)


def hold_out(train: Any, fraction: float) -> tuple[Any, Any]:
  """Splits a training set in two, for choosing settings.

  Args:
    train: the training set.
    fraction: share of the examples that the second part gets.

  Returns:
    `(rest, held_out)`; together they are `train`.
  """
  rest, held_out = held_out_rows(len(train.labels), fraction)
  return train.subset(rest), train.subset(held_out)


def held_out_rows(count: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns which of so many examples `hold_out` puts into its two parts."""
  # RandomState, not default_rng: NumPy guarantees its stream for good.
  order = np.random.RandomState(0).permutation(count)
  size = round(fraction * count)
  return np.sort(order[size:]), np.sort(order[:size])
