"""What the papers print about time, and what their models make of it.

Times come from `experiments.cost_model.costs` alone, nothing is fitted to a
paper.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.cost_model import colours
from experiments.cost_model import costs
from experiments.cost_model.costs import Network

DENSITY = 0.001
QSGD_RATIO = 32 / (4 + 32 / 512)  # 4 bits and a float32 in 512


class Scheme(NamedTuple):
  """An exchange; `message` is its bytes for each byte of the gradient."""

  label: str
  colour: str
  exchange: Callable[[Network, float, int], float]
  message: float

  def seconds(self, network: Network, dense_bytes: float, workers: int):
    return self.exchange(network, self.message * dense_bytes, workers)


_PAIRS = costs.sparse_message_bytes(1, DENSITY)
SCHEMES = {
  'dense': Scheme('dense', colours.BLACK, costs.ring_all_reduce, 1),
  'topk_allgather': Scheme(
    'top-k all-gather', colours.ORANGE, costs.all_gather, _PAIRS
  ),
  'gtopk_tree': Scheme('gTop-k tree', colours.BLUE, costs.gtopk_tree, _PAIRS),
  'gtopk_butterfly': Scheme(
    'gTop-k butterfly', colours.GREEN, costs.gtopk_butterfly, _PAIRS
  ),
  'dgc': Scheme('DGC', colours.PINK, costs.all_gather, 0.75 * _PAIRS),
  'qsgd4': Scheme(
    'QSGD 4 bits', colours.YELLOW, costs.reduce_scatter_pair, 1 / QSGD_RATIO
  ),
  'one_bit': Scheme('1-bit', colours.SKY, costs.reduce_scatter_pair, 1 / 32),
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
  'AlexNet': (GTOPK['AlexNet'].step_s, 10_568, colours.ORANGE),
  'ResNet-50': (GTOPK['ResNet-50'].step_s / 8, 54_120, colours.BLUE),
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


def dgc_speedup(model: str, scheme: str, gbits: float, workers: int) -> float:
  """DGC's figure 6: speed-up by all-reduce of 'dense' or 'DGC' gradients."""
  compute_s, flat, _ = DGC[model]
  network = Network.from_rate(gbits * 1e9)
  elements = GTOPK[model].parameters
  if scheme == 'dense':
    exchange = costs.ring_all_reduce(network, 4 * elements, workers)
  else:
    chosen = elements - flat
    exchange = costs.ring_all_reduce(network, 4 * flat, workers)
    exchange += costs.sparse_all_reduce(
      network,
      6 * DENSITY * chosen,  # 32-bit values, 16-bit run lengths
      workers,
      density=DENSITY,
      dense_bytes=4 * chosen,
    )
  return costs.speedup(workers, compute_s, exchange)


def qsgd_parts(gpus: int, ratio: float = 1.0) -> tuple[float, float]:
  """AlexNet's epoch, (communication, computation); 32 bits on 16 GPUs is 1.

  80 % communication on 16 GPUs (QSGD, section 5); bytes 2 (K - 1)/K as in a
  ring; a constant global batch.
  """
  unit = Network(0, 1)
  bytes_16 = costs.ring_all_reduce(unit, 1, 16)
  sent = costs.reduce_scatter_pair(unit, 1 / ratio, gpus)
  return 0.8 * sent / bytes_16, 0.2 * 16 / gpus


def qsgd_share(printed: float, ratio: float) -> float:
  """Share of communication at which `ratio` gives the printed speed-up."""
  return (1 - 1 / printed) / (1 - 1 / ratio)


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

  for name, trained in GTOPK.items():
    for scheme, rate in zip(OF_TABLE_I, trained.together, strict=False):
      label = SCHEMES[scheme].label
      printed = round(32 * trained.batch / rate, 3)
      what = f'{name}, 32 GPUs, {label}: table VII'
      add('gTop-k', what, 's/step', printed, trained.modelled(scheme, 32))
  for gbits, (what, printed) in DGC_PRINTED.items():
    scheme = what.split(', ')[1]
    model = dgc_speedup('AlexNet', scheme, gbits, 64)
    what = f'{what}, 64 nodes, {gbits} Gbit/s: section 5'
    add('DGC', what, 'x', printed, model)
  whole = sum(qsgd_parts(16))
  ratio = QSGD_RATIO
  for what, printed, model in (
    ('AlexNet, 16 GPUs, less communication time', 4, ratio),
    (
      'AlexNet, 16 GPUs, epoch, communication 4x less',
      2.5,
      whole / sum(qsgd_parts(16, 4)),
    ),
    (
      'AlexNet, 8 GPUs, epoch: table 1',
      QSGD['AlexNet'],
      sum(qsgd_parts(8)) / sum(qsgd_parts(8, ratio)),
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
  size = 4 * GTOPK['ResNet-50'].parameters
  add(
    'variance',
    'ResNet-50, 1 Gbit/s, 16 workers, exchange over computing (32 images at '
    '52/s, gTop-k): section 1',
    'x',
    10,
    costs.ring_all_reduce(network, size, 16) / (32 / 52),
  )
  return rows
