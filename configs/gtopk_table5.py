r"""Four networks with four workers: gTop-k's table V, figures 5 and 6.

Commands (CIFAR-10 and ImageNet below DIR; see docs/papers.md):
  python -m experiments.papers gtopk_table5
  python -m experiments.papers gtopk_table5 resnet20_gtopk --full
  python -m experiments.report runs/papers/gtopk_table5/quick/*
  python -m experiments.main --config=configs/gtopk_table5.py:resnet20_gtopk \
    --workdir=runs/gtopk --config.data.dir=DIR

Shi et al. 2019 (arXiv 1901.04359). Printed (table V): VGG-16 and ResNet-20 on
CIFAR-10 140 epochs of 128 images, learning rate 0.1; AlexNet on ImageNet 45
epochs of 64, 0.01; ResNet-50 15 epochs of 256, 0.01, as 16 batches of 16 whose
gradients are accumulated (section IV-E); momentum 0.9; 4 workers (section
IV-B). Their algorithms' "mini-batch size per worker" makes it 4 x 128; their
published code has 32 a worker for CIFAR-10, and plots runs of VGG-16 with 128.
The first four epochs at densities 0.25, 0.0725, 0.015, 0.004 and smaller
learning rates (section IV-B), no number: a quarter is ours. Then 0.001 "or
0.005": the vision networks have 0.001. Not printed: when the learning rate
falls (a tenth after 1/2 and 3/4 of the steps is ours), weight decay (1e-4 is
ours), augmentation (crop and flip here). VGG-16: the text speaks of three fully
connected layers, their code has one, 14,728,266 parameters, and so has ours.
AlexNet is that of 2012, in groups; they cite one of 2014, and print no layers.
The text has no accuracies. The LSTM of table V is in configs/gtopk_figure7.py.

Quick: ResNet-8 for all four networks, a quarter of the run warm-up; ResNet-50's
accumulate 2 batches of 16.
"""

from configs.dgc_table2 import QUICK_WARMUP
from experiments.papers.table import CIFAR
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import IMAGENET
from experiments.papers.table import Row
from experiments.papers.table import Table

GTOPK = {'compression.name': 'gtopk', 'compression.density': 1e-3}
WARMUP = {'warmup_epochs': 4, 'optimizer.warmup_factor': 0.25}
_CIFAR = {
  'data.name': 'cifar10',
  'train.batch_size': 128,
  'train.learning_rate': 0.1,
  'epochs': 140,
}
_IMAGENET = {'data.name': 'imagenet', 'train.learning_rate': 0.01}
MODELS = {
  'vgg16': _CIFAR | {'model.name': 'vgg16'},
  'resnet20': _CIFAR | {'model.name': 'resnet20'},
  'alexnet': _IMAGENET
  | {'model.name': 'alexnet', 'train.batch_size': 64, 'epochs': 45},
  'resnet50': _IMAGENET
  | {
    'model.name': 'resnet50',
    'train.batch_size': 16,
    'optimizer.accumulate': 16,
    'epochs': 15,
  },
}
NEEDS = {
  'vgg16': (CIFAR, GPU_HOURS),
  'resnet20': (CIFAR, GPU_HOURS),
  'alexnet': (IMAGENET, GPU_DAYS),
  'resnet50': (IMAGENET, GPU_DAYS),
}
_QUICK = {'resnet50': {'train.batch_size': 16, 'optimizer.accumulate': 2}}


def _rows(model: str) -> dict[str, Row]:
  full, quick = MODELS[model], _QUICK.get(model, {})
  return {
    f'{model}_dense': Row(
      fields={}, full=full, quick=quick, needs=NEEDS[model]
    ),
    f'{model}_gtopk': Row(
      fields=GTOPK,
      beside=f'{model}_dense',
      full=full | WARMUP,
      quick=quick | QUICK_WARMUP,
      needs=NEEDS[model],
    ),
  }


TABLE = Table(
  title='VGG-16, ResNet-20, AlexNet and ResNet-50, 4 workers',
  source='Shi et al. 2019, table V, figures 5 and 6',
  metrics=('top1',),
  full={
    'data.augment': True,
    'parallel.num_workers': 4,
    'train.log_every': 100,
    'optimizer.weight_decay': 1e-4,
    'optimizer.schedule': 'steps',
  },
  rows={name: row for m in MODELS for name, row in _rows(m).items()},
)
get_config = TABLE.get_config
