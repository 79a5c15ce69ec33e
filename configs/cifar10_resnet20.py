r"""ResNet-20 on CIFAR-10 as He et al. train it, and the same with DGC.

Commands (the data as https://www.cs.toronto.edu/~kriz/cifar.html has it, binary
version, below DIR):
  python -m experiments.papers cifar10_resnet20
  python -m experiments.main --config=configs/cifar10_resnet20.py:dgc \
    --workdir=runs/cifar10_dgc --config.data.dir=DIR

With other `parallel.num_workers`, `parallel.devices_per_node` or
`train.batch_size` the epochs stay, and the steps follow.

He et al. 2016 (arXiv 1512.03385; recalled), section 4.2: 128 images a step,
64,000 steps, learning rate 0.1, a tenth after 32,000 and after 48,000, weight
decay 1e-4, momentum 0.9; error 8.75 %. Here on four workers (ours). `dgc`: Lin
et al. train ResNet-110 (configs/dgc_table2.py); no paper has their setting with
the smaller network. With more workers of 32 images each a step takes more
images, at the same rate, as in their table 2. gTop-k's ResNet-20 is in
configs/gtopk_table5.py.

Quick: 30 epochs on a GPU, without data_batch_5, on which it is tested. Rates
fall after half and three quarters of these epochs. No row was tuned: all have
the learning rate of dense, but for the four epochs of warm-up, in which DGC has
a tenth of it and gTop-k a quarter. QSGD leaves leaves under 1,000 elements
dense, as in configs/schemes_cifar10.py. On record 18 runs of six rows shared an
H200, six or fifteen at a time: their seconds say little.

Published:

  row    top-1 (%)
  ────────────────
  dense      91.25
"""

import dataclasses
from typing import Any

from configs.dgc_table2 import DGC
from configs.dgc_table2 import DROPPING
from configs.dgc_table2 import WARMUP
from configs.gtopk_table5 import GTOPK
from configs.gtopk_table5 import WARMUP as GTOPK_WARMUP
from configs.qsgd_table1 import SMALL
from experiments.papers.table import CIFAR
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import Row
from experiments.papers.table import Table


def _row(fields: dict[str, Any], warmup: dict[str, Any]) -> Row:
  return Row(fields=fields, beside='dense', full=warmup, quick=warmup)


_DGC = _row(DGC, WARMUP)


def _more_workers(workers: int) -> dict[str, Row]:
  count, beside = {'parallel.num_workers': workers}, f'dense_{workers}workers'
  return {
    beside: Row(fields=count),
    f'dgc_{workers}workers': dataclasses.replace(
      _DGC, fields=DGC | count, beside=beside
    ),
  }


TABLE = Table(
  title='ResNet-20 on CIFAR-10, 4 to 32 workers',
  source='He et al. 2016, section 4.2',
  metrics=('top1',),
  full={
    'data.name': 'cifar10',
    'data.augment': True,
    'model.name': 'resnet20',
    'parallel.num_workers': 4,
    'train.batch_size': 32,
    'train.learning_rate': 0.1,
    'train.log_every': 100,
    'optimizer.weight_decay': 1e-4,
    'optimizer.schedule': 'steps',
    'epochs': 64_000 * 128 / 50_000,
  },
  quick={
    'model.name': 'resnet20',
    'parallel.workers_per_chunk': 0,
    'train.batch_size': 32,
    'train.log_every': 100,
    'optimizer.schedule': 'steps',
    'epochs': 30,
  },
  rows={
    'dense': Row(fields={}, published={'top1': 91.25}),
    'dgc': _DGC,
    'dgc_4bit': _row(
      DGC | {'compression.values': 'exponent4', 'compression.min_size': 0},
      WARMUP,
    ),
    'gtopk': _row(GTOPK, GTOPK_WARMUP),
    'dropping': _row(DROPPING, {}),
    'qsgd_4bit': _row(
      {'compression.name': 'qsgd', 'compression.levels': 7} | SMALL, {}
    ),
    **_more_workers(8),
    **_more_workers(16),
    **_more_workers(32),
  },
  needs=(CIFAR, GPU_HOURS),
)
get_config = TABLE.get_config
