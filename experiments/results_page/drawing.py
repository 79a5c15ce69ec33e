"""Draws scores by bytes, and differences to dense with their intervals."""

from collections.abc import Mapping, Sequence
import io
import math
import statistics
import textwrap
from typing import Any, NamedTuple

from experiments.cost_model import colours
from experiments.papers import interval
from experiments.report import byte_axis
from experiments.results_page import claims
from experiments.results_page import labels
from experiments.run import scores
from matplotlib import figure
from matplotlib import ticker
from matplotlib.backends import backend_agg

_TEXT = '#444444'
_GRID = '#dddddd'
_BAR = {'elinewidth': 1.3, 'capsize': 3}
_LINES = (
  (colours.BLUE, 'o'),
  (colours.ORANGE, 's'),
  (colours.GREEN, '^'),
  (colours.PINK, 'D'),
)
_VERDICTS = {
  claims.BETTER: colours.GREEN,
  claims.WORSE: colours.ORANGE,
  claims.NO_DIFFERENCE: colours.BLUE,
  claims.TOO_WIDE: colours.PINK,
}
_LABEL = 40  # letters in a line
_LETTERS = 10  # of a title, in an inch
# How much worse than dense the scores are shown, as a multiple of what three
# quarters of the rows stay within; at least `Score.wide`.
_DEEPEST = 2.0


class Point(NamedTuple):
  """A row by its bytes.

  Attributes:
    label: its name.
    sent: bytes that a worker sends in a step, mean of the whole run.
    score: over seeds, as it is shown.
  """

  label: str
  sent: float
  score: interval.Interval


class Dot(NamedTuple):
  """A row by its difference to another, in the unit of the score."""

  label: str
  difference: interval.Interval


def front(score: scores.Score, points: Sequence[Point]) -> list[Point]:
  """Returns those that no other beats with as few bytes, fewest bytes first."""

  def good(point: Point) -> float:
    return score.advantage(point.score.mean)

  found: list[Point] = []
  for point in sorted(points, key=lambda p: (p.sent, -good(p))):
    if not found or good(point) > good(found[-1]):
      found.append(point)
  return found


def pareto(
  title: str, score: scores.Score, dense: Point, points: Sequence[Point]
) -> bytes:
  """Returns a PNG with scores by bytes sent, and the Pareto front.

  Args:
    title: of the picture.
    score: what is drawn.
    dense: the row that all are compared to, drawn as a line, too.
    points: the others.
  """
  canvas, axes = _canvas(8.5, 6.2, title)
  axes.margins(x=0.12, y=0.1)
  best = front(score, [dense, *points])
  as_dense = dense.score.mean

  def behind(point: Point) -> float:
    return score.advantage(as_dense - point.score.mean)

  depth = _depth([behind(point) for point in points], _least(score, as_dense))
  edge = as_dense - score.advantage(depth)
  beyond = [point for point in points if behind(point) > depth]
  names, lines = [], []
  for point in (dense, *points):
    mean, half = point.score.mean, point.score.half
    if point in beyond:
      continue
    on_it = point in best
    colour = colours.BLUE if on_it else colours.ORANGE
    axes.errorbar(
      point.sent,
      mean,
      yerr=half,
      color=colours.BLACK if point is dense else colour,
      marker='D' if point is dense else 'o' if on_it else 's',
      markersize=7 if on_it else 6,
      markerfacecolor=None if half is not None else 'white',
      zorder=3,
      **_BAR,
    )
    names.append(labels.Name(point.label, point.sent, mean))
    if half is not None:
      lines.append(((point.sent, mean - half), (point.sent, mean + half)))
  # No score is below 0, no accuracy above 100 %, however wide its interval.
  bottom, top = axes.get_ylim()
  axes.set_ylim(max(bottom, 0.0), min(top, 1.01 * score.most))
  if beyond:
    side, marker = ('below', 'v') if score.rises else ('above', '^')
    axes.set_ylim(**{'bottom' if score.rises else 'top': edge})
    axes.plot(
      [point.sent for point in beyond],
      [edge] * len(beyond),
      marker,
      color=colours.ORANGE,
      markersize=9,
      clip_on=False,
      label=f'{side} the axis: {score.name} in brackets',
    )
    names += [
      labels.Name(f'{p.label} ({p.score.mean:.1f})', p.sent, edge)
      for p in beyond
    ]
  byte_axis.by_bytes(axes)
  axes.set_xlabel('sent by a worker in a step, mean of the whole run')
  axes.set_ylabel(f'{score.label}, mean and 95 % interval over seeds')
  lines += _front(axes, score, [p for p in best if p not in beyond])
  axes.axhline(as_dense, color=colours.BLACK, linestyle='--', linewidth=1)
  left, right = axes.get_xlim()
  lines.append(((left, as_dense), (right, as_dense)))
  _handles(axes)
  legend(canvas, 3)
  labels.place(canvas, axes, names, lines)
  return png(canvas)


