"""Data sets that are not there, or not what they should be."""

from __future__ import annotations

from collections.abc import Callable
import gzip
import pathlib
from typing import Any, NamedTuple

from experiments import data
from experiments.program import errors

CIFAR, IDX, IMAGENET = 'cifar10', 'fashion_mnist', 'imagenet'
TRAIN = 'train-images-idx3-ubyte'
LABELS = 't10k-labels-idx1-ubyte.gz'
BATCH = 'data_batch_3.bin'
CAT, TEST_DOG = 'train/n01_cat/2.JPEG', 'val/n02_dog/0.JPEG'

Change = Callable[[bytes], bytes]


class Damage(NamedTuple):
  """A data set with one file that is wrong.

  Attributes:
    dataset: its name; the fixtures write it whole.
    file: which of its files.
    change: what it holds instead; None: it is missing, 'folder': a folder of
      its name.
    says: regular expression of the message.
  """

  dataset: str
  file: str
  change: Change | str | None
  says: str

  def load(self, folder: pathlib.Path) -> Any:
    """Does the damage in `folder`, and loads what is left, all of it."""
    path = folder / self.file
    content = path.read_bytes()
    path.unlink()
    if self.change == 'folder':
      path.mkdir()
    elif callable(self.change):
      path.write_bytes(self.change(content))
    loaded = data.load(self.dataset, str(folder), image_size=8)
    return [part.take(slice(None)) for part in (loaded.train, loaded.test)]


def _put(at: int, new: bytes) -> Change:
  return lambda content: content[:at] + new + content[at + len(new) :]


def _cut(size: int) -> Change:
  return lambda content: content[:size]


# 40 records of CIFAR-10; 300 and 20 images of Fashion-MNIST.
DAMAGES = (
  Damage(CIFAR, BATCH, _cut(-5), '122,915 bytes; expected 40 records of 3,073'),
  Damage(CIFAR, BATCH, _cut(0), 'is damaged: 0 bytes; expected 40 records'),
  Damage(CIFAR, BATCH, _cut(3073), 'is damaged: 3,073 bytes; expected 40'),
  Damage(CIFAR, BATCH, lambda c: c * 2, '245,840 bytes; expected 40 records'),
  Damage(CIFAR, BATCH, _put(3073 * 7, b'\x0b'), 'label 11 in record 7; .*9'),
  Damage(CIFAR, BATCH, 'folder', 'data_batch_3.bin is damaged: Is a directory'),
  Damage(CIFAR, BATCH, None, 'data_batch_3.bin is missing; expected 40'),
  Damage(CIFAR, 'data_batch_1.bin', None, 'data_batch_1.bin is missing'),
  Damage(
    CIFAR, 'test_batch.bin', None,
    'test_batch.bin is missing.*cs.toronto.edu.*data.test_split=data_batch_5',
  ),
  Damage(CIFAR, 'test_batch.bin', _cut(1), 'batch.bin is damaged: 1 bytes'),
  Damage(IDX, TRAIN, _put(0, b'\0\0\x0c'), 'begin with 00000c03.*00000803'),
  Damage(IDX, TRAIN, _put(0, b'text'), 'begin with 74657874.*00000803'),
  Damage(IDX, TRAIN, _cut(-1), '235,215 bytes that .*zalandoresearch'),
  Damage(IDX, TRAIN, lambda c: c + b'1', '235,217 bytes that .*; expected'),
  Damage(IDX, TRAIN, _put(7, b'\xff'), 'begin with 00000803000001ff'),
  Damage(IDX, TRAIN, _put(4, b'\xff' * 4), 'begin with 00000803ffffffff'),
  Damage(IDX, TRAIN, _cut(9), '9 bytes that .*; expected an idx file'),
  Damage(IDX, TRAIN, _cut(0), '0 bytes that .*; expected an idx file'),
  Damage(IDX, TRAIN, 'folder', 'ubyte is damaged: Is a directory; expected'),
  Damage(IDX, TRAIN, None, 'is missing; expected .*or the same as .gz'),
  Damage(IDX, LABELS, _cut(-9), 't10k-labels.*is damaged: .*; expected'),
  Damage(IDX, LABELS, _cut(0), 't10k-labels.*is damaged: 0 bytes that'),
  Damage(IDX, LABELS, lambda c: b'no gzip', 'is damaged: Not a gzipped file'),
  Damage(IDX, LABELS, 'folder', 'gz is damaged: Is a directory; expected'),
  Damage(
    IDX, LABELS,
    lambda c: gzip.compress(gzip.decompress(c)[:-1] + b'\x0a'),
    'label 10; expected labels 0 to 9',
  ),
  Damage(IMAGENET, CAT, _cut(-200), '2.JPEG is damaged: .*[Tt]runcated'),
  Damage(IMAGENET, CAT, _cut(0), '2.JPEG is damaged: cannot identify image'),
  Damage(IMAGENET, CAT, lambda c: b'text', 'damaged: cannot .*image-net.org'),
  Damage(IMAGENET, CAT, 'folder', '2.JPEG is damaged: .*Is a directory'),
  Damage(IMAGENET, TEST_DOG, None, 'n02_dog is damaged: no image; .*for each'),
)  # fmt: skip

# (name, folder below an empty one, test_split, error, words)
REQUESTS = (
  (CIFAR, '', 'data_batch_6', errors.ConfigError, 'data_batch_1, .*batch_6'),
  (CIFAR, '', '', errors.ConfigError, "test_split must be one of .*got ''"),
  ('digits', '', 'data_batch_5', errors.ConfigError, 'test or validation'),
  ('mnist', '', 'file', errors.ConfigError, "test or validation .*got 'file'"),
  (CIFAR, '.', 'test', errors.DataFileError, 'no data set .*data.dir=DIR'),
  ('mnist', '.', 'test', errors.DataFileError, "no data set 'mnist': expected"),
  ('mnist', 'none', 'test', errors.DataFileError, 'no data set .*in one of'),
  ('mnist', 'file', 'test', errors.DataFileError, 'be a folder, got .*file'),
  ('mnist', 'nul\0', 'test', errors.DataFileError, 'must be a folder, got'),
  (IMAGENET, '.', 'test', errors.DataFileError, 'files train/./ in one of'),
  (IMAGENET, '', 'file', errors.ConfigError, "test or validation .*got 'file'"),
  ('mnist', '~no-one', 'test', errors.DataFileError, "folder, got '~no-one'"),
)
