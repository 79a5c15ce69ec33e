"""MNIST and Fashion-MNIST in the idx layout, plain or gzip.

An idx file starts with two zero bytes, a type code (8: unsigned bytes), the
number of dimensions, and each dimension as a big-endian 32-bit integer.
"""

import gzip
import math
import pathlib
import struct
import zlib

from experiments.data import dataset
from experiments.data import folders
import numpy as np

_UNSIGNED_BYTES = 8
_SOURCES = {
  'mnist': folders.Source(
    ('mnist', 'MNIST/raw', 'MNIST'),
    'https://storage.googleapis.com/cvdf-datasets/mnist/ '
    '(train-images-idx3-ubyte.gz and three more)',
  ),
  'fashion_mnist': folders.Source(
    ('fashion-mnist', 'fashion_mnist', 'FashionMNIST/raw', 'FashionMNIST'),
    'https://github.com/zalandoresearch/fashion-mnist (data/fashion)',
  ),
}
EXAMPLES = {'train': 60_000, 't10k': 10_000}
# Mean and standard deviation of the training pixels, in units of 0 to 255.
_MOMENTS = {'mnist': (33.318, 78.567), 'fashion_mnist': (72.940, 90.021)}


def load(name: str, directory: str) -> dataset.Dataset:
  """Returns `'mnist'` or `'fashion_mnist'`, 60,000 and 10,000 images.

  Args:
    name: which of the two; their files are named alike.
    directory: root of all data sets, or the folder with the four files.

  Raises:
    DataFileError: a file is missing or damaged.
  """
  source = _SOURCES[name]
  folder = source.find(directory, '*-idx?-ubyte*')
  mean, std = _MOMENTS[name]
  parts = (_read_split(folder, part, source) for part in EXAMPLES)
  return dataset.Dataset(*parts, classes=10, mean=(mean,), std=(std,))


def _read_split(folder, stem: str, source: folders.Source) -> dataset.Split:
  count = EXAMPLES[stem]
  images = read(folder / f'{stem}-images-idx3-ubyte', (count, 28, 28), source)
  label_path = folder / f'{stem}-labels-idx1-ubyte'
  labels = read(label_path, (count,), source)
  if labels.max() > 9:
    raise source.damaged(label_path, f'label {labels.max()}', 'labels 0 to 9')
  return dataset.Split(images[..., None], labels.astype(np.int32))


def read(
  path: pathlib.Path, shape: tuple[int, ...], source: folders.Source
) -> np.ndarray:
  """Returns the array in `path`, or in `path` with `.gz` appended.

  Args:
    path: the file's name without `.gz`.
    shape: what the file must hold.
    source: where users get it, for the messages.

  Raises:
    DataFileError: neither file exists, or what is there is not that array.
  """
  packed = path.with_name(path.name + '.gz')
  magic = _UNSIGNED_BYTES << 8 | len(shape)
  header = struct.pack(f'>{1 + len(shape)}I', magic, *shape)
  expected = (
    f'an idx file of shape {shape}, {len(header) + math.prod(shape):,} bytes '
    f'unpacked, that begin with {header.hex()}'
  )
  if path.exists() or not packed.exists():
    data = source.read(path, f'{expected}, or the same as .gz')
  else:
    path = packed
    data = source.read(packed, expected)
    try:
      data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
      raise source.damaged(packed, f'{error}', expected) from error
  found, rest = data[: len(header)], data[len(header) :]
  if found != header or len(rest) != math.prod(shape):
    text = f'{len(data):,} bytes that begin with {found.hex()}'
    raise source.damaged(path, text, expected)
  return np.frombuffer(rest, np.uint8).reshape(shape)
