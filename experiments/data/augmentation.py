"""What training sees of an image: a shifted, cut or mirrored part of it.

Parts of images are drawn for all workers together, and a process keeps the rows
of its own. So the draws do not depend on how many processes there are.
"""

import math
from typing import NamedTuple

import numpy as np

# Random resized crops (Szegedy et al. 2015, arXiv 1409.4842, section 6).
_AREA = (0.08, 1.0)  # of the image
_RATIO = (3 / 4, 4 / 3)  # width to height
_TRIES = 10


class Shifts(NamedTuple):
  """Draws for small images; entry i is of image i."""

  top: np.ndarray  # int[n, 1, 1], pixels, from 0 to twice the padding
  left: np.ndarray  # int[n, 1, 1]
  flipped: np.ndarray  # bool[n, 1, 1]


class Crops(NamedTuple):
  """Draws for large images; entry i is of image i."""

  area: np.ndarray  # float[n, tries], shares of the image
  ratio: np.ndarray  # float[n, tries], width to height
  top: np.ndarray  # float[n, tries], share of the room that there is
  left: np.ndarray  # float[n, tries]
  flipped: np.ndarray  # bool[n]


def draw_shifts(rng: np.random.Generator, count: int, height: int) -> Shifts:
  """Draws shifts by up to an eighth of the height, and mirror images."""
  top, left = rng.integers(0, 2 * (height // 8) + 1, size=(2, count, 1, 1))
  return Shifts(top, left, rng.integers(0, 2, size=(count, 1, 1), dtype=bool))


def shift_and_flip(images: np.ndarray, drawn: Shifts) -> np.ndarray:
  """Pads by an eighth with zeros, cuts and mirrors as drawn.

  Args:
    images: [n, height, width, channels].
    drawn: from `draw_shifts`, an entry an image.
  """
  count, height, width, _ = images.shape
  pad = height // 8
  padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
  rows = drawn.top + np.arange(height)[:, None]
  columns = np.arange(width)[None, :]
  columns = drawn.left + np.where(drawn.flipped, columns[:, ::-1], columns)
  return padded[np.arange(count)[:, None, None], rows, columns]


def draw_crops(rng: np.random.Generator, count: int) -> Crops:
  """Draws the size, the shape and the place of a part, several times each.

  Only when an image is read is its size known, and with it which of the tries
  is the first that fits.
  """
  shape = (count, _TRIES)
  low, high = np.log(_RATIO)
  return Crops(
    rng.uniform(*_AREA, shape),
    np.exp(rng.uniform(low, high, shape)),
    rng.random(shape),
    rng.random(shape),
    rng.integers(0, 2, size=count, dtype=bool),
  )


def crop_box(
  width: int, height: int, drawn: Crops, image: int
) -> tuple[int, int, int, int]:
  """Returns (left, top, right, bottom) of the part to cut out.

  Args:
    width: of the whole image, pixels.
    height: likewise.
    drawn: from `draw_crops`.
    image: which of its entries.
  """
  for attempt in range(_TRIES):
    area = drawn.area[image, attempt] * width * height
    ratio = drawn.ratio[image, attempt]
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      left = int(drawn.left[image, attempt] * (width - w + 1))
      top = int(drawn.top[image, attempt] * (height - h + 1))
      return left, top, left + w, top + h
  # No try fits a long image: the largest part in its middle of a shape that is
  # not longer than those drawn.
  low, high = _RATIO
  w, h = min(width, round(height * high)), min(height, round(width / low))
  w, h = max(w, 1), max(h, 1)
  left, top = (width - w) // 2, (height - h) // 2
  return left, top, left + w, top + h


def centre_box(
  width: int, height: int, share: float
) -> tuple[float, float, float, float]:
  """Returns (left, top, right, bottom) of a square in the middle.

  Args:
    width: of the whole image, pixels.
    height: likewise.
    share: of the shorter side that the square has.
  """
  side = share * min(width, height)
  left, top = (width - side) / 2, (height - side) / 2
  return left, top, left + side, top + side
