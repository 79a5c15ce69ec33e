"""Draws scores by what they cost, and what a step is made of."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.cost_model import colours
from experiments.report import byte_axis
from experiments.results_page import drawing
from experiments.run import scores

_COLOURS = (
  colours.BLACK,
  colours.BLUE,
  colours.ORANGE,
  colours.GREEN,
  colours.PINK,
  colours.YELLOW,
  colours.SKY,
)
_MARKERS = 'Dos^vP*'


class Curve(NamedTuple):
  """The tests of a run.

  Attributes:
    label: its name.
    seconds: until each.
    sent: bytes by one worker until each.
    shown: score of each, as it is shown.
  """

  label: str
  seconds: Sequence[float]
  sent: Sequence[float]
  shown: Sequence[float]


def by_cost(title: str, score: scores.Score, lines: Sequence[Curve]) -> bytes:
  """Returns a PNG with scores by seconds, and beside that by bytes.

  Args:
    title: of the picture.
    score: what is drawn.
    lines: a run each.
  """
  canvas, (left, right) = drawing.panels(10, 4.6, title, 2)
  for number, line in enumerate(lines):
    style = {
      'color': _COLOURS[number % len(_COLOURS)],
      'marker': _MARKERS[number % len(_MARKERS)],
      'markersize': 5,
    }
    left.plot(line.seconds, line.shown, label=line.label, **style)
    right.plot(line.sent, line.shown, **style)
  left.set_xlabel('seconds since the start')
  left.set_ylabel(score.label)
  byte_axis.by_bytes(right)
  right.set_xlabel('sent by a worker since the start')
  drawing.legend(canvas, 4)
  return drawing.png(canvas)


def breakdown(title: str, parts: Mapping[str, Mapping[str, float]]) -> bytes:
  """Returns a PNG with a bar a row: milliseconds of the parts of a step.

  Args:
    title: of the picture.
    parts: by row and part.
  """
  canvas, (axes,) = drawing.panels(8, 1.9 + 0.45 * len(parts), title, 1)
  names = list(parts)
  ends = [0.0] * len(names)
  for number, phase in enumerate(next(iter(parts.values()))):
    widths = [max(0.0, parts[name][phase]) for name in names]
    axes.barh(
      range(len(names)),
      widths,
      left=ends,
      height=0.6,
      color=_COLOURS[(number + 1) % len(_COLOURS)],
      label=phase,
    )
    ends = [end + width for end, width in zip(ends, widths, strict=True)]
  axes.set_yticks(range(len(names)), names)
  axes.set_ylim(len(names) - 0.4, -0.6)  # the first on top
  axes.set_xlabel('milliseconds of a step, medians')
  drawing.legend(canvas, 5)
  return drawing.png(canvas)
