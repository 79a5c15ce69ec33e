"""Draws the papers' figures of time from their cost models.

  python -m experiments.cost_model --out=DIR [--measured=FILE.json,...]

Writes a picture for each figure and `cost_model.json` with every number, and
prints what the papers print beside what their models say.

Each FILE.json, rows as experiments.benchmarks.exchange writes them
(`scheme`, `floats`, `workers`, `rate`, `step_ms`, perhaps `plan_bytes`), adds
measured points. Rows of two more schemes, which experiments.benchmarks.network
writes, give the network's alpha and beta: 'ping_pong', a message of that many
floats, one way, or else 'all_reduce', a bare dense all-reduce.
"""

from collections.abc import Sequence
import io
import json
import pathlib
import sys
import textwrap
from typing import Any

from absl import app
from absl import flags
from experiments import cost_model_figures as figures
from experiments import errors
from experiments import records
from experiments.cluster import network as links
from gradsparse import cost_model
from gradsparse.cost_model import Network
from matplotlib import figure
from matplotlib import ticker
from matplotlib.backends import backend_agg

_OUT = flags.DEFINE_string('out', None, 'folder for pictures and numbers')
_MEASURED = flags.DEFINE_list('measured', [], 'JSON lists of measured rows')

NUMBERS = 'cost_model.json'
_NEEDED = ('scheme', 'floats', 'workers', 'rate', 'step_ms')


# --- what was measured -----------------------------------------------------


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns measured rows.

  Raises:
    UserError: there is no such file, or it holds something else.
  """
  try:
    rows = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise errors.UserError(f'--measured: cannot read {path}: {error}') from None
  if isinstance(rows, dict):  # as in experiments/results, with its history
    rows = rows.get('rows')
  if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
    raise errors.UserError(f'--measured: {path} does not hold a list of rows')
  for number, row in enumerate(rows):
    lacks = [key for key in _NEEDED if key not in row]
    if lacks:
      raise errors.UserError(
        f'--measured: row {number} of {path} lacks {lacks}'
      )
  return rows


def bits_per_second(rate: str) -> float | None:
  """What tc's notation says ('1gbit', '100mbit'); None for anything else."""
  try:
    return links.bits_per_second(str(rate))
  except errors.ConfigError:
    return None


def fits(rows: figures.Rows) -> dict[str, Network]:
  """Alpha and beta of each rate that has a ping-pong or an all-reduce.

  Of the all-reduces, those of the most workers are taken.
  """
  found = {}
  for rate in {row['rate'] for row in rows}:
    own = [row for row in rows if row['rate'] == rate]
    pings = [row for row in own if row['scheme'] == 'ping_pong']
    reduces = [row for row in own if row['scheme'] == 'all_reduce']
    workers = max((row['workers'] for row in reduces), default=0)
    some = pings or [row for row in reduces if row['workers'] == workers]
    sizes = [4 * row['floats'] for row in some]
    seconds = [row['step_ms'] / 1e3 for row in some]
    if len(set(sizes)) < 2:
      continue
    if pings:
      found[rate] = cost_model.fit(sizes, seconds)
    else:
      found[rate] = cost_model.fit_all_reduce(sizes, seconds, workers)
  return found


def exchange_seconds(row: Any, network: Network) -> float:
  """The model of a measured row, by its planned bytes where it has them."""
  scheme = figures.SCHEMES[row['scheme']]
  if row.get('plan_bytes') is None:
    return scheme.seconds(network, 4 * row['floats'], row['workers'])
  rounds = scheme.exchange(Network(1, 0), 0, row['workers'])
  # What passes rank 0 of the tree: as much comes in as goes out.
  passes = 2 if row['scheme'] == 'gtopk_tree' else 1
  return network.seconds(passes * row['plan_bytes'], rounds)


def measured_figure(
  rows: figures.Rows, fitted: figures.Fits
) -> figures.Figure | None:
  """Measured steps beside the exchange alone; None if there are none."""
  rows = [row for row in rows if row['scheme'] in figures.SCHEMES]
  panels = []
  for rate, workers in sorted({(row['rate'], row['workers']) for row in rows}):
    own = [r for r in rows if (r['rate'], r['workers']) == (rate, workers)]
    network = fitted.get(rate)
    if network is None and bits_per_second(rate):
      network = Network.from_rate(bits_per_second(rate))
    series = []
    for (name, scheme), mark in zip(
      figures.SCHEMES.items(), 'os^Dv<>', strict=True
    ):
      some = [row for row in own if row['scheme'] == name]
      if not some:
        continue
      x, y = figures.points(some, lambda row: row['floats'])
      series.append(figures.Series(scheme.label, x, y, scheme.colour, mark))
      if network is not None:
        some = sorted(some, key=lambda row: row['floats'])
        y = [1e3 * exchange_seconds(row, network) for row in some]
        label = f'{scheme.label}, exchange by model'
        series.append(figures.Series(label, x, y, scheme.colour, listed=False))
    title = f'{rate}, {workers} workers'
    panels.append(figures.Panel(title, 'floats', 'time (ms)', series, 'xy'))
  if not panels:
    return None
  return figures.Figure(
    'measured',
    panels,
    'Marks: measured steps (selection, packing, exchange, update). Lines: '
    'their exchange alone by the model, from planned bytes where the rows have '
    'them; alpha and beta are fitted where a ping-pong or an all-reduce was '
    'measured, else the rate without latency.',
  )


