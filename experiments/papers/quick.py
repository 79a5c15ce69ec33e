"""The quick setting: minutes on two cores, on data that are at hand."""

from collections.abc import Mapping
from typing import Any

from experiments.data import cifar10
from experiments.data import folders
from experiments.program import errors

# Training examples, or a file of their own, to test on, so that settings may be
# chosen: `data.test_split` by data set.
HELD_OUT: Mapping[str, str] = {
  'an4': 'validation',
  'cifar10': 'data_batch_5',
  'digits': 'validation',
  'fsdd': 'validation',
  'librispeech': 'validation',
  'multi30k': 'validation',
  'ptb': 'validation',
  'ptb_characters': 'validation',
  'wmt': 'validation',
}

# What stands for the data of a full setting; CIFAR-10 for all images.
_STAND_INS: Mapping[str, str] = {
  'an4': 'fsdd',
  'fsdd': 'fsdd',
  'librispeech': 'fsdd',
  'multi30k': 'multi30k',
  'ptb': 'ptb',
  'ptb_characters': 'ptb_characters',
  'wmt': 'multi30k',
}

_COMMON: Mapping[str, Any] = {
  'parallel.num_workers': 4,
  'parallel.workers_per_chunk': 1,  # three times as fast on CPUs as all at once
  'train.learning_rate': 0.1,
  'train.log_every': 10,
  'optimizer.schedule': 'cosine',
}
_CIFAR = _COMMON | {
  'data.name': 'cifar10',
  'data.test_split': HELD_OUT['cifar10'],
  'data.augment': True,
  'model.name': 'resnet8',
  # Many steps of few images: what sends a thousandth of its gradient takes a
  # thousand steps to send all of it.
  'train.batch_size': 8,
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
_PTB = _COMMON | {
  'data.name': 'ptb',
  'model.name': 'lstm_200',
  'train.batch_size': 4,
  'train.bptt_length': 20,
  'train.learning_rate': 4.0,
  'compression.clip_norm': 0.25,
  'epochs': 0.2,
  'train.eval_every': 145,
  'train.checkpoint_every': 290,
}
_FSDD = _COMMON | {
  'data.name': 'fsdd',
  'data.buckets': 3,
  'model.name': 'deepspeech_small',
  'train.batch_size': 8,
  'train.learning_rate': 0.02,
  'optimizer.nesterov': True,
  'compression.clip_norm': 100.0,
  'epochs': 4,
}
_MULTI30K = _COMMON | {
  'data.name': 'multi30k',
  'data.vocabulary': 4000,
  'data.buckets': 3,
  'model.name': 'attention_small',
  'train.batch_size': 16,
  'train.learning_rate': 0.002,
  'optimizer.name': 'adam',
  'epochs': 1,
  'train.eval_every': 150,
  'train.checkpoint_every': 225,
}
_OF_SEQUENCES: Mapping[str, Mapping[str, Any]] = {
  'fsdd': _FSDD,
  'multi30k': _MULTI30K,
  'ptb': _PTB,
  'ptb_characters': _PTB | {'data.name': 'ptb_characters', 'epochs': 0.04},
}


def fields(
  own: Mapping[str, Any], full: str, at_hand: bool | None = None
) -> Mapping[str, Any]:
  """Returns the fields that all quick settings of such data share.

  Text, speech and pairs of sentences have nothing that stands for them where
  they are not there.

  Args:
    own: those that a table and its row have beside these; they may name the
      data.
    full: the data of the full setting.
    at_hand: whether CIFAR-10 is there; None looks for it on this machine.
  """
  name = own.get('data.name', _STAND_INS.get(full, 'cifar10'))
  if name in _OF_SEQUENCES:
    return _OF_SEQUENCES[name]
  if name != 'cifar10':
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
