"""The papers' figures of time as numbers, computed from their cost models.

What the papers print is in tables here; `experiments.cost_model` draws.
Times come from `gradsparse.cost_model` alone, nothing is fitted to a paper.
"""

from collections.abc import Callable, Mapping, Sequence
import itertools
import re
from typing import Any, NamedTuple

from gradsparse import cost_model
from gradsparse.cost_model import Network
import numpy as np

Rows = Sequence[Mapping[str, Any]]
# Fitted alpha and beta, by the rate that a row names.
Fits = Mapping[str, Network]

DENSITY = 0.001
_ORANGE, _BLUE, _GREEN, _PINK = '#D55E00', '#0072B2', '#009E73', '#CC79A7'
_YELLOW, _SKY, _GREY = '#E69F00', '#56B4E9', '#999999'
QSGD_RATIO = 32 / (4 + 32 / 512)  # 4 bits and a float32 in 512


class Scheme(NamedTuple):
  """An exchange; `message` is its bytes for each byte of the gradient."""

  label: str
  colour: str
  exchange: Callable[[Network, float, int], float]
  message: float

  def seconds(self, network: Network, dense_bytes: float, workers: int):
    return self.exchange(network, self.message * dense_bytes, workers)


_PAIRS = cost_model.sparse_message_bytes(1, DENSITY)
SCHEMES = {
  'dense': Scheme('dense', '#000000', cost_model.ring_all_reduce, 1),
  'topk_allgather': Scheme(
    'top-k all-gather', _ORANGE, cost_model.all_gather, _PAIRS
  ),
  'gtopk_tree': Scheme('gTop-k tree', _BLUE, cost_model.gtopk_tree, _PAIRS),
  'gtopk_butterfly': Scheme(
    'gTop-k butterfly', _GREEN, cost_model.gtopk_butterfly, _PAIRS
  ),
  'dgc': Scheme('DGC', _PINK, cost_model.all_gather, 0.75 * _PAIRS),
  'qsgd4': Scheme(
    'QSGD 4 bits', _YELLOW, cost_model.reduce_scatter_pair, 1 / QSGD_RATIO
  ),
  'one_bit': Scheme('1-bit', _SKY, cost_model.reduce_scatter_pair, 1 / 32),
}
OF_TABLE_I = tuple(SCHEMES)[:4]


class Trained(NamedTuple):
  """gTop-k's tables VI and VII: one worker, then 32 workers by scheme."""

  parameters: float
  batch: int
  step_s: float
  single: float  # images/s
  together: tuple[float, float, float]  # images/s: dense, top-k, gTop-k

  def modelled(self, scheme: str, workers: int) -> float:
    """Seconds of a step on their network, nothing but compute and exchange."""
    network = Network.gtopk_1gbe()
    size = 4 * self.parameters
    return self.step_s + SCHEMES[scheme].seconds(network, size, workers)


GTOPK = {
  'VGG-16': Trained(14.7e6, 128, 0.097, 1317, (403, 2016, 3020)),
  'ResNet-20': Trained(269_722, 128, 0.146, 876, (9212, 22272, 25280)),
  'AlexNet': Trained(60_965_224, 64, 0.369, 173, (39, 296, 505)),
  'ResNet-50': Trained(25_557_032, 256, 4.842, 52, (343, 978, 1251)),
}
# DGC gives no compute times: gTop-k's, for 64 and 32 images a node. Elements
# of 1-D leaves, which stay dense, by name.
DGC = {
  'AlexNet': (GTOPK['AlexNet'].step_s, 10_568, _ORANGE),
  'ResNet-50': (GTOPK['ResNet-50'].step_s / 8, 54_120, _BLUE),
}
DGC_PRINTED = {10: ('AlexNet, dense', 30), 1: ('AlexNet, DGC', 40)}
# QSGD's table 1: end-to-end speed-up on 8 GPUs.
QSGD = {
  'AlexNet': 2.05,
  'ResNet-152': 1.56,
  'ResNet-50': 1.26,
  'ResNet-110': 1.10,
  'BN-Incep.': 1.16,
  'VGG-19': 2.25,
  'LSTM, 2 GPUs': 2.0,
}
# The variance paper's tables: ratios by method, Adam and then momentum SGD.
VARIANCE = {
  8: {
    'Strom': (88.5, 230.1, 6942.8, 6.5, 990.7, 8485.0),
    'variance': (120.7, 453.3, 913.4, 52.4, 169.2, 383.6),
    'hybrid': (1942.2, 12822.4, 983.9, 12396.8),
    'QSGD': (12.3, 14.4, 11.0, 6.6, 7.0, 4.0),
  },
  16: {
    'Strom': (38.6, 156.2, 6969.0, 2.1, 35.2, 2002.2),
    'variance': (1542.8, 2953.1, 5173.8, 103.8, 400.7, 990.7),
    'hybrid': (2374.2, 28954.2, 470.9, 4345.0),
  },
}


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


# --- figures ---------------------------------------------------------------


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
    series = [Series('paper: 0.436 ms + 9e-6 ms/byte', sizes, times, '#000000')]
    for rate, colour in zip(rates, (_BLUE, _ORANGE, _GREEN), strict=False):
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
  for name in OF_TABLE_I:
    scheme = SCHEMES[name]
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
  for name, model in GTOPK.items():
    series = []
    printed = dict(zip(OF_TABLE_I, model.together, strict=False))
    for scheme in OF_TABLE_I:
      label, colour = SCHEMES[scheme][:2]
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


