"""The quick setting: minutes on two cores, on data that are at hand."""

from collections.abc import Mapping
from typing import Any

from configs import quick

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


def fields(own: Mapping[str, Any], full: str) -> Mapping[str, Any]:
  """Returns the fields that all quick settings of such data share.

  Args:
    own: those that a table and its row have beside these; they may name the
      data.
    full: the data of the full setting.
  """
  name = own.get('data.name', _STAND_INS.get(full, 'cifar10'))
  if name == 'cifar10':
    return quick.CIFAR
  return quick.OF_SEQUENCES.get(name, quick.DIGITS)
