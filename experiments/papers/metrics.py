"""The columns of the papers' tables, and how a run of ours gives them."""

from collections.abc import Callable, Mapping, Sequence
import statistics
from typing import Any, NamedTuple


class Metric(NamedTuple):
  """A column.

  Attributes:
    heading: with its unit.
    form: of a number.
    of: takes a run of a `record.Record` and returns ours; None where this run
      has none.
  """

  heading: str
  form: str
  of: Callable[[Mapping[str, Any]], float | None]


def _top5(run: Mapping[str, Any]) -> float | None:
  found = run['final'].get('test_top5_accuracy')  # of more than five classes
  return None if found is None else 100 * found


def _images_per_second(run: Mapping[str, Any]) -> float | None:
  milliseconds = run['step_ms']  # None: too few lines were logged
  return None if not milliseconds else 1e3 * run['step_images'] / milliseconds


METRICS: Mapping[str, Metric] = {
  'top1': Metric(
    'top-1 (%)', '{:.2f}', lambda run: 100 * run['final']['test_accuracy']
  ),
  'top5': Metric('top-5 (%)', '{:.2f}', _top5),
  # Of the whole run, as the variance paper has it.
  'elements': Metric(
    'n / sent',
    '{:,.1f}',
    lambda run: run['comm']['run_average_element_ratio'],
  ),
  # Of the last stage, as DGC's paper has them.
  'size': Metric(
    'message (MiB)',
    '{:.2f}',
    lambda run: run['comm']['payload_bytes_per_step'] / 2**20,
  ),
  'ratio': Metric('ratio', '{:,.0f}', lambda run: run['comm']['ratio']),
  'images': Metric('images/s', '{:,.0f}', _images_per_second),
}

# What may be reported of several seeds.
MIDDLES: Mapping[str, Callable[[Sequence[float]], float]] = {
  'mean': statistics.fmean,
  'median': statistics.median,
}
