"""Runs as rows of a CSV file or a frame, by dotted names."""

from collections.abc import Mapping, Sequence
from typing import Any

from flax import traverse_util

FINISHED = 'finished'
UNFINISHED = 'unfinished'
FAILED = 'failed'


def make(runs: Sequence[Any]) -> list[dict[str, Any]]:
  """Returns a row a run: its name, how far it is, all fields, the summary.

  Args:
    runs: from `page.find_runs`.
  """
  return [
    {
      'run': run.name,
      **outcome(run.summary, run.metrics),
      **{f'config.{name}': value for name, value in flat(run.config).items()},
      **flat(run.summary or {}),
    }
    for run in runs
  ]


def outcome(
  summary: Mapping[str, Any] | None, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
  """Returns how far a run is: `status`, and `step`, the last in its metrics.

  Args:
    summary: None where it is not at its last step.
    metrics: lines of its metrics file.
  """
  step = metrics[-1]['step'] if metrics else 0
  return {'status': UNFINISHED if summary is None else FINISHED, 'step': step}


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
  """Returns values by names such as `comm.ratio`; lists are left out."""
  found = traverse_util.flatten_dict(dict(nested), sep='.')
  return {n: value for n, value in found.items() if not isinstance(value, list)}
