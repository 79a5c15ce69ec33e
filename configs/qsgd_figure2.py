r"""Time of an epoch on 2 to 16 GPUs: QSGD's figure 2.

Commands (folders of JPEG files below DIR; see docs/papers.md):
  python -m experiments.papers qsgd_figure2
  python -m experiments.papers qsgd_figure2 --full
  python -m experiments.main --workdir=runs/alexnet_16 \
    --config=configs/qsgd_figure2.py:alexnet_16gpus_qsgd --config.data.dir=DIR

Alistarh et al. 2017 (arXiv 1610.02132), section 5: communication against
computation of 32 bits and of 4 bits (buckets of 512), on 2, 4, 8 and 16 GPUs of
one machine (Nvidia K80, GPUDirect but not NCCL). Printed in the text: AlexNet
on 16 GPUs with 1024 images a step spends more than 80 % of its time on
communication; 4 bits reduce that 4 times and the epoch 2.5 times; ResNet-152 on
16 GPUs is trained 1.8 times as fast (abstract), or about twice (section 1). The
times of an epoch are in the figure only; 2 bits in buckets of 128 and 8 bits
were measured too, without a number. Networks and settings are those of
configs/qsgd_table1.py; 64 images a worker for AlexNet (so printed for 16 GPUs),
32 for the others (ours). The LSTM on AN4 is in configs/qsgd_an4.py. Our time
of a step in parts is in the record (`breakdown_ms`).

Quick: ResNet-8 for all networks, workers simulated by one process, so that
nothing travels.
"""

from configs import qsgd_table1
from configs.gtopk_table7 import TIMED
from experiments.papers.table import IMAGENET
from experiments.papers.table import Row
from experiments.papers.table import Table

_GPUS = (2, 4, 8, 16)
_MODELS = ('alexnet', 'vgg19', 'bn_inception', 'resnet50', 'resnet152')


def _rows(model: str, gpus: int) -> dict[str, Row]:
  fields = {'parallel.num_workers': gpus}
  full = qsgd_table1.MODELS[model]
  if model == 'alexnet':
    full = full | {'train.batch_size': 64}
  return {
    f'{model}_{gpus}gpus_dense': Row(fields=fields, full=full),
    f'{model}_{gpus}gpus_qsgd': Row(
      fields=fields | qsgd_table1.qsgd(4),
      beside=f'{model}_{gpus}gpus_dense',
      full=full,
      quick=qsgd_table1.SMALL,
    ),
  }


TABLE = Table(
  title='Time of an epoch on 2 to 16 GPUs',
  source='Alistarh et al. 2017, figure 2',
  metrics=('images',),
  full=TIMED
  | {
    'data.name': 'imagenet',
    'data.augment': True,
    'train.batch_size': 32,
    'parallel.runner': 'shard_map',
    'train.log_every': 10,
    'train.time_breakdown_every': 20,
    'epochs': 1,
  },
  quick=TIMED
  | {'epochs': 0.5, 'train.log_every': 2, 'train.time_breakdown_every': 8},
  rows={
    name: row
    for model in _MODELS
    for gpus in _GPUS
    for name, row in _rows(model, gpus).items()
  },
  needs=(IMAGENET, 'a machine with 16 GPUs'),
)
get_config = TABLE.get_config
