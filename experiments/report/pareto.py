"""Scores of runs by what a worker sent, and which of them no other beats."""

from collections.abc import Sequence
import io
from typing import NamedTuple

from experiments.program import errors
from experiments.report import byte_axis
from experiments.report import page
from experiments.report import plots
from experiments.run import scores
from matplotlib import figure
from matplotlib.backends import backend_agg


class Point(NamedTuple):
  """A finished run."""

  name: str
  scheme: str
  sent_bytes: float  # by one worker in the whole run
  score: float  # as it is shown


def points(runs: Sequence[page.Run]) -> tuple[scores.Score, list[Point]]:
  """Returns the score of the first finished run, and the runs that have it.

  Raises:
    UserError: no run is finished that was tested and has sent something.
  """
  found, by = [], None
  for run in runs:
    if run.summary is None:
      continue
    final, comm = run.summary['final'], run.summary['comm']
    by = by or scores.main_of(final)
    shown = by and by.of(final)
    average = comm.get('run_average_sent_bytes_per_step', 0)
    sent = comm.get('sent_bytes_total', average * run.summary['steps'])
    if shown is not None and sent:
      found.append(Point(run.name, run.summary['scheme'], sent, shown))
  if not found:
    raise errors.UserError(
      '--pareto needs a finished run that was tested and has sent something'
    )
  return by, found


def frontier(score: scores.Score, found: Sequence[Point]) -> list[Point]:
  """Returns the points that no other beats in both, by rising bytes."""
  kept: list[Point] = []
  for point in sorted(
    found, key=lambda p: (p.sent_bytes, -score.advantage(p.score))
  ):
    if not kept or score.advantage(point.score - kept[-1].score) > 0:
      kept.append(point)
  return kept


def draw(runs: Sequence[page.Run]) -> bytes:
  """Returns a PNG: a point a run, coloured by scheme, and their frontier.

  The runs of the frontier are numbered, and named below it.

  Raises:
    UserError: there is no point.
  """
  score, found = points(runs)
  best = frontier(score, found)
  height = 5 + 0.13 * len(best)
  canvas = figure.Figure(figsize=(8, height), layout='constrained', dpi=120)
  panel = canvas.add_subplot()
  panel.step(
    [point.sent_bytes for point in best],
    [point.score for point in best],
    where='post',
    color='#999999',
    linewidth=1.2,
    zorder=1,
  )
  for index, scheme in enumerate(dict.fromkeys(p.scheme for p in found)):
    own = [point for point in found if point.scheme == scheme]
    turn, colour = divmod(index, len(plots.COLOURS))
    panel.scatter(
      [point.sent_bytes for point in own],
      [point.score for point in own],
      color=plots.COLOURS[colour],
      marker=plots.MARKERS[(colour + turn) % len(plots.MARKERS)],
      alpha=0.85,
      label=scheme,
    )
  for number, point in enumerate(best, 1):
    panel.annotate(
      str(number),
      (point.sent_bytes, point.score),
      fontsize=8,
      xytext=(5, -10 if score.rises else 4),
      textcoords='offset points',
    )
  names = [f'{number}  {point.name}' for number, point in enumerate(best, 1)]
  canvas.supxlabel('\n'.join(names), x=0.02, ha='left', fontsize=7)
  plots.describe(
    panel,
    f'{scores.titled(score.name)} by traffic',
    'sent by one worker in the whole run (bytes, log scale)',
    score.label,
  )
  byte_axis.by_bytes(panel)
  canvas.legend(loc='outside upper center', ncols=5, frameon=False)
  picture = io.BytesIO()
  backend_agg.FigureCanvasAgg(canvas).print_png(picture)
  return picture.getvalue()
