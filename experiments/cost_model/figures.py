"""The papers' figures of time as numbers, computed from their cost models."""

from collections.abc import Callable, Mapping, Sequence
import itertools
import re
from typing import Any, NamedTuple

from experiments.cost_model import colours
from experiments.cost_model import costs
from experiments.cost_model import papers
from experiments.cost_model.costs import Network
import numpy as np

Rows = Sequence[Mapping[str, Any]]
# Fitted alpha and beta, by the rate that a row names.
Fits = Mapping[str, Network]


class Series(NamedTuple):
  """A line, points (`mark`) or bars (`base`: where each begins).

  Those not `listed` are not in the legend; the caption tells what they are.
  """

  label: str
  x: Sequence[float]
  y: Sequence[float]
  colour: str
  mark: str = ''
  line: str = '-'
  base: Sequence[float] | None = None
  listed: bool = True


class Panel(NamedTuple):
  """One pair of axes; `log` names those that are logarithmic."""

  title: str
  x_label: str
  y_label: str
  series: Sequence[Series]
  log: str = ''
  ticks: Mapping[float, str] | None = None


class Figure(NamedTuple):
  """A picture."""

  name: str
  panels: Sequence[Panel]
  caption: str


def points(rows: Rows, key: Callable[[Any], float]):
  """Returns what `key` makes of the rows, ascending, and their times in ms."""
  found = sorted((key(row), row['step_ms']) for row in rows)
  return [x for x, _ in found], [y for _, y in found]


def gtopk_8(rows: Rows, fits: Fits) -> Figure:
  """Time of a message, and the measured ping-pongs."""
  panels = []
  paper = Network.gtopk_1gbe()
  pings = [row for row in rows if row['scheme'] == 'ping_pong']
  rates = sorted({row['rate'] for row in pings})
  for sizes, log in ((np.linspace(0, 1e6, 21), ''), (np.logspace(0, 8), 'xy')):
    times = [1e3 * paper.seconds(size) for size in sizes]
    series = [
      Series('paper: 0.436 ms + 9e-6 ms/byte', sizes, times, colours.BLACK)
    ]
    for rate, colour in zip(
      rates, (colours.BLUE, colours.ORANGE, colours.GREEN), strict=False
    ):
      if rate in fits:
        net = fits[rate]
        times = [1e3 * net.seconds(size) for size in sizes]
        alpha, beta = 1e3 * net.alpha_s, 1e3 * net.beta_s_per_byte
        label = f'{rate}: {alpha:.3g} ms + {beta:.2g} ms/byte'
        series.append(Series(label, sizes, times, colour, line='--'))
      seen = [r for r in pings if r['rate'] == rate]
      seen = [r for r in seen if 4 * r['floats'] <= sizes[-1]]
      x, y = points(seen, lambda r: 4 * r['floats'])
      series.append(Series(f'{rate}, measured', x, y, colour, 'o'))
    title = 'all sizes' if log else 'to 1 MB'
    panels.append(Panel(title, 'message (bytes)', 'time (ms)', series, log))
  return Figure(
    'gtopk_fig8',
    panels,
    'gTop-k, figure 8: a message between two machines of 1 Gbit/s. The '
    "paper's own points are in its picture only.",
  )


