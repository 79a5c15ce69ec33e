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
