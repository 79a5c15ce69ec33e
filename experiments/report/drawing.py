"""What all pictures of runs share: colours, panels, names beside points."""

from collections.abc import Iterable, Sequence
import io
import itertools
import math
from typing import Any

from matplotlib import figure
from matplotlib import text as text_of
from matplotlib import ticker
from matplotlib import transforms
from matplotlib.backends import backend_agg
import pandas as pd

# Okabe and Ito's colours, told apart by colour-blind readers too.
BLACK, ORANGE, BLUE, GREEN = '#000000', '#D55E00', '#0072B2', '#009E73'
GREY = '#999999'
COLOURS = (BLACK, ORANGE, BLUE, GREEN, '#CC79A7', '#E69F00', '#56B4E9')
MARKERS = 'os^Dv<>'
# Numbers at ticks between two powers of ten that stand for themselves.
_BETWEEN = (2, 5)
_RINGS = (4, 8, 13, 19, 26, 34, 44, 56, 70)  # points between a point and a name
_ANGLES = [2 * math.pi * turn / 16 for turn in range(16)]


def canvas(width: float, height: float) -> figure.Figure:
  """Returns an empty picture, in inches."""
  made = figure.Figure((width, height), layout='constrained', dpi=120)
  backend_agg.FigureCanvasAgg(made)
  return made


def describe(panel: Any, title: str, x: str, y: str) -> None:
  """Gives a panel its title, the names of its axes, and a grid."""
  panel.set_title(title, loc='left', fontweight='bold', fontsize=11)
  panel.set(xlabel=x, ylabel=y, axisbelow=True)
  panel.grid(color='#dddddd', linewidth=0.6)
  panel.spines[['top', 'right']].set_visible(False)


def bars(axes: Any, parts: pd.DataFrame) -> None:
  """Draws a bar a row, its parts side by side; the last row is on top."""
  left = 0.0
  for part, colour in zip(parts, (*COLOURS[1:5], '#bbbbbb'), strict=True):
    axes.barh(parts.index, parts[part], left=left, label=part, color=colour)
    left = left + parts[part]


def by_bytes(axes: Any) -> None:
  """Makes the horizontal axis logarithmic, with names such as 10 kB.

  Ticks between powers of ten have names where fewer than two powers are shown.
  """
  named = ticker.EngFormatter('B')

  def between(value: float, _: int | None = None) -> str:
    left, right = sorted(axes.get_xlim())
    powers = math.floor(math.log10(right)) - math.ceil(math.log10(left)) + 1
    first = round(value / 10 ** math.floor(math.log10(value)))
    return named(value) if powers < 2 and first in _BETWEEN else ''

  axes.set_xscale('log')
  axes.xaxis.set_major_formatter(named)
  axes.xaxis.set_minor_formatter(between)


def front(points: Iterable[tuple[str, float, float]]) -> list[str]:
  """Returns the names of the points that no other beats in both, by rising x.

  Args:
    points: name, x (less is better) and y (more is better).
  """
  best, kept = -math.inf, []
  for name, _, y in sorted(points, key=lambda point: (point[1], -point[2])):
    if y > best:
      best = y
      kept.append(name)
  return kept


def label(picture: figure.Figure, axes: Any, names: Sequence[Any]) -> None:
  """Writes names beside points, as near as there is room.

  Args:
    picture: to which nothing is added afterwards.
    axes: of the points.
    names: text, x and y each.
  """
  picture.draw_without_rendering()
  picture.set_layout_engine('none')  # nothing moves from here on
  to_pixels, scale = axes.transData.transform, picture.dpi / 72
  taken = [_box(to_pixels((x, y)), (5, 5)) for _, x, y in names]
  for text, x, y in names:
    note = axes.annotate(
      text,
      (x, y),
      (0, 0),
      textcoords='offset points',
      fontsize=8,
      ha='center',
      va='center',
      bbox={'color': 'white', 'alpha': 0.7, 'pad': 0.5},
      arrowprops={'arrowstyle': '-', 'color': '#999999', 'linewidth': 0.6},
    )
    renderer = picture.canvas.get_renderer()
    size = text_of.Text.get_window_extent(note, renderer)  # without its line
    half, at = (size.width / 2 + 1, size.height / 2 + 1), to_pixels((x, y))
    for ring, angle in itertools.product(_RINGS, _ANGLES):
      moved = (
        math.cos(angle) * (half[0] + ring * scale),
        math.sin(angle) * (half[1] + ring * scale),
      )
      box = _box(at + moved, half)
      inside = axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1)
      inside &= axes.bbox.containsy(box.y0) and axes.bbox.containsy(box.y1)
      if inside and not box.count_overlaps(taken):
        break
    taken.append(box)
    note.set_position((moved[0] / scale, moved[1] / scale))
    note.arrow_patch.set_visible(ring > _RINGS[1])


def _box(centre: Sequence[float], half: Sequence[float]) -> transforms.Bbox:
  (x, y), (width, height) = centre, half
  return transforms.Bbox([[x - width, y - height], [x + width, y + height]])


def png(picture: figure.Figure) -> bytes:
  """Returns a picture as a file."""
  out = io.BytesIO()
  picture.canvas.print_png(out)
  return out.getvalue()
