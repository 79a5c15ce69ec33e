"""Pictures of runs: scores, loss and what the workers still owe."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report import drawing
from experiments.run import scores
from experiments.run import time_breakdown
import pandas as pd

_LOSS_LOG_RANGE = 20  # largest by smallest, above which the axis is logarithmic
_LOSS_WINDOW = 5  # lines of the metrics file
_WORSE = 2.0  # times the worst end of a score that falls, which is shown
_SENT, _LOSS, _OWED = (
  'comm/sent_bytes_total',
  'train/loss',
  'comm/residual_norm',
)

Metrics = Sequence[Mapping[str, Any]]


def draw(runs: Mapping[str, Metrics]) -> bytes:
  """Returns a PNG with four panels, one line a run in each.

  A fifth, with a bar a run, where steps were profiled. The score is that by
  which the first run is judged; runs without it have no line there.

  Args:
    runs: the lines of each run's metrics file, by the name for the legend.
  """
  score = _score(runs)
  frames = {name: pd.DataFrame(lines) for name, lines in runs.items()}
  timed = {n: f for n, f in frames.items() if time_breakdown.STEP in f}
  tall = [4, 4] + ([0.9 + 0.4 * len(timed)] if timed else [])
  picture = drawing.canvas(11.5, sum(tall))
  grid = picture.add_gridspec(len(tall), 2, height_ratios=tall)
  title = scores.titled(score.name)
  sent = 'sent by one worker so far (bytes, log scale)'
  mean = f'nats, mean of the last {_LOSS_WINDOW} logged'
  owed = 'norm of the residual (mean over workers)'
  tested = f'test/{score.key}'
  panels = {}
  for number, (x, y, *words) in enumerate(
    (
      ('step', tested, f'{title} by step', 'step', score.label),
      (_SENT, tested, f'{title} by traffic', sent, score.label),
      ('step', _LOSS, 'Training loss', 'step', mean),
      ('step', _OWED, 'Gradient kept back', 'step', owed),
    )
  ):
    panels[x, y] = panel = picture.add_subplot(grid[number // 2, number % 2])
    drawing.describe(panel, *words)
    for index, (name, frame) in enumerate(frames.items()):
      kept = frame.reindex(columns=[x, y]).dropna()
      ys = kept[y] * (score.scale if y == tested else 1)
      if y == _LOSS:  # below is rounding
        ys = ys.rolling(_LOSS_WINDOW, min_periods=1).mean().clip(lower=1e-5)
      if y != _OWED or ys.any():
        panel.plot(
          kept[x],
          ys,
          color=drawing.COLOURS[index % len(drawing.COLOURS)],
          marker=drawing.MARKERS[index % len(drawing.MARKERS)]
          if y == tested
          else None,
          markersize=4.5,
          linewidth=1.6,
          alpha=0.85,
          label=name,
        )
  _leave_out_the_climb(panels['step', tested], score)
  _leave_out_the_climb(panels[_SENT, tested], score)
  drawing.logarithmic(panels[_SENT, tested], 'x', drawing.BYTES)
  low, high = panels['step', _LOSS].dataLim.intervaly
  if high > _LOSS_LOG_RANGE * low > 0:
    panels['step', _LOSS].set_yscale('log')
  lines = panels['step', tested].get_legend_handles_labels()
  picture.legend(*lines, loc='outside upper center', ncols=7, frameon=False)
  if timed:
    _draw_times(picture.add_subplot(grid[2, :]), timed)
  return drawing.png(picture)


def _draw_times(panel: Any, timed: Mapping[str, pd.DataFrame]) -> None:
  """Draws milliseconds by phase, means over the profiled steps."""
  names = list(time_breakdown.NAMES)
  means = pd.DataFrame({n: f[names].mean() for n, f in timed.items()}).T[::-1]
  labels = (*time_breakdown.PHASES, 'other')
  drawing.bars(panel, means.set_axis(labels, axis=1))
  drawing.describe(
    panel, 'Time of a step', 'milliseconds, mean over the profiled steps', ''
  )
  panel.legend(ncols=5, frameon=False, loc='lower right', bbox_to_anchor=(1, 1))


def _score(runs: Mapping[str, Metrics]) -> scores.Score:
  """Returns the score of the first run that was tested."""
  tests = (scores.tested(line) for lines in runs.values() for line in lines)
  return next(filter(None, map(scores.main_of, tests)), scores.ACCURACY)


def _leave_out_the_climb(panel: Any, score: scores.Score) -> None:
  """Cuts off most of the scores that are worse than the ends of the runs.

  Accuracies need that only if all of them end near 100 %.
  """
  ends = [ys[-1] for line in panel.lines if len(ys := line.get_ydata())]
  if ends and not score.rises and max(ends) > 0:
    panel.set_ylim(top=min(panel.get_ylim()[1], _WORSE * max(ends)))
  elif ends and score is scores.ACCURACY and min(ends) > 90:
    panel.set_ylim(85, 100.5)
