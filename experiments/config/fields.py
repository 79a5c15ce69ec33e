"""Nested fields of a configuration as plain dictionaries."""

from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns the fields by their dotted names.

  >>> flatten({'train': {'steps': 3}, 'x': 1})
  {'train.steps': 3, 'x': 1}
  """
  flat = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat


# What fields were called when some records and checkpoints were made.
_FORMER = {
  'train.smoothing': 'train.ema_decay',
  'train.stop_after': 'train.early_stop_patience',
  'train.window': 'train.bptt_length',
  'optimizer.decay': 'optimizer.lr_decay_factor',
  'compression.average_every': 'compression.param_sync_every',
  'parallel.inner_workers': 'parallel.devices_per_node',
  'parallel.block': 'parallel.workers_per_chunk',
}


def of_record(recorded: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a record or a checkpoint, by the names of today.

  Args:
    recorded: nested fields, or fields by their dotted names.

  >>> of_record({'train': {'window': 3}, 'data.test_split': 'file'})
  {'train.bptt_length': 3, 'data.test_split': 'test'}
  """
  found = {_FORMER.get(n, n): v for n, v in flatten(recorded).items()}
  for split in ('data.test_split', 'data.final_split'):
    if found.get(split) == 'file':
      found[split] = 'test'
  return found


def without_none(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the nested fields that are set.

  >>> without_none({'train': {'steps': 3, 'note': None}})
  {'train': {'steps': 3}}
  """
  return {
    name: without_none(value) if isinstance(value, Mapping) else value
    for name, value in config.items()
    if value is not None
  }
