"""What all pictures of runs share: colours, panels, names beside points."""

import io
import math
from typing import Any

from matplotlib import figure
from matplotlib import ticker
from matplotlib.backends import backend_agg
import pandas as pd

# Okabe and Ito's colours, told apart by colour-blind readers too.
BLACK, ORANGE, BLUE, GREEN = '#000000', '#D55E00', '#0072B2', '#009E73'
GREY = '#999999'
COLOURS = (BLACK, ORANGE, BLUE, GREEN, '#CC79A7', '#E69F00', '#56B4E9')
MARKERS = 'os^Dv<>'
BYTES = ticker.EngFormatter('B')  # of ticks: 10 kB


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


def logarithmic(panel: Any, which: str, form: Any = '{x:g}') -> None:
  """Makes an axis logarithmic, with names at 1, 2, 5, 10.

  If what is drawn already is wide, only powers of 10 have names. If it is
  narrow, more numbers have.

  Args:
    panel: that has it.
    which: 'x' or 'y'.
    form: of the names, for matplotlib.
  """
  panel.set(**{f'{which}scale': 'log'})
  axis = getattr(panel, f'{which}axis')
  low, high = axis.get_view_interval()
  subs = (1, 2, 5) if high < 200 * low else (1,)
  subs = (1, 1.5, 2, 3, 5, 7) if high < 10 * low else subs
  axis.set_major_locator(ticker.LogLocator(subs=subs))
  axis.set_major_formatter(form)
  axis.set_minor_formatter(ticker.NullFormatter())


def front(
  panel: Any, points: pd.DataFrame, *, fewer: bool, rises: bool = True
) -> None:
  """Draws a line through the points that no other beats in both, with names.

  A name rises from its point to the side of the panel's middle, at a slant, so
  that names of points side by side do not cross. It is cut off at the panel's
  edge.

  Args:
    panel: of the points, logarithmic in x.
    points: columns `name`, `x` and `y`.
    fewer: whether less of x is better.
    rises: whether more of y is better.
  """
  ordered = points.sort_values(['x', 'y'], ascending=[fewer, not rises])
  good = ordered['y'] if rises else -ordered['y']
  best = ordered[good > good.cummax().shift(fill_value=-math.inf)]
  panel.step(best['x'], best['y'], where='post', color=GREY)
  middle = math.sqrt(math.prod(panel.get_xlim()))  # of a logarithmic axis
  for name, x, y in best[['name', 'x', 'y']].itertuples(index=False):
    end, side = ('right', -1) if x > middle else ('left', 1)
    offset = {'xytext': (2 * side, 5), 'textcoords': 'offset points', 'ha': end}
    slant = {'rotation': 55 * side, 'rotation_mode': 'anchor'}
    panel.annotate(name, (x, y), **offset, **slant, fontsize=8, clip_on=True)


def png(picture: figure.Figure) -> bytes:
  """Returns a picture as a file."""
  out = io.BytesIO()
  picture.canvas.print_png(out)
  return out.getvalue()