def gtopk_9(rows: Rows) -> Figure:
  """Time of an exchange by workers, and by size."""
  network = Network.gtopk_1gbe()
  counts, sizes = (2, 4, 8, 16, 32, 64), np.logspace(6, 9, 13)
  left, right = [], []
  for name in papers.OF_TABLE_I:
    scheme = papers.SCHEMES[name]
    label, colour = scheme.label, scheme.colour
    y = [1e3 * scheme.seconds(network, 100e6, p) for p in counts]
    left.append(Series(label, counts, y, colour))
    seen = [r for r in rows if (r['scheme'], r['rate']) == (name, '1gbit')]
    seen = [r for r in seen if 0.9 < 4 * r['floats'] / 100e6 < 1.1]
    x, y = points(seen, lambda r: r['workers'])
    label = f'{label}, measured step'
    left.append(Series(label, x, y, colour, 'o', listed=False))
    y = [1e3 * scheme.seconds(network, size, 32) for size in sizes]
    right.append(Series(scheme.label, sizes, y, colour))
    y = [1e3 * scheme.seconds(network, size, 64) for size in sizes]
    label = f'{scheme.label}, 64 workers'
    right.append(Series(label, sizes, y, colour, line=':', listed=False))
  ticks = {p: str(p) for p in counts}
  x_label = 'dense gradient (bytes)'
  title = '32 workers (dotted: 64)'
  return Figure(
    'gtopk_fig9',
    [
      Panel('100 MB', 'workers', 'exchange (ms)', left, 'xy', ticks),
      Panel(title, x_label, 'exchange (ms)', right, 'xy'),
    ],
    'gTop-k, figure 9, by table I: density 0.001, 0.436 ms, 9e-6 ms/byte. '
    "Right: the paper's text says 64 workers, its caption 32. The butterfly "
    'is not in the paper. Dots, if any, are measured steps, with selection '
    'and update in them.',
  )


def gtopk_10() -> Figure:
  """Scaling efficiency, and what table VII makes of it at 32 workers."""
  panels, counts = [], (1, 2, 4, 8, 16, 32)
  for name, model in papers.GTOPK.items():
    series = []
    printed = dict(zip(papers.OF_TABLE_I, model.together, strict=False))
    for scheme in papers.OF_TABLE_I:
      label, colour = papers.SCHEMES[scheme][:2]
      y = [100 * model.step_s / model.modelled(scheme, p) for p in counts]
      series.append(Series(label, counts, y, colour))
      if scheme in printed:
        y = [100 * printed[scheme] / (32 * model.single)]
        label = f'{label}, printed'
        series.append(Series(label, [32], y, colour, '*', listed=False))
    ticks = {p: str(p) for p in counts}
    y_label = 'scaling efficiency (%)'
    panels.append(Panel(name, 'workers', y_label, series, 'x', ticks))
  return Figure(
    'gtopk_fig10',
    panels,
    "gTop-k, figure 10: lines are eq. 4 with table VI's compute times and "
    'table I; stars are table VII over 32 times table VI. The model leaves '
    'out selection, which the paper says takes as long as computing for '
    'VGG-16 and AlexNet, and hosts with 1.1 GHz CPUs.',
  )


def dgc_6() -> Figure:
  """Speed-up to 64 nodes."""
  panels, counts = [], (1, 2, 4, 8, 16, 32, 64)
  ticks = {p: str(p) for p in counts[3:]}
  for gbits, (said, at_64) in sorted(papers.DGC_PRINTED.items()):
    series = [Series('ideal', counts, counts, colours.GREY, line=':')]
    for (model, (*_, colour)), (scheme, line) in itertools.product(
      papers.DGC.items(), (('dense', '--'), ('DGC', '-'))
    ):
      y = [papers.dgc_speedup(model, scheme, gbits, p) for p in counts]
      series.append(Series(f'{model}, {scheme}', counts, y, colour, line=line))
    about = (
      f'printed: {said}, {"about" if gbits == 10 else "more than"} {at_64}'
    )
    series.append(Series(about, [64], [at_64], colours.BLACK, '*'))
    title = f'{gbits} Gbit/s Ethernet'
    panels.append(Panel(title, 'nodes', 'speed-up', series, '', ticks))
  return Figure(
    'dgc_fig6',
    panels,
    'DGC, figure 6, at density 0.001 that doubles at each step (worst case); '
    'no latency. The paper gives no compute times: assumed are those of '
    "gTop-k's table VI, 0.369 s for 64 images a node (AlexNet) and 4.842/8 s "
    'for 32 (ResNet-50).',
  )


