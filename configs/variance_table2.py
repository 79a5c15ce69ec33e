r"""ResNet-50 on ImageNet, 16 workers: the variance paper's table 2.

Commands (folders of JPEG files below DIR; see docs/papers.md):
  python -m experiments.papers variance_table2
  python -m experiments.papers variance_table2 --full
  python -m experiments.main --workdir=runs/alpha \
    --config=configs/variance_table2.py:momentum_variance_1.5 \
    --config.data.dir=DIR

Tsuzuku et al. 2018 (arXiv 1802.06058), section 6.2. Printed: 16 workers, 32
images each; "we followed training procedure of Goyal et al. including
optimizer, hyperparameters and data augmentation"; Adam with its default
parameters in place of momentum SGD and its schedule. Goyal et al. 2017 (arXiv
1706.02677) is recalled: 90 epochs, Nesterov's momentum 0.9, learning rate 0.1
for 256 images and in proportion to them (so 0.2), risen to linearly from 0.1
in 5 epochs, a tenth after 30, 60 and 80; weight decay 1e-4. They spare the
parameters of batch normalisation the decay; ours have it. Every alpha and tau
is recalled, as in configs/variance_table1.py.

Quick: that of configs/variance_table1.py.

Published:

  row                    top-1 (%)  n / sent
  ──────────────────────────────────────────
  adam_dense                 56.20       1.0
  adam_strom_0.001           28.60      38.6
  adam_strom_0.01            50.00     156.2
  adam_strom_0.1             48.10   6,969.0
  adam_variance_1            55.30   1,542.8
  adam_variance_1.5          57.40   2,953.1
  adam_variance_2            57.80   5,173.8
  adam_hybrid_0.01           52.20   2,374.2
  adam_hybrid_0.1            43.10  28,954.2
  momentum_dense             76.00       1.0
  momentum_strom_0.001       75.20       2.1
  momentum_strom_0.01        75.50      35.2
  momentum_strom_0.1         75.50   2,002.2
  momentum_variance_1        74.70     103.8
  momentum_variance_1.5      75.50     400.7
  momentum_variance_2        75.10     990.7
  momentum_hybrid_0.01       75.00     470.9
  momentum_hybrid_0.1        75.10   4,345.0
"""

from configs import variance_table1
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import IMAGENET
from experiments.papers.table import Table

_GOYAL = {
  'train.learning_rate': 0.2,
  'optimizer.nesterov': True,
  'optimizer.schedule': 'milestones',
  'optimizer.milestones': '30,60,80',
  'optimizer.linear_warmup_from': 0.5,
  'linear_warmup_epochs': 5,
}
# With Adam, accuracy in % and compression, and with momentum SGD.
_PUBLISHED = {
  'dense': (56.2, 1, 76.0, 1),
  'strom_0.001': (28.6, 38.6, 75.2, 2.1),
  'strom_0.01': (50.0, 156.2, 75.5, 35.2),
  'strom_0.1': (48.1, 6969.0, 75.5, 2002.2),
  'variance_1': (55.3, 1542.8, 74.7, 103.8),
  'variance_1.5': (57.4, 2953.1, 75.5, 400.7),
  'variance_2': (57.8, 5173.8, 75.1, 990.7),
  'hybrid_0.01': (52.2, 2374.2, 75.0, 470.9),
  'hybrid_0.1': (43.1, 28954.2, 75.1, 4345.0),
}

TABLE = Table(
  title='ResNet-50 on ImageNet, 16 workers',
  source='Tsuzuku et al. 2018, table 2 and appendix C',
  metrics=('top1', 'elements'),
  full=variance_table1.DECAY
  | {
    'data.name': 'imagenet',
    'data.augment': True,
    'model.name': 'resnet50',
    'parallel.num_workers': 16,
    'train.batch_size': 32,
    'train.log_every': 100,
    'optimizer.weight_decay': 1e-4,
    'epochs': 90,
  },
  quick=variance_table1.QUICK,
  rows=dict(variance_table1.rows(variance_table1.METHODS, _PUBLISHED, _GOYAL)),
  needs=(IMAGENET, GPU_DAYS),
)
get_config = TABLE.get_config
