"""Parameters of which the fast suite takes a few."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *fast: Any) -> list[Any]:
  """Parameters of a test: those that are not among `fast` are marked slow."""
  return [
    pytest.param(
      *(value if isinstance(value, tuple) else (value,)),
      marks=() if value in fast else pytest.mark.slow,
    )
    for value in values
  ]
