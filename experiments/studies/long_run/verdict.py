"""What must hold of a long run, and the table of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.program import tables
from experiments.studies.long_run import run
import numpy as np

# Of the memory in use, over the second half of the run. The first half is for
# caches and the allocator to come to rest.
_GROWTH = 0.01
# Of the residual norm in the last quarter, against that in the second one.
_ABOVE = 1.25


def summary(points: Sequence[run.Point]) -> dict[str, Any]:
  """What the points come to.

  Args:
    points: of a run, at least four.

  Returns:
    Numbers for the table, and `wrong`: what does not hold, in words.
  """
  half, quarter = len(points) // 2, len(points) // 4
  late = points[half:]
  rss = [p.rss_bytes or p.peak_bytes for p in late]
  arrays = [p.live_arrays for p in points]
  norms = [p.residual_norm for p in points]
  early, last = np.mean(norms[quarter:half]), np.mean(norms[-quarter:])
  wrong = []
  if rss[-1] - rss[0] > _GROWTH * rss[0]:
    wrong.append(f'memory grew from {rss[0]:,} to {rss[-1]:,} bytes')
  if max(arrays) > arrays[0]:
    wrong.append(f'live arrays grew from {arrays[0]} to {max(arrays)}')
  if points[-1].compilations:
    wrong.append(f'{points[-1].compilations} programs were compiled later')
  if not np.all(np.isfinite(norms)) or last > _ABOVE * early:
    wrong.append(f'the residual norm rose from {early:.3g} to {last:.3g}')
  if points[-1].rejected_steps:
    wrong.append(f'{points[-1].rejected_steps} steps were rejected')
  return {
    'rss_bytes': rss[-1],
    'rss_growth_bytes': rss[-1] - rss[0],
    'rss_slope_bytes_per_step': _slope(late, rss),
    'live_arrays': arrays[-1],
    'compilations': points[-1].compilations,
    'largest_residual_norm': max(p.largest_residual_norm for p in points),
    'residual_norm': norms[-1],
    'residual_norm_slope_per_step': _slope(late, norms[half:]),
    'loss': points[-1].loss,
    'wrong': wrong,
  }


def _slope(points: Sequence[run.Point], values: Sequence[float]) -> float:
  """Of the line through the values, least squares."""
  return float(np.polyfit([p.step for p in points], values, 1)[0])


_HEAD = (
  'scheme',
  'steps',
  'memory\n(MB)',
  'growth\n(kB)',
  'live\narrays',
  'compiled\nlater',
  'residual norm\nlargest',
  'at the end',
  'slope\n(a step)',
  'loss',
  'seconds',
)


def results_table(rows: Sequence[Mapping[str, Any]]) -> tables.Table:
  """Returns the table, a row a scheme."""
  return tables.make(
    _HEAD,
    [_cells(row) for row in rows],
    caption='growth and slope: over the second half of the run',
  )


def page_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns the same in Markdown, for docs/faults.md."""
  head = [name.replace('\n', ' ') for name in _HEAD]
  return tables.markdown(head, [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
  return (
    row['scheme'],
    f'{row["steps"]:,}',
    f'{row["rss_bytes"] / 1e6:.0f}',
    f'{row["rss_growth_bytes"] / 1e3:.0f}',
    f'{row["live_arrays"]}',
    f'{row["compilations"]}',
    f'{row["largest_residual_norm"]:.3g}',
    f'{row["residual_norm"]:.3g}',
    f'{row["residual_norm_slope_per_step"]:+.1e}',
    f'{row["loss"]:.3f}',
    f'{row["seconds"]:.0f}',
  )