def _front(
  axes: Any, score: scores.Score, best: Sequence[Point]
) -> list[labels.Line]:
  """Draws the Pareto front as a stair, and returns its lines."""
  xs = [point.sent for point in best]
  ys = [point.score.mean for point in best]
  axes.step(
    xs,
    ys,
    where='post',
    color=colours.BLUE,
    linewidth=1.4,
    alpha=0.6,
    label=f'Pareto front: {"more" if score.rises else "less"} {score.name} '
    'takes more bytes',
  )
  found: list[labels.Line] = []
  for x, y, next_x, next_y in zip(xs, ys, xs[1:], ys[1:], strict=False):
    found += [((x, y), (next_x, y)), ((next_x, y), (next_x, next_y))]
  return found


def _depth(away: Sequence[float], least: float) -> float:
  """Returns how far from dense is shown.

  A row that learnt nothing would press all others together; it is at the edge
  of a picture, with its number.

  Args:
    away: how far from dense each row is, or how much worse.
    least: that is shown.
  """
  most = statistics.quantiles([0, *away], n=4, method='inclusive')[-1]
  return max(_DEEPEST * most, least)


def _least(score: scores.Score, dense: float) -> float:
  """Returns how much worse than dense is always shown, as the score is."""
  return score.wide * dense / 100 if score.relative else score.wide


def _handles(axes: Any) -> None:
  """Adds to the legend what a marker means."""
  for label, colour, marker, face in (
    ('dense', colours.BLACK, 'D', colours.BLACK),
    ('on the front', colours.BLUE, 'o', colours.BLUE),
    ('behind it', colours.ORANGE, 's', colours.ORANGE),
    ('one seed', colours.GREY, 'o', 'white'),
  ):
    _handle(axes, label, colour, marker, face)


def _handle(axes: Any, label: str, colour: str, marker: str, face: str) -> None:
  axes.plot([], [], marker, color=colour, markerfacecolor=face, label=label)


