"""Names beside points, none over another."""

from collections.abc import Iterator, Sequence
import math
from typing import Any, NamedTuple

from matplotlib import text
from matplotlib import transforms
from matplotlib.backends import backend_agg
import numpy as np

_SIZE = 8.5  # points
_PAD = 2.0  # pixels around a name
_MARK = 6.0  # pixels on each side of a point
_LINE = 1.5  # pixels on each side of a line
_NEAR = 12.0  # points; a name further away has a line to its point
_ANGLES = 24
_RINGS = (7, 10, 14, 20, 28, 38, 50, 64, 80, 100, 125, 155)  # points


class Name(NamedTuple):
  """A name, and the point that has it."""

  text: str
  x: float
  y: float


# Its two ends; along one of the axes.
Line = tuple[tuple[float, float], tuple[float, float]]


def place(
  canvas: Any,
  axes: Any,
  names: Sequence[Name],
  lines: Sequence[Line] = (),
) -> list[transforms.Bbox]:
  """Writes names beside points, as near as there is room.

  Args:
    canvas: the figure, all else of which is there.
    axes: of the points.
    names: what to write; no name is written over another, or over a point.
    lines: nor over these, as long as there is other room.

  Returns:
    The room that each name takes, in pixels.
  """
  backend_agg.FigureCanvasAgg(canvas)
  canvas.draw_without_rendering()
  canvas.set_layout_engine('none')  # nothing moves from here on
  to_pixels = axes.transData.transform
  marks = [_box(to_pixels((n.x, n.y)), (_MARK, _MARK)) for n in names]
  drawn = [
    transforms.Bbox(to_pixels(sorted(line))).padded(_LINE) for line in lines
  ]
  taken: list[transforms.Bbox] = []
  for name in names:
    note = axes.annotate(
      name.text,
      (name.x, name.y),
      (0, 0),
      textcoords='offset points',
      fontsize=_SIZE,
      ha='center',
      va='center',
      annotation_clip=False,
      arrowprops={
        'arrowstyle': '-',
        'color': '#999999',
        'linewidth': 0.7,
        'shrinkA': 0,
        'shrinkB': 4,
      },
    )
    extent = text.Text.get_window_extent(note)  # without its line
    half = (extent.width / 2 + _PAD, extent.height / 2 + _PAD)
    scale = canvas.dpi / 72
    point = to_pixels((name.x, name.y))
    # Over a line rather than nowhere.
    for obstacles in ([*taken, *marks, *drawn], [*taken, *marks]):
      found = _free(point, half, scale, axes.bbox, obstacles)
      if found is not None:
        break
    ring, box = found or (0.0, _box(point, half))
    taken.append(box)
    centre = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
    note.set_position(tuple((centre - point) / scale))
    note.arrow_patch.set_visible(ring > _NEAR)
  return taken


def _free(
  point: np.ndarray,
  half: tuple[float, float],
  scale: float,
  inside: transforms.BboxBase,
  obstacles: Sequence[transforms.Bbox],
) -> tuple[float, transforms.Bbox] | None:
  """Returns the first free room, nearest first, and how far it is in points."""
  for ring, offset in _offsets(half, scale):
    box = _box(point + offset, half)
    within = (
      inside.x0 <= box.x0
      and box.x1 <= inside.x1
      and inside.y0 <= box.y0
      and box.y1 <= inside.y1
    )
    if within and not any(box.overlaps(other) for other in obstacles):
      return ring, box
  return None


def _offsets(
  half: tuple[float, float], scale: float
) -> Iterator[tuple[float, np.ndarray]]:
  """Yields centres around a point whose box is so many points away from it."""
  for ring in _RINGS:
    for number in range(_ANGLES):
      angle = 2 * math.pi * number / _ANGLES  # to the right at first
      way = np.array([math.cos(angle), math.sin(angle)])
      yield ring, way * (np.array(half) + ring * scale)


def _box(
  centre: Sequence[float] | np.ndarray, half: tuple[float, float]
) -> transforms.Bbox:
  (x, y), (width, height) = centre, half
  return transforms.Bbox([[x - width, y - height], [x + width, y + height]])