# --- what is printed -------------------------------------------------------


def comparisons() -> list[dict[str, Any]]:
  """Numbers that the papers print, beside their own models."""
  rows = []

  def add(paper, what, unit, printed, model):
    rows.append(
      {
        'paper': paper,
        'what': what,
        'unit': unit,
        'printed': printed,
        'model': round(model, 4),
      }
    )

  for name, trained in figures.GTOPK.items():
    for scheme, rate in zip(figures.OF_TABLE_I, trained.together, strict=False):
      label = figures.SCHEMES[scheme].label
      printed = round(32 * trained.batch / rate, 3)
      what = f'{name}, 32 GPUs, {label}: table VII'
      add('gTop-k', what, 's/step', printed, trained.modelled(scheme, 32))
  for gbits, (what, printed) in figures.DGC_PRINTED.items():
    scheme = what.split(', ')[1]
    model = figures.dgc_speedup('AlexNet', scheme, gbits, 64)
    what = f'{what}, 64 nodes, {gbits} Gbit/s: section 5'
    add('DGC', what, 'x', printed, model)
  whole = sum(figures.qsgd_parts(16))
  ratio = figures.QSGD_RATIO
  for what, printed, model in (
    ('AlexNet, 16 GPUs, less communication time', 4, ratio),
    (
      'AlexNet, 16 GPUs, epoch, communication 4x less',
      2.5,
      whole / sum(figures.qsgd_parts(16, 4)),
    ),
    (
      'AlexNet, 8 GPUs, epoch: table 1',
      figures.QSGD['AlexNet'],
      sum(figures.qsgd_parts(8)) / sum(figures.qsgd_parts(8, ratio)),
    ),
    (
      'LSTM, 2 GPUs, epoch, communication 6.8x less',
      2.7,
      1 / (0.29 + 0.71 / 6.8),
    ),
    ('LSTM, 2 GPUs, epoch: table 1', 2.0, 1 / (0.29 + 0.71 / ratio)),
    ('bytes of 4 bits/512 over 2 bits/128', 1.77, (4 + 1 / 16) / (2 + 1 / 4)),
  ):
    add('QSGD', what, 'x', printed, model)
  network = Network.from_rate(1e9)
  size = 4 * figures.GTOPK['ResNet-50'].parameters
  add(
    'variance',
    'ResNet-50, 1 Gbit/s, 16 workers, exchange over computing (32 images at '
    '52/s, gTop-k): section 1',
    'x',
    10,
    cost_model.ring_all_reduce(network, size, 16) / (32 / 52),
  )
  return rows


def _table(rows: Sequence[dict[str, Any]]) -> str:
  lines = [('paper', 'what', 'unit', 'printed', 'model', 'printed/model')]
  for row in rows:
    cells = [f'{row[key]:.4g}' for key in ('printed', 'model')]
    off = f'{row["printed"] / row["model"]:.2f}'
    lines.append((row['paper'], row['what'], row['unit'], *cells, off))
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.ljust(width) if i < 3 else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    for line in lines
  )


# --- drawing ---------------------------------------------------------------


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


def _plain(value: Any) -> Any:
  """Named tuples and arrays as what JSON has."""
  if hasattr(value, '_asdict'):
    return _plain(value._asdict())
  if isinstance(value, dict):
    return {str(key): _plain(one) for key, one in value.items()}
  if isinstance(value, str | None):
    return value
  if hasattr(value, '__iter__'):
    return [_plain(one) for one in value]
  return value.item() if hasattr(value, 'item') else value


def write(out: pathlib.Path, rows: figures.Rows) -> list[pathlib.Path]:
  """Writes pictures and numbers, and returns their paths."""
  fitted = fits(rows)
  pictures = [*figures.all_figures(rows, fitted), measured_figure(rows, fitted)]
  paths = []
  for picture in filter(None, pictures):
    paths.append(out / f'{picture.name}.png')
    with records.replacing(paths[-1]) as file:
      file.write(draw(picture))
  networks = {
    rate: {'alpha_s': net.alpha_s, 'beta_s_per_byte': net.beta_s_per_byte}
    for rate, net in fitted.items()
  }
  numbers = {
    'figures': {p.name: _plain(p) for p in filter(None, pictures)},
    'fitted_networks': networks,
    'printed_and_model': comparisons(),
  }
  records.write_json(out / NUMBERS, numbers)
  return [*paths, out / NUMBERS]


def main(argv: Sequence[str]) -> None:
  """Writes all and prints the table."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  try:
    rows = [
      row for path in _MEASURED.value for row in read_rows(pathlib.Path(path))
    ]
    paths = write(pathlib.Path(_OUT.value), rows)
  except (errors.UserError, ValueError) as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(1)
  print(_table(comparisons()))
  for one in paths:
    print(one)


if __name__ == '__main__':
  flags.mark_flag_as_required('out')
  app.run(main)
