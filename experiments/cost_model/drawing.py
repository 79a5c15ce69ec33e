"""Pictures of the figures."""

import io
import textwrap

from experiments.cost_model import figures
from matplotlib import figure
from matplotlib import ticker
from matplotlib.backends import backend_agg


def draw(picture: figures.Figure) -> bytes:
  """Returns a PNG."""
  columns = min(len(picture.panels), 3 if len(picture.panels) != 4 else 2)
  lines = -(-len(picture.panels) // columns)
  width = max(7.5, 5.6 * columns)
  canvas = figure.Figure(
    (width, 4.4 * lines + 0.6), layout='constrained', dpi=110
  )
  canvas.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
  grid = canvas.subplots(lines, columns, squeeze=False).ravel()
  for axes in grid[len(picture.panels) :]:
    axes.set_axis_off()
  for axes, panel in zip(grid, picture.panels, strict=False):
    _draw_panel(axes, panel)
  legends = [axes.get_legend_handles_labels() for axes in grid]
  labels = {tuple(labels) for _, labels in legends if labels}
  if len(labels) == 1:
    canvas.legend(
      *legends[0], loc='outside upper center', ncols=4, frameon=False
    )
  else:
    for axes in grid[: len(picture.panels)]:
      axes.legend(fontsize=8, frameon=False)
  caption = textwrap.fill(picture.caption, round(15 * width))
  canvas.supxlabel(caption, x=0.01, ha='left', fontsize=9, color='#444444')
  out = io.BytesIO()
  backend_agg.FigureCanvasAgg(canvas).print_png(out)
  return out.getvalue()


def _draw_panel(axes, panel: figures.Panel) -> None:
  for one in panel.series:
    label = one.label if one.listed else None
    style = {'color': one.colour, 'label': label}
    if one.base is not None:
      axes.bar(one.x, one.y, 0.38, one.base, **style)
      continue
    size = 11 if one.mark == '*' else 6
    marks = {'marker': one.mark, 'markersize': size, 'markeredgecolor': 'white'}
    line = {'linestyle': 'none', 'zorder': 3, **marks}
    line = line if one.mark else {'linestyle': one.line, 'linewidth': 1.7}
    axes.plot(one.x, one.y, **style, **line)
  axes.set_title(panel.title, loc='left', fontweight='bold', fontsize=11)
  axes.set_xlabel(panel.x_label)
  axes.set_ylabel(panel.y_label)
  if 'x' in panel.log:
    axes.set_xscale('log', base=2 if panel.ticks else 10)
  if 'y' in panel.log:
    axes.set_yscale('log')
  else:
    axes.set_ylim(bottom=0)
  axes.yaxis.set_major_formatter(lambda value, _: f'{value:,.6g}')
  if panel.ticks:
    axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
  else:
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  axes.grid(color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