def dgc_speedup(model: str, scheme: str, gbits: float, workers: int) -> float:
  """DGC's figure 6: speed-up by all-reduce of 'dense' or 'DGC' gradients."""
  compute_s, flat, _ = DGC[model]
  network = Network.from_rate(gbits * 1e9)
  elements = GTOPK[model].parameters
  if scheme == 'dense':
    exchange = cost_model.ring_all_reduce(network, 4 * elements, workers)
  else:
    chosen = elements - flat
    exchange = cost_model.ring_all_reduce(network, 4 * flat, workers)
    exchange += cost_model.sparse_all_reduce(
      network,
      6 * DENSITY * chosen,  # 32-bit values, 16-bit run lengths
      workers,
      density=DENSITY,
      dense_bytes=4 * chosen,
    )
  return cost_model.speedup(workers, compute_s, exchange)


def dgc_6() -> Figure:
  """Speed-up to 64 nodes."""
  panels, counts = [], (1, 2, 4, 8, 16, 32, 64)
  ticks = {p: str(p) for p in counts[3:]}
  for gbits, (said, at_64) in sorted(DGC_PRINTED.items()):
    series = [Series('ideal', counts, counts, _GREY, line=':')]
    for (model, (*_, colour)), (scheme, line) in itertools.product(
      DGC.items(), (('dense', '--'), ('DGC', '-'))
    ):
      y = [dgc_speedup(model, scheme, gbits, p) for p in counts]
      series.append(Series(f'{model}, {scheme}', counts, y, colour, line=line))
    about = (
      f'printed: {said}, {"about" if gbits == 10 else "more than"} {at_64}'
    )
    series.append(Series(about, [64], [at_64], '#000000', '*'))
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


def qsgd_parts(gpus: int, ratio: float = 1.0) -> tuple[float, float]:
  """AlexNet's epoch, (communication, computation); 32 bits on 16 GPUs is 1.

  80 % communication on 16 GPUs (QSGD, section 5); bytes 2 (K - 1)/K as in a
  ring; a constant global batch.
  """
  unit = Network(0, 1)
  bytes_16 = cost_model.ring_all_reduce(unit, 1, 16)
  sent = cost_model.reduce_scatter_pair(unit, 1 / ratio, gpus)
  return 0.8 * sent / bytes_16, 0.2 * 16 / gpus


def qsgd_share(printed: float, ratio: float) -> float:
  """Share of communication at which `ratio` gives the printed speed-up."""
  return (1 - 1 / printed) / (1 - 1 / ratio)


def qsgd_2() -> Figure:
  """Communication and computation in an epoch."""
  counts, bars = (2, 4, 8, 16), []
  for label, ratio, shift, colour in (
    ('32 bits', 1.0, -0.2, _ORANGE),
    ('4 bits', QSGD_RATIO, 0.2, _BLUE),
  ):
    at = [i + shift for i in range(len(counts))]
    sent, computed = zip(*(qsgd_parts(k, ratio) for k in counts), strict=True)
    zero = [0.0] * len(at)
    bars += [
      Series(f'{label}, communication', at, sent, colour, base=zero),
      Series(f'{label}, computation', at, computed, colour + '40', base=sent),
    ]
  stars = [sum(qsgd_parts(8)) / QSGD['AlexNet'], sum(qsgd_parts(16)) / 2.5]
  bars.append(Series('4 bits, printed', [2.2, 3.2], stars, '#000000', '*'))
  shares = []
  for label, ratio, shift, colour in (
    (f'{QSGD_RATIO:.2f} times fewer bytes', QSGD_RATIO, -0.2, _BLUE),
    ('4 times less time (measured, AlexNet)', 4.0, 0.2, _SKY),
  ):
    at = [i + shift for i in range(len(QSGD))]
    y = [100 * qsgd_share(printed, ratio) for printed in QSGD.values()]
    shares.append(Series(label, at, y, colour, base=[0.0] * len(at)))
  shares.append(Series('printed (LSTM)', [6], [71], '#000000', '*'))
  names = {i: re.sub('(-| )', r'\1\n', n, count=1) for i, n in enumerate(QSGD)}
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
  for p, colour in ((8, _BLUE), (16, _ORANGE), (64, _GREEN)):
    y = [cost_model.pipelined_speedup(c, p) for c in ratios]
    series.append(Series(f'{p} workers', ratios, y, colour))
    methods = VARIANCE.get(p, {})
    for (method, seen), mark in zip(methods.items(), 's^Dv', strict=False):
      y = [cost_model.pipelined_speedup(c, p) for c in seen]
      label = f'{method}, table {1 if p == 8 else 2}'
      series.append(Series(label, seen, y, colour, mark))
  block = 65536 / (4 * GTOPK['ResNet-50'].parameters)
  y = [cost_model.pipelined_speedup(c, 16, block) for c in ratios]
  label = '16, blocks of 64 KiB'
  series.append(Series(label, ratios, y, _ORANGE, line='--'))
  series.append(Series('as dense', ratios[[0, -1]], [1, 1], _GREY, line=':'))
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
