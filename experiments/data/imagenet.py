"""ImageNet in its published layout: a folder of JPEG files for each class.

  DIR/imagenet/train/n01440764/n01440764_10026.JPEG
  DIR/imagenet/val/n01440764/ILSVRC2012_val_00000293.JPEG

Any images in folders like these will do; the classes are numbered in the order
of their folders' names. Files are decoded when a step needs them, a batch in
several threads, and a few batches before they are needed (`batches.Ahead`).
"""

from collections.abc import Sequence
from concurrent import futures
import os
import pathlib
from typing import Any

from experiments.data import augmentation
from experiments.data import dataset
from experiments.data import folders
from experiments.program import errors
import numpy as np
from PIL import Image

SOURCE = folders.Source(
  ('imagenet', 'ImageNet', 'ILSVRC2012'),
  'https://image-net.org/challenges/LSVRC/2012/ (ILSVRC2012_img_train.tar and '
  'ILSVRC2012_img_val.tar, the second sorted into folders like the first)',
)
SUFFIXES = ('.jpeg', '.jpg')
# Per channel over the training images, in units of 0 to 255.
_MEAN = (123.675, 116.28, 103.53)
_STD = (58.395, 57.12, 57.375)
# Tested is the middle of an image: 224 of 256 pixels of its shorter side.
_CENTRE = 224 / 256
_AHEAD = 2  # batches


class JpegFiles:
  """Examples in files, decoded when they are taken; see `dataset.Split`."""

  def __init__(
    self,
    root: pathlib.Path,
    names: Sequence[str],
    labels: np.ndarray,
    size: int,
  ):
    """Reads nothing yet.

    Args:
      root: folder of the files.
      names: of the files, below it.
      labels: int32, one a file.
      size: pixels of a side of the images that are taken.
    """
    self._root = root
    self._names = names
    self._size = size
    self._pool = futures.ThreadPoolExecutor(os.cpu_count(), 'decode')
    self.labels = labels

  @property
  def image_shape(self) -> tuple[int, ...]:
    return self._size, self._size, 3

  def take(
    self, rows: np.ndarray | slice, drawn: Sequence[np.ndarray] | None = None
  ) -> dataset.Split:
    """Decodes some images; see `dataset.Split`.

    Raises:
      DataFileError: a file is damaged.
    """
    rows = np.arange(len(self._names))[rows]
    crops = None if drawn is None else augmentation.Crops(*drawn)
    images = np.empty((len(rows), *self.image_shape), np.uint8)

    def decode(position):
      path = self._root / self._names[rows[position]]
      images[position] = _decoded(path, self._size, crops, position)

    for _ in self._pool.map(decode, range(len(rows))):
      pass  # raises what a thread has raised
    return dataset.Split(images, self.labels[rows])

  def draw(self, rng: np.random.Generator, count: int) -> Sequence[np.ndarray]:
    """Draws random resized crops and mirror images."""
    return augmentation.draw_crops(rng, count)

  def subset(self, rows: np.ndarray) -> 'JpegFiles':
    """Returns these rows as examples of their own."""
    names = [self._names[row] for row in rows]
    return JpegFiles(self._root, names, self.labels[rows], self._size)


def load(directory: str, image_size: int) -> dataset.Dataset:
  """Returns ImageNet, or what else lies in such folders.

  Args:
    directory: root of all data sets, or the folder with train/ and val/.
    image_size: pixels of a side of what a model sees.

  Raises:
    DataFileError: a folder or all its files are missing, or train/ and val/
      have different classes.
  """
  folder = SOURCE.find(directory, 'train/*/')
  train, classes = _listed(folder / 'train', image_size)
  test, tested = _listed(folder / 'val', image_size)
  if tested != classes:
    odd = sorted(set(classes).symmetric_difference(tested))[0]
    raise errors.DataFileError(
      f'{folder / "train"} and {folder / "val"} must have a folder for each '
      f'class, the same in both; only one of them has {odd!r}. Get them from '
      f'{SOURCE.text}'
    )
  return dataset.Dataset(train, test, len(classes), _MEAN, _STD, _AHEAD)


def _listed(folder: pathlib.Path, size: int) -> tuple[JpegFiles, list[str]]:
  """Returns the images below a folder, and the names of the classes."""
  expected = f'a folder of {SUFFIXES[0]} or {SUFFIXES[1]} files for each class'
  if not folder.is_dir():
    raise SOURCE.missing(folder, expected)
  classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
  names: list[str] = []
  labels: list[int] = []
  for label, name in enumerate(classes):
    found = sorted(os.listdir(folder / name))
    files = [file for file in found if file.lower().endswith(SUFFIXES)]
    if not files:
      raise SOURCE.damaged(folder / name, 'no image', expected)
    names += [f'{name}/{file}' for file in files]
    labels += [label] * len(files)
  if not names:
    raise SOURCE.damaged(folder, 'no folder', expected)
  return JpegFiles(folder, names, np.asarray(labels, np.int32), size), classes


def _decoded(path: pathlib.Path, size: int, crops, image: int) -> Any:
  """The part of an image that is seen, uint8[size, size, 3]."""
  try:
    with Image.open(path) as file:
      if crops is None:
        box = augmentation.centre_box(*file.size, _CENTRE)
      else:
        box = augmentation.crop_box(*file.size, crops, image)
      seen = file.convert('RGB').resize(
        (size, size), Image.Resampling.BILINEAR, box
      )
  # What Pillow raises: also for files that are cut off, and for huge ones.
  except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
    raise SOURCE.damaged(path, f'{e}', 'an image') from e
  flipped = crops is not None and crops.flipped[image]
  return np.asarray(seen)[:, ::-1] if flipped else np.asarray(seen)
