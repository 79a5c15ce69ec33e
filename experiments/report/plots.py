"""Pictures of runs: scores, loss and what the workers still owe."""

from collections.abc import Mapping, Sequence
import io
from typing import Any

from experiments.report import byte_axis
from experiments.run import scores
from experiments.run import time_breakdown
from matplotlib import figure
from matplotlib.backends import backend_agg

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = (
  '#000000',
  '#D55E00',
  '#0072B2',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
)
MARKERS = 'os^Dv<>'
_LOSS_FLOOR = 1e-5  # nats; below is rounding
_LOSS_LOG_RANGE = 20  # largest by smallest, above which the axis is logarithmic
_LOSS_WINDOW = 5  # lines of the metrics file
_WORSE = 2.0  # times the worst end of a score that falls, which is shown

Metrics = Sequence[Mapping[str, Any]]


def draw(runs: Mapping[str, Metrics]) -> bytes:
  """Returns a PNG with four panels, one line a run in each.

  A fifth, with a bar a run, where steps were profiled. The score is that by
  which the first run is judged; runs without it have no line there.

  Args:
    runs: the lines of each run's metrics file, by the name for the legend.
  """
  bars = {name: _mean_times(metrics) for name, metrics in runs.items()}
  bars = {name: times for name, times in bars.items() if times}
  extra = 0.9 + 0.4 * len(bars) if bars else 0.0
  canvas = figure.Figure(
    figsize=(11.5, 8 + extra), layout='constrained', dpi=120
  )
  grid = canvas.add_gridspec(
    3 if bars else 2, 2, height_ratios=[4, 4] + ([extra] if bars else [])
  )
  by_step, by_bytes, losses, residuals = (
    canvas.add_subplot(grid[i, j]) for i in range(2) for j in range(2)
  )
  if bars:
    _draw_times(canvas.add_subplot(grid[2, :]), bars)
  score = _score(runs)
  for index, (name, metrics) in enumerate(runs.items()):
    style = {
      'color': COLOURS[index % len(COLOURS)],
      'label': name,
      'linewidth': 1.6,
      'alpha': 0.85,
    }
    marker = MARKERS[index % len(MARKERS)]
    marks = {**style, 'marker': marker, 'markersize': 4.5}
    for panel, x in ((by_step, 'step'), (by_bytes, 'comm/sent_bytes_total')):
      xs, kept = _columns(metrics, x, f'test/{score.key}')
      panel.plot(xs, [score.scale * y for y in kept], **marks)
    steps, loss = _columns(metrics, 'step', 'train/loss')
    losses.plot(steps, _running_mean(loss), **style)
    steps, norms = _columns(metrics, 'step', 'comm/residual_norm')
    if any(norms):
      residuals.plot(steps, norms, **style)

  title = scores.titled(score.name)
  describe(by_step, f'{title} by step', 'step', score.label)
  describe(
    by_bytes,
    f'{title} by traffic',
    'sent by one worker so far (bytes, log scale)',
    score.label,
  )
  for panel in (by_step, by_bytes):
    _leave_out_the_climb(panel, score)
  if by_bytes.lines:
    byte_axis.by_bytes(by_bytes)
  describe(
    losses,
    'Training loss',
    'step',
    f'nats, mean of the last {_LOSS_WINDOW} logged',
  )
  shown = [y for line in losses.lines for y in line.get_ydata()]
  if shown and max(shown) > _LOSS_LOG_RANGE * min(shown):
    losses.set_yscale('log')
  describe(
    residuals,
    'Gradient kept back',
    'step',
    'norm of the residual (mean over workers)',
  )
  if not residuals.lines:
    residuals.text(
      0.5,
      0.5,
      'no run keeps a residual',
      ha='center',
      transform=residuals.transAxes,
      color='#666666',
    )
  handles, labels = by_step.get_legend_handles_labels()
  canvas.legend(
    handles, labels, loc='outside upper center', ncols=7, frameon=False
  )
  picture = io.BytesIO()
  backend_agg.FigureCanvasAgg(canvas).print_png(picture)
  return picture.getvalue()


def _mean_times(metrics: Metrics) -> list[float]:
  """Returns mean milliseconds by phase over the profiled steps, if any."""
  lines = [line for line in metrics if time_breakdown.STEP in line]
  return [
    sum(line[name] for line in lines) / len(lines)
    for name in (time_breakdown.NAMES if lines else ())
  ]


def _draw_times(panel, bars: Mapping[str, Sequence[float]]) -> None:
  names = list(bars)[::-1]  # the first on top
  left = [0.0] * len(names)
  labels = [*time_breakdown.PHASES, 'other']
  colours = (*COLOURS[1:5], '#bbbbbb')
  for number, (label, colour) in enumerate(zip(labels, colours, strict=True)):
    widths = [bars[name][number] for name in names]
    panel.barh(names, widths, left=left, label=label, color=colour, height=0.7)
    left = [a + b for a, b in zip(left, widths, strict=True)]
  describe(
    panel, 'Time of a step', 'milliseconds, mean over the profiled steps', ''
  )
  panel.legend(ncols=5, frameon=False, loc='lower right', bbox_to_anchor=(1, 1))


def _columns(
  metrics: Metrics, x: str, y: str
) -> tuple[list[float], list[float]]:
  """Returns the lines that have both fields, as two lists."""
  points = [
    (line[x], line[y])
    for line in metrics
    if line.get(x) is not None and line.get(y) is not None
  ]
  return [a for a, _ in points], [b for _, b in points]


def _running_mean(values: Sequence[float]) -> list[float]:
  """Returns means of the last few values, not below the floor."""
  windows = [
    values[max(0, end - _LOSS_WINDOW) : end]
    for end in range(1, len(values) + 1)
  ]
  return [max(sum(w) / len(w), _LOSS_FLOOR) for w in windows]


def describe(panel, title: str, x: str, y: str) -> None:
  """Gives a panel its title, the names of its axes, and a grid."""
  panel.set_title(title, loc='left', fontweight='bold', fontsize=11)
  panel.set_xlabel(x)
  panel.set_ylabel(y)
  panel.grid(color='#dddddd', linewidth=0.6)
  panel.set_axisbelow(True)
  panel.spines[['top', 'right']].set_visible(False)


def _score(runs: Mapping[str, Metrics]) -> scores.Score:
  """Returns the score of the first run that was tested."""
  for metrics in runs.values():
    for line in metrics:
      if score := scores.main_of(scores.tested(line)):
        return score
  return scores.ACCURACY


def _leave_out_the_climb(panel, score: scores.Score) -> None:
  """Leaves room for what is worse than the ends of the runs, but not for all.

  Accuracies need that only if all of them end near 100 %.
  """
  ends = [line.get_ydata()[-1] for line in panel.lines if len(line.get_ydata())]
  if not ends:
    return
  if not score.rises and max(ends) > 0:
    panel.set_ylim(top=min(panel.get_ylim()[1], _WORSE * max(ends)))
  elif score is scores.ACCURACY and min(ends) > 90:
    panel.set_ylim(85, 100.5)
