"""From what was measured to the rows that the benchmarks write."""

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import Any

from experiments.program import tables
from experiments.run import scores
from experiments.run import time_breakdown
import pandas as pd
from scipy import stats

_HEADER = 66  # bytes of Ethernet, IP and TCP with time stamps
_SEGMENT = 1448  # bytes of payload in a full packet


def bytes_limit(plan_bytes: int) -> float:
  """The most that may be counted for a plan, protocol overhead included."""
  headers = _HEADER * math.ceil(plan_bytes / _SEGMENT)
  return 1.05 * (plan_bytes + headers) + 4096


def quartile_distance(values: Sequence[float]) -> float:
  """The distance between the first quartile and the third."""
  return float(stats.iqr(values)) if len(values) else 0.0


def make_rows(
  measured: Mapping[str, Any], rate: str, density: float
) -> list[dict[str, Any]]:
  """Turns what the workers measured into rows of the result.

  Args:
    measured: from `exchange_worker.measure`.
    rate: as given; 'loopback' where nothing was shaped.
    density: of the sparse schemes.
  """
  rows = []
  for scheme in measured['schemes']:
    ms = [1e3 * seconds for seconds in scheme['seconds']]
    plan_bytes, sent = scheme['plan_bytes'], scheme['sent_bytes']
    wire = sent and max(round(statistics.median(host)) for host in sent)
    rows.append(
      {
        'scheme': scheme['scheme'],
        'floats': measured['floats'],
        'workers': measured['workers'],
        'rate': rate,
        'density': density,
        'step_ms': statistics.median(ms),
        'step_ms_spread': quartile_distance(ms),
        'wire_bytes': wire,
        'plan_bytes': plan_bytes,
        'bytes_ok': None if wire is None else wire <= bytes_limit(plan_bytes),
        'rounds': len(ms),
      }
    )
  dense = next((row for row in rows if row['scheme'] == 'dense'), None)
  for row in rows:
    row['speedup'] = dense and dense['step_ms'] / row['step_ms']
  return rows


def training_row(
  summary: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  rate: str,
  sent_bytes: int | None,
) -> dict[str, Any]:
  """Turns a training run that has ended into a row.

  Args:
    summary: of the run.
    metrics: its lines.
    rate: as given; 'loopback' where nothing was shaped.
    sent_bytes: by the host that sent most, None if nobody counted.
  """
  steps = summary['steps']
  return {
    'scheme': summary['scheme'],
    'workers': summary['num_workers'],
    'rate': rate,
    'steps': steps,
    'parameters': summary['parameters'],
    'seconds': summary['seconds'],
    'compile_seconds': summary['compile_seconds'],
    **{k: v for k, v in summary['final'].items() if k.startswith('test_')},
    'evaluations': evaluations(metrics),
    'plan_bytes': round(summary['comm']['sent_bytes_total'] / steps),
    'wire_bytes': None if sent_bytes is None else round(sent_bytes / steps),
    **step_times(metrics, steps),
  }


def evaluations(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
  """Returns every test of a run: scores, bytes sent and seconds until then.

  Args:
    lines: of its metrics file.
  """
  return [
    {
      'step': line['step'],
      **tested,
      'sent_bytes': line['comm/sent_bytes_total'],  # by one worker
      'seconds': line['time/seconds'],
    }
    for line in lines
    if (tested := scores.tested(line))
  ]


def step_times(
  metrics: Sequence[Mapping[str, Any]], steps: int
) -> dict[str, Any]:
  """Returns what a step took in the second half of a run that has ended.

  Args:
    metrics: its lines.
    steps: of the run.

  Returns:
    step_ms, the median over these lines, without those of a test if there are
    others, None where there are too few; step_ms_spread; breakdown_ms, medians
    over the steps that were profiled.
  """
  frame = pd.DataFrame(metrics)
  taken = 1e3 * frame['time/seconds'].diff() / frame['step'].diff()
  profiled = frame.reindex(columns=time_breakdown.NAMES).dropna()
  # A profiled step takes longer than another, and so do the steps around it.
  late = taken[frame['step'].shift() >= steps / 2]
  late = late.drop(profiled.index, errors='ignore')
  # A test takes its time before the line of its step.
  tested = frame.filter(like='test/').dropna(how='all').index
  times = late.drop(tested, errors='ignore')
  times = times if len(times) else late
  return {
    'step_ms': float(times.median()) if len(times) else None,
    'step_ms_spread': quartile_distance(times),
    'breakdown_ms': {
      name.removeprefix('time/').removesuffix('_ms'): float(middle)
      for name, middle in profiled.median().items()
      if len(profiled)
    },
  }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
  """Prints the rows of one size, number of workers and rate."""
  columns = {
    'scheme': ('scheme', ''),
    'step': ('step_ms', '.1f'),
    'step spread': ('step_ms_spread', '.1f'),
    'wire bytes': ('wire_bytes', ','),
    'plan bytes': ('plan_bytes', ','),
    'speedup': ('speedup', '.2f'),
  }
  what = '{floats:,} floats, {workers} workers, {rate}; times in ms'
  tables.show(tables.cells(columns, rows), what.format(**rows[0]))
