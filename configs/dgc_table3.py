r"""AlexNet and ResNet-50 on ImageNet, four workers: DGC's table 3.

Commands (folders of JPEG files below DIR; see docs/papers.md):
  python -m experiments.papers dgc_table3
  python -m experiments.papers dgc_table3 --full
  python -m experiments.main --config=configs/dgc_table3.py:alexnet_dgc \
    --workdir=runs/alexnet_dgc --config.data.dir=DIR

Lin et al. 2018 (arXiv 1712.01887). Printed: 4 nodes (section 4.2), sparsity
99.9 %, sizes of gradients; "momentum SGD following the training schedule in
Gross & Wilber" (section 4.1). That is recalled, for ResNet-50: 256 images a
step, 90 epochs, learning rate 0.1, a tenth every 30 epochs, weight decay 1e-4.
Not printed: images a step; AlexNet's schedule (ours: the same with 0.01 and
weight decay 5e-4, with which Krizhevsky et al. train it; recalled); epochs of
the warm-up (4 of 90, recalled) and its learning rate (a tenth, ours). The row
of TernGrad is from Wen et al. 2017, whose last layer stays in 32 bits (the
table's footnote).

The printed sizes of DGC count 16 bits for a run of zeros; our messages have
Elias-Fano indices, and are smaller. That of TernGrad counts 2 bits an element;
ours sends sums, of four workers in 4 bits. Dense sizes are those of 60,965,224
and 25,557,032 parameters.

Quick: ResNet-8 on CIFAR-10 for both networks, so the two dense rows are alike.

Published:

  row               top-1 (%)  top-5 (%)  message (MiB)  ratio
  ────────────────────────────────────────────────────────────
  alexnet_dense         58.17      80.19         232.56      1
  alexnet_terngrad      57.28      80.23          29.18      8
  alexnet_dgc           58.20      80.20           0.39    597
  resnet50_dense        75.96      92.91          97.49      1
  resnet50_dgc          76.15      92.97           0.35    277
"""

from configs.dgc_table2 import DGC
from configs.dgc_table2 import QUICK_WARMUP
from configs.dgc_table2 import WARMUP
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import IMAGENET
from experiments.papers.table import Row
from experiments.papers.table import Table

RESNET50 = {
  'model.name': 'resnet50',
  'train.learning_rate': 0.1,
  'optimizer.weight_decay': 1e-4,
}
_ALEXNET = {
  'model.name': 'alexnet',
  'train.learning_rate': 0.01,
  'optimizer.weight_decay': 5e-4,
}
FULL = {
  'data.name': 'imagenet',
  'data.augment': True,
  'parallel.num_workers': 4,
  'train.batch_size': 64,
  'train.log_every': 100,
  'optimizer.schedule': 'milestones',
  'optimizer.milestones': '30,60',
  'epochs': 90,
}


def _published(top1, top5, size, ratio):
  return {'top1': top1, 'top5': top5, 'message': size, 'ratio': ratio}


TABLE = Table(
  title='AlexNet and ResNet-50 on ImageNet, 4 workers',
  source='Lin et al. 2018, table 3',
  metrics=('top1', 'top5', 'message', 'ratio'),
  full=FULL,
  rows={
    'alexnet_dense': Row(
      fields={}, published=_published(58.17, 80.19, 232.56, 1), full=_ALEXNET
    ),
    'alexnet_terngrad': Row(
      fields={'compression.name': 'terngrad'},
      published=_published(57.28, 80.23, 29.18, 8),
      beside='alexnet_dense',
      full=_ALEXNET | {'compression.dense_paths': 'Dense_2'},
    ),
    'alexnet_dgc': Row(
      fields=DGC,
      published=_published(58.20, 80.20, 0.39, 597),
      beside='alexnet_dense',
      full=_ALEXNET | WARMUP,
      quick=QUICK_WARMUP,
    ),
    'resnet50_dense': Row(
      fields={}, published=_published(75.96, 92.91, 97.49, 1), full=RESNET50
    ),
    'resnet50_dgc': Row(
      fields=DGC,
      published=_published(76.15, 92.97, 0.35, 277),
      beside='resnet50_dense',
      full=RESNET50 | WARMUP,
      quick=QUICK_WARMUP,
    ),
  },
  needs=(IMAGENET, GPU_DAYS),
)
get_config = TABLE.get_config
