"""Finished runs gathered into one record, with their curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.program import errors
from experiments.report import page
from experiments.run import scores

_CURVES = ('train/loss', 'comm/sent_bytes_total')


def gather(runs: Sequence[page.Run]) -> dict[str, Any]:
  """Returns the summaries and curves of the runs, by name.

  Raises:
    UserError: a run is not finished.
  """
  found = {}
  for run in runs:
    if run.summary is None:
      raise errors.UserError(f'{run.name} has not reached its last step')
    score = scores.main_of(run.summary['final'])
    names = [*_CURVES, *([f'test/{score.key}'] if score else [])]
    found[run.name] = {
      **run.summary,
      'curves': {name: _curve(run.metrics, name) for name in names},
    }
  return found


def _curve(metrics: Sequence[Mapping[str, Any]], name: str) -> list[list[Any]]:
  """Returns [step, value] pairs."""
  return [[line['step'], line[name]] for line in metrics if name in line]
