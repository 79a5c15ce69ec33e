"""The quick setting: minutes on two cores, on data that are at hand."""

from collections.abc import Mapping
from typing import Any

from configs import quick
from experiments.data import cifar10
from experiments.data import folders
from experiments.program import errors

# Training examples, or a file of their own, to test on, so that settings may be
# chosen: `data.test_split` by data set.
HELD_OUT: Mapping[str, str] = dict.fromkeys(
  'an4 cifar10 digits fsdd librispeech multi30k ptb ptb_characters wmt'.split(),
  'validation',
) | {'cifar10': 'data_batch_5'}

# What stands for the data of a full setting; CIFAR-10 for all images.
_STAND_INS = {name: name for name in quick.OF_SEQUENCES} | {
  **{'an4': 'fsdd', 'librispeech': 'fsdd', 'wmt': 'multi30k'}
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
  if name in quick.OF_SEQUENCES:
    return quick.OF_SEQUENCES[name]
  if name != 'cifar10':
    return quick.DIGITS
  return (
    quick.CIFAR
    if (has_cifar() if at_hand is None else at_hand)
    else quick.DIGITS
  )


def has_cifar() -> bool:
  """Whether CIFAR-10's training files are where GRADSPARSE_DATA says."""
  try:
    folder = folders.find(
      '', (cifar10.FOLDER, 'cifar10', 'cifar-10'), '*_batch*.bin', source=''
    )
  except errors.DataFileError:
    return False
  return all((folder / f'{s}.bin').exists() for s in cifar10.TRAIN_STEMS)