def qsgd_2() -> Figure:
  """Communication and computation in an epoch."""
  counts, bars = (2, 4, 8, 16), []
  for label, ratio, shift, colour in (
    ('32 bits', 1.0, -0.2, colours.ORANGE),
    ('4 bits', papers.QSGD_RATIO, 0.2, colours.BLUE),
  ):
    at = [i + shift for i in range(len(counts))]
    sent, computed = zip(
      *(papers.qsgd_parts(k, ratio) for k in counts), strict=True
    )
    zero = [0.0] * len(at)
    bars += [
      Series(f'{label}, communication', at, sent, colour, base=zero),
      Series(f'{label}, computation', at, computed, colour + '40', base=sent),
    ]
  stars = [
    sum(papers.qsgd_parts(8)) / papers.QSGD['AlexNet'],
    sum(papers.qsgd_parts(16)) / 2.5,
  ]
  bars.append(Series('4 bits, printed', [2.2, 3.2], stars, colours.BLACK, '*'))
  shares = []
  for label, ratio, shift, colour in (
    (
      f'{papers.QSGD_RATIO:.2f} times fewer bytes',
      papers.QSGD_RATIO,
      -0.2,
      colours.BLUE,
    ),
    ('4 times less time (measured, AlexNet)', 4.0, 0.2, colours.SKY),
  ):
    at = [i + shift for i in range(len(papers.QSGD))]
    y = [
      100 * papers.qsgd_share(printed, ratio)
      for printed in papers.QSGD.values()
    ]
    shares.append(Series(label, at, y, colour, base=[0.0] * len(at)))
  shares.append(Series('printed (LSTM)', [6], [71], colours.BLACK, '*'))
  names = {
    i: re.sub('(-| )', r'\1\n', n, count=1) for i, n in enumerate(papers.QSGD)
  }
  return Figure(
    'qsgd_fig2',
    [
      Panel(
        "AlexNet, from the text's 80 % on 16 GPUs",
        'GPUs',
        'epoch (32 bits on 16 GPUs = 1)',
        bars,
        ticks={i: str(k) for i, k in enumerate(counts)},
      ),
      Panel(
        'Share that table 1 implies, 8 GPUs',
        '',
        'communication in a 32-bit epoch (%)',
        shares,
        ticks=names,
      ),
    ],
    'QSGD, figure 2, as far as the text gives it. Left: "more than 80 %" '
    'taken as 80, a constant global batch (the paper raises it with GPUs), '
    'ring bytes. Right: what makes the printed speed-up of 4 bits if only '
    'communication shrinks, as named (the paper projects BN-Inception and '
    'VGG-19; its text has 2.7 for the LSTM, its table 2.0).',
  )


def variance_5() -> Figure:
  """Speed-up of communication by compression ratio."""
  ratios, series = np.logspace(0, 4.6, 24), []
  for p, colour in (
    (8, colours.BLUE),
    (16, colours.ORANGE),
    (64, colours.GREEN),
  ):
    y = [costs.pipelined_speedup(c, p) for c in ratios]
    series.append(Series(f'{p} workers', ratios, y, colour))
    methods = papers.VARIANCE.get(p, {})
    for (method, seen), mark in zip(methods.items(), 's^Dv', strict=False):
      y = [costs.pipelined_speedup(c, p) for c in seen]
      label = f'{method}, table {1 if p == 8 else 2}'
      series.append(Series(label, seen, y, colour, mark))
  block = 65536 / (4 * papers.GTOPK['ResNet-50'].parameters)
  y = [costs.pipelined_speedup(c, 16, block) for c in ratios]
  label = '16, blocks of 64 KiB'
  series.append(Series(label, ratios, y, colours.ORANGE, line='--'))
  series.append(
    Series('as dense', ratios[[0, -1]], [1, 1], colours.GREY, line=':')
  )
  x_label, y_label = 'compression ratio c', 'speed-up of communication'
  return Figure(
    'variance_speedup',
    [Panel('Time of ring / pipelined ring', x_label, y_label, series, 'xy')],
    'Variance-based compression, section 5: 2(P - 1)c/P² with small blocks, '
    'no latency. Marks are the ratios of tables 1 (VGG-like, 8 workers) and 2 '
    '(ResNet-50, 16); the paper measured no times.',
  )


def all_figures(rows: Rows, fits: Fits) -> list[Figure]:
  """All figures of the papers, with measured points where they have any."""
  return [
    gtopk_8(rows, fits),
    gtopk_9(rows),
    gtopk_10(),
    dgc_6(),
    qsgd_2(),
    variance_5(),
  ]
