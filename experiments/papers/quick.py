"""The quick setting: minutes on two cores, on data that are at hand."""

from collections.abc import Mapping
from typing import Any

from experiments.data import cifar10
from experiments.data import folders
from experiments.program import errors

# Training images to test on, so that settings may be chosen: `data.test_split`
# by data set.
HELD_OUT: Mapping[str, str] = {
  'cifar10': 'data_batch_5',
  'digits': 'validation',
}

_COMMON: Mapping[str, Any] = {
  'parallel.num_workers': 4,
  'parallel.block': 1,  # three times as fast on CPUs as all at once
  'train.learning_rate': 0.1,
  'train.log_every': 10,
  'optimizer.schedule': 'cosine',
}
_CIFAR = _COMMON | {
  'data.name': 'cifar10',
  'data.test_split': HELD_OUT['cifar10'],
  'data.augment': True,
  'model.name': 'resnet8',
  'train.batch_size': 32,
  'epochs': 2,
  'optimizer.weight_decay': 1e-4,
}
# Where CIFAR-10 is not there.
_DIGITS = _COMMON | {
  'data.name': 'digits',
  'model.name': 'convnet',
  'train.batch_size': 16,
  'epochs': 10,
}


def fields(
  own: Mapping[str, Any], at_hand: bool | None = None
) -> Mapping[str, Any]:
  """Returns the fields that all quick settings share.

  Args:
    own: those that a table and its row have beside these; they may name the
      data.
    at_hand: whether CIFAR-10 is there; None looks for it on this machine.
  """
  if own.get('data.name', 'cifar10') != 'cifar10':
    return _DIGITS
  return _CIFAR if (has_cifar() if at_hand is None else at_hand) else _DIGITS


def has_cifar() -> bool:
  """Whether CIFAR-10's training files are where GRADSPARSE_DATA says."""
  try:
    folder = folders.find(
      '', (cifar10.FOLDER, 'cifar10', 'cifar-10'), '*_batch*.bin', source=''
    )
  except errors.DataFileError:
    return False
  return all((folder / f'{s}.bin').exists() for s in cifar10.TRAIN_STEMS)
