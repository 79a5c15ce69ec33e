"""Scores of runs by what a worker sent, and which of them no other beats."""

from collections.abc import Sequence

from experiments.program import errors
from experiments.report import drawing
from experiments.report import page
from experiments.run import scores
import pandas as pd


def points(runs: Sequence[page.Run]) -> tuple[scores.Score, pd.DataFrame]:
  """Returns the score of the first finished run, and the runs that have it.

  The columns are name, scheme, `x`, the bytes that one worker sent in the whole
  run, and `y`, the score as it is shown.

  Raises:
    UserError: no run is finished that was tested and has sent something.
  """
  done = [run for run in runs if run.summary is not None]
  by = next((scores.main_of(run.summary['final']) for run in done), None)
  found = []
  for run in done if by else ():
    comm = run.summary['comm']
    average = comm.get('run_average_sent_bytes_per_step', 0)
    sent = comm.get('sent_bytes_total', average * run.summary['steps'])
    shown = by.of(run.summary['final'])
    if sent and shown is not None:
      found.append((run.name, run.summary['scheme'], sent, shown))
  if not found:
    raise errors.UserError(
      '--pareto needs a finished run that was tested and has sent something'
    )
  return by, pd.DataFrame(found, columns=['name', 'scheme', 'x', 'y'])


def draw(runs: Sequence[page.Run]) -> bytes:
  """Returns a PNG: a point a run, coloured by scheme, and the Pareto front.

  The runs of the front have their names.

  Raises:
    UserError: there is no point.
  """
  score, found = points(runs)
  picture = drawing.canvas(8, 5.5)
  panel = picture.add_subplot()
  panel.margins(0.15)
  for index, (scheme, own) in enumerate(found.groupby('scheme', sort=False)):
    turn, colour = divmod(index, len(drawing.COLOURS))
    marker = drawing.MARKERS[(colour + turn) % len(drawing.MARKERS)]
    style = {'color': drawing.COLOURS[colour], 'marker': marker}
    panel.scatter(own['x'], own['y'], label=scheme, **style)
  title = f'{scores.titled(score.name)} by traffic'
  sent = 'sent by one worker in the whole run (bytes, log scale)'
  drawing.describe(panel, title, sent, score.label)
  drawing.logarithmic(panel, 'x', drawing.BYTES)
  picture.legend(loc='outside upper center', ncols=5, frameon=False)
  drawing.front(panel, found, fewer=True, rises=score.rises)
  return drawing.png(picture)
