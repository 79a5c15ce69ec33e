"""What the papers print about time, and what their models make of it.

Times come from `experiments.cost_model.costs` alone, nothing is fitted to a
paper.
"""

from typing import Any, NamedTuple

from experiments.cost_model import costs
from experiments.cost_model.costs import Network

DENSITY = 0.001
QSGD_RATIO = 32 / (4 + 32 / 512)  # 4 bits and a float32 in 512
NODES = (1, 2, 4, 8, 16, 32, 64)  # of DGC's figure 6


class Trained(NamedTuple):
  """gTop-k's tables VI and VII: one worker, then 32 workers by scheme."""

  parameters: float
  batch: int
  step_s: float
  together: tuple[float, float, float]  # images/s: dense, top-k, gTop-k


GTOPK = {
  'VGG-16': Trained(14.7e6, 128, 0.097, (403, 2016, 3020)),
  'ResNet-20': Trained(269_722, 128, 0.146, (9212, 22272, 25280)),
  'AlexNet': Trained(60_965_224, 64, 0.369, (39, 296, 505)),
  'ResNet-50': Trained(25_557_032, 256, 4.842, (343, 978, 1251)),
}
# Bytes of a message for each byte of the gradient, and the exchange.
_TABLE_I = {
  'dense': (1, costs.ring_all_reduce),
  'top-k all-gather': (2 * DENSITY, costs.all_gather),
  'gTop-k tree': (2 * DENSITY, costs.gtopk_tree),
}
# DGC gives no compute times: gTop-k's, for 64 and 32 images a node. Elements
# of 1-D leaves, which stay dense, by name.
DGC = {
  'AlexNet': (GTOPK['AlexNet'].step_s, 10_568),
  'ResNet-50': (GTOPK['ResNet-50'].step_s / 8, 54_120),
}
DGC_PRINTED = {10: ('AlexNet, dense', 30), 1: ('AlexNet, DGC', 40)}


def dgc_speedup(model: str, scheme: str, gbits: float, workers: int) -> float:
  """DGC's figure 6: speed-up by all-reduce of 'dense' or 'DGC' gradients."""
  compute_s, flat = DGC[model]
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


def dgc_figure_6() -> list[dict[str, Any]]:
  """Its lines: the speed-up of 1 to 64 nodes, by rate, model and scheme.

  Density doubles at each step (worst case), and there is no latency.
  """
  return [
    {
      'gbits': gbits,
      'model': model,
      'scheme': scheme,
      **{f'{p}': dgc_speedup(model, scheme, gbits, p) for p in NODES},
    }
    for gbits in DGC_PRINTED
    for model in DGC
    for scheme in ('dense', 'DGC')
  ]


def qsgd_epoch(gpus: int, ratio: float = 1.0) -> float:
  """AlexNet's epoch as communication and computation; 32 bits on 16 is 1.

  80 % communication on 16 GPUs (QSGD, section 5); bytes 2 (K - 1)/K as in a
  ring; a constant global batch.
  """
  unit = Network(0, 1)
  sent = costs.ring_all_reduce(unit, 1 / ratio, gpus)
  return 0.8 * sent / costs.ring_all_reduce(unit, 1, 16) + 0.2 * 16 / gpus


def comparisons() -> list[dict[str, Any]]:
  """Numbers that the papers print, beside their own models."""
  found = []
  network = Network.gtopk_1gbe()
  for name, trained in GTOPK.items():
    for (label, (share, exchange)), rate in zip(
      _TABLE_I.items(), trained.together, strict=True
    ):
      size = 4 * trained.parameters * share
      found.append(
        (
          'gTop-k',
          f'{name}, 32 GPUs, {label}: table VII',
          's/step',
          round(32 * trained.batch / rate, 3),
          trained.step_s + exchange(network, size, 32),
        )
      )
  for gbits, (what, printed) in DGC_PRINTED.items():
    model = dgc_speedup('AlexNet', what.split(', ')[1], gbits, 64)
    what = f'{what}, 64 nodes, {gbits} Gbit/s: section 5'
    found.append(('DGC', what, 'x', printed, model))
  for what, printed, model in (
    ('AlexNet, 16 GPUs, less communication time', 4, QSGD_RATIO),
    (
      'AlexNet, 16 GPUs, epoch, communication 4x less',
      2.5,
      qsgd_epoch(16) / qsgd_epoch(16, 4),
    ),
    (
      'AlexNet, 8 GPUs, epoch: table 1',
      2.05,
      qsgd_epoch(8) / qsgd_epoch(8, QSGD_RATIO),
    ),
    (
      'LSTM, 2 GPUs, epoch, communication 6.8x less',
      2.7,
      1 / (0.29 + 0.71 / 6.8),
    ),
    ('LSTM, 2 GPUs, epoch: table 1', 2.0, 1 / (0.29 + 0.71 / QSGD_RATIO)),
    ('bytes of 4 bits/512 over 2 bits/128', 1.77, (4 + 1 / 16) / (2 + 1 / 4)),
  ):
    found.append(('QSGD', what, 'x', printed, model))
  sent = costs.ring_all_reduce(
    Network.from_rate(1e9), 4 * GTOPK['ResNet-50'].parameters, 16
  )
  what = (
    'ResNet-50, 1 Gbit/s, 16 workers, exchange over computing (32 images at '
    '52/s, gTop-k): section 1'
  )
  found.append(('variance', what, 'x', 10, sent / (32 / 52)))
  names = ('paper', 'what', 'unit', 'printed')
  return [
    {**dict(zip(names, row, strict=True)), 'model': round(model, 4)}
    for *row, model in found
  ]
