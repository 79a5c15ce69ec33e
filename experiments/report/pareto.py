"""Scores of runs by what a worker sent, and which of them no other beats."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.program import errors
from experiments.report import drawing
from experiments.report import page
from experiments.run import scores


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


def draw(runs: Sequence[page.Run]) -> bytes:
  """Returns a PNG: a point a run, coloured by scheme, and the Pareto front.

  The runs of the front have their names.

  Raises:
    UserError: there is no point.
  """
  score, found = points(runs)
  names = drawing.front(
    (p.name, p.sent_bytes, score.advantage(p.score)) for p in found
  )
  best = sorted(
    (p for p in found if p.name in names), key=lambda p: p.sent_bytes
  )
  picture = drawing.canvas(8, 5.5)
  panel = picture.add_subplot()
  panel.margins(0.12)
  xs, ys = [p.sent_bytes for p in best], [p.score for p in best]
  panel.step(xs, ys, where='post', color='#999999', linewidth=1.2, zorder=1)
  for index, scheme in enumerate(dict.fromkeys(p.scheme for p in found)):
    own = [p for p in found if p.scheme == scheme]
    turn, colour = divmod(index, len(drawing.COLOURS))
    panel.scatter(
      [p.sent_bytes for p in own],
      [p.score for p in own],
      color=drawing.COLOURS[colour],
      marker=drawing.MARKERS[(colour + turn) % len(drawing.MARKERS)],
      alpha=0.85,
      label=scheme,
    )
  drawing.describe(
    panel,
    f'{scores.titled(score.name)} by traffic',
    'sent by one worker in the whole run (bytes, log scale)',
    score.label,
  )
  drawing.by_bytes(panel)
  picture.legend(loc='outside upper center', ncols=5, frameon=False)
  drawing.label(picture, panel, [(p.name, p.sent_bytes, p.score) for p in best])
  return drawing.png(picture)
