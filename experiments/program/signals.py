"""Signals that a program handles for a while."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import signal
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def handled(
  handler: Callable[[int, Any], None], numbers: Sequence[int] = STOPPING
) -> Iterator[None]:
  """Calls a handler for signals in a `with` block, then what was before."""
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield
  finally:
    for number, former in before.items():
      signal.signal(number, former)
