"""CIFAR-10 in its published binary layout.

A file holds records of 3,073 bytes: a label, then 1,024 red, 1,024 green and
1,024 blue pixels of a 32 x 32 image, row by row.
"""

import pathlib

from experiments.data import dataset
from experiments.data import folders
from experiments.program import errors
import numpy as np

SOURCE = folders.Source(
  ('cifar-10-batches-bin', 'cifar10', 'cifar-10'),
  'https://www.cs.toronto.edu/~kriz/cifar.html ("CIFAR-10 binary version", '
  'cifar-10-binary.tar.gz)',
)
TRAIN_STEMS = tuple(f'data_batch_{i}' for i in range(1, 6))
TEST_STEM = 'test_batch'

RECORD_BYTES = 1 + 3 * 32 * 32
RECORDS = 10_000
# Per channel over the 50,000 training images, in units of 0 to 255.
_MEAN = (125.307, 122.950, 113.865)
_STD = (62.993, 62.089, 66.705)


def load(directory: str, test_split: str = 'test') -> dataset.Dataset:
  """Returns CIFAR-10 with the test set that `test_split` names.

  Args:
    directory: root of all data sets, or the folder with the .bin files.
    test_split: `'test'` takes `test_batch.bin` and trains on all five training
      files; the stem of a training file, such as `'data_batch_5'`, tests on
      that one and trains on the other four.

  Raises:
    ConfigError: `test_split` is neither.
    DataFileError: a file is missing or damaged.
  """
  if test_split == 'test':
    test_split = TEST_STEM
  elif test_split not in (TEST_STEM, *TRAIN_STEMS):
    raise errors.ConfigError(
      f'data.test_split must be one of test, {", ".join(TRAIN_STEMS)}, '
      f'got {test_split!r}'
    )
  folder = SOURCE.find(directory, '*_batch*.bin')
  test_file = folder / f'{test_split}.bin'
  if test_split == TEST_STEM and not test_file.exists():
    raise errors.DataFileError(
      f'{test_file} is missing; expected {RECORDS * RECORD_BYTES:,} bytes. '
      f'Get it from {SOURCE.text}, or test on one of the training files: '
      '--config.data.test_split=data_batch_5 (40,000 images to train on, so '
      'not the published split)'
    )
  test = _read(test_file)
  parts = [
    _read(folder / f'{stem}.bin') for stem in TRAIN_STEMS if stem != test_split
  ]
  train = dataset.Split(*map(np.concatenate, zip(*parts, strict=True)))
  return dataset.Dataset(train, test, classes=10, mean=_MEAN, std=_STD)


def _read(path: pathlib.Path) -> dataset.Split:
  """Returns the records of one file."""
  expected = f'{RECORDS:,} records of {RECORD_BYTES:,} bytes'
  data = np.frombuffer(SOURCE.read(path, expected), np.uint8)
  if data.size != RECORDS * RECORD_BYTES:
    raise SOURCE.damaged(path, f'{data.size:,} bytes', expected)
  records = data.reshape(RECORDS, RECORD_BYTES)
  labels = records[:, 0].astype(np.int32)
  if labels.max() > 9:
    raise SOURCE.damaged(
      path, f'label {labels.max()} in record {labels.argmax()}', 'labels 0 to 9'
    )
  images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  return dataset.Split(np.ascontiguousarray(images), labels)
