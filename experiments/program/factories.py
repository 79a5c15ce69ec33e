"""Functions that a flag or a field names as `package.module:function`."""

from collections.abc import Callable
import importlib
import inspect
from typing import Any

from experiments.program import errors


def find(field: str, name: str, fits: Callable[..., Any], wanted: str) -> Any:
  """Imports a function, and checks how it can be called.

  Args:
    field: the flag or field, for the message.
    name: `package.module:function`.
    fits: takes its signature; raises TypeError for one that will not do.
    wanted: what it must name, for the message.

  Raises:
    ConfigError: there is no such function, or it cannot be called so.
  """
  module, _, attribute = name.partition(':')
  try:
    found = getattr(importlib.import_module(module), attribute)
    fits(inspect.signature(found))
  except (ImportError, AttributeError, TypeError, ValueError) as error:
    told = f'{field}={name}: {error}; it must name {wanted}'
    raise errors.ConfigError(told) from error
  return found