def dots(
  title: str, score: scores.Score, rows: Sequence[Dot], unit: str
) -> bytes:
  """Returns a PNG with a line a row: its difference and interval.

  Args:
    title: of the picture.
    score: what the differences are of.
    rows: the first is on top.
    unit: of the differences, and to what they are.
  """
  canvas, axes = _canvas(8, 1.7 + 0.32 * len(rows), title)
  axes.axvline(0, color=colours.BLACK, linewidth=1)
  edge = _depth(
    [(row.difference.half or 0) + abs(row.difference.mean) for row in rows],
    score.wide,
  )
  limits = {}
  for place, row in enumerate(rows):
    found = row.difference
    colour = _VERDICTS.get(claims.verdict(found, score), colours.GREY)
    style = {'color': colour, 'markersize': 7}
    if abs(found.mean) > edge:
      side = math.copysign(1, found.mean)
      limits['left' if side < 0 else 'right'] = side * edge
      axes.plot(
        side * edge, place, '<' if side < 0 else '>', clip_on=False, **style
      )
      axes.annotate(
        str(found),
        (side * edge, place),
        (-9 * side, 0),
        textcoords='offset points',
        va='center',
        ha='left' if side < 0 else 'right',
        fontsize=9,
      )
      continue
    axes.errorbar(
      found.mean,
      place,
      xerr=found.half,
      marker='o',
      markerfacecolor=colour if found.half is not None else 'white',
      **style,
      **_BAR,
    )
  axes.set_xlim(**limits)
  axes.set_yticks(
    range(len(rows)), [textwrap.fill(row.label, _LABEL) for row in rows]
  )
  axes.set_ylim(len(rows) - 0.4, -0.6)  # the first on top
  axes.set_xlabel(f'{unit}, and 95 % interval over seeds')
  there = {claims.verdict(row.difference, score) for row in rows}
  without = dict.fromkeys((claims.ALIKE, claims.ONE_SEED), colours.GREY)
  for words, colour in {**_VERDICTS, **without}.items():
    if words in there:
      face = 'white' if words in without else colour
      _handle(axes, words, colour, 'o', face)
  legend(canvas, 4)
  return png(canvas)


def lines(
  title: str,
  score: scores.Score,
  x_label: str,
  base: int,
  points: Mapping[str, Sequence[tuple[float, interval.Interval]]],
) -> bytes:
  """Returns a PNG with differences to dense by a number.

  Args:
    title: of the picture.
    score: what the differences are of.
    x_label: what the number is.
    base: of the logarithmic axis.
    points: of each line, by its name.
  """
  canvas, axes = _canvas(7.5, 4.6, title)
  axes.axhline(0, color=colours.BLACK, linewidth=1, label='as dense')
  for number, (name, own) in enumerate(points.items()):
    colour, marker = _LINES[number % len(_LINES)]
    aside = 1 + 0.02 * number  # so that intervals do not cover each other
    halves = [found.half or 0.0 for _, found in own]
    axes.errorbar(
      [x * aside for x, _ in own],
      [found.mean for _, found in own],
      yerr=halves,
      color=colour,
      marker=marker,
      markersize=6,
      label=name,
      **_BAR,
    )
  ticks = sorted({x for own in points.values() for x, _ in own})
  axes.set_xscale('log', base=base)
  axes.set_xticks(ticks, [f'{x:g}' for x in ticks])
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.set_xlabel(x_label)
  axes.set_ylabel(f'{score.to_dense}, 95 % interval over seeds')
  canvas.legend(loc='outside lower center', ncols=5, frameon=False, fontsize=9)
  return png(canvas)


def panels(
  width: float, height: float, title: str, count: int
) -> tuple[Any, Sequence[Any]]:
  """Returns an empty picture and its axes, side by side; they share scores."""
  canvas = figure.Figure((width, height), layout='constrained', dpi=120)
  found = canvas.subplots(1, count, sharey=True, squeeze=False)[0]
  canvas.suptitle(
    textwrap.fill(title, int(_LETTERS * width)),
    x=0.01,
    ha='left',
    fontweight='bold',
    fontsize=11,
  )
  for axes in found:
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.tick_params(which='both', labelcolor=_TEXT)
  return canvas, found


def _canvas(width: float, height: float, title: str) -> tuple[Any, Any]:
  canvas, (axes,) = panels(width, height, title, 1)
  return canvas, axes


def legend(canvas: Any, columns: int) -> None:
  """Adds the legend of all axes below them."""
  canvas.legend(
    loc='outside lower center', ncols=columns, frameon=False, fontsize=9
  )


def png(canvas: Any) -> bytes:
  """Returns a picture as a file."""
  out = io.BytesIO()
  backend_agg.FigureCanvasAgg(canvas).print_png(out)
  return out.getvalue()
