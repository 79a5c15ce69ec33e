"""What the benchmarks share: their command lines, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import json
import pathlib
import sys
from typing import Any

from experiments import cluster
from experiments import errors

_EXIT_FAILED, _EXIT_USAGE, _EXIT_NOT_PERMITTED = 1, 2, 3


class FailedError(errors.UserError):
  """A worker failed."""


def on_hosts(command: Sequence[str], **kwargs: Any) -> cluster.Result:
  """`cluster.run`, with the workers' output on standard error.

  Raises:
    FailedError: a process did not end well, or not in time.
    NotPermittedError: no namespaces here.
  """
  result = cluster.run(command, output=sys.stderr, **kwargs)
  if result.outcome.timed_out or any(result.outcome.statuses):
    raise FailedError(str(result.outcome))
  return result


def exit_status(measure: Callable[[], None], instead: str = '') -> int:
  """Measures; what goes wrong becomes a line and an exit status.

  Args:
    measure: all of the benchmark.
    instead: what can be done where there are no namespaces.
  """
  try:
    with cluster.stopping_on_signals():
      for name in cluster.remove_leftovers():
        say(f'removed {name}, left over from an earlier run')
      measure()
  except cluster.NotPermittedError as error:
    say(f'error: {error}\nThe benchmark needs root on Linux.{instead}')
    return _EXIT_NOT_PERMITTED
  except FailedError as error:
    say(f'error: {error}')
    return _EXIT_FAILED
  except errors.UserError as error:
    say(f'error: {error}')
    return _EXIT_USAGE
  except cluster.StoppedError as stopped:
    say(f'stopped by {stopped}; everything is cleaned up')
    return 128 + stopped.number
  return 0


def say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
  """Parser of an option that takes one value or more, with commas."""

  def parse(text: str) -> list[Any]:
    return [kind(part) for part in text.split(',')]

  parse.__name__ = f'list of {kind.__name__}'
  return parse


def whole(text: str) -> int:
  """10000000, 10_000_000 or 1e7.

  Raises:
    ValueError: it is no positive whole number.
  """
  number = float(text)
  if number != int(number) or number < 1:
    raise ValueError(text)
  return int(number)


def save(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
  """After each table: a benchmark that is stopped leaves what it has."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(rows, indent=2) + '\n')
