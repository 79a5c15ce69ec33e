r"""Accuracy over time and epochs: QSGD's figure 3.

Commands (ImageNet and MNIST below DIR; see docs/papers.md):
  python -m experiments.papers qsgd_figure3
  python -m experiments.papers qsgd_figure3 --full
  python -m experiments.report runs/papers/qsgd_figure3/quick/*
  python -m experiments.main --config=configs/qsgd_figure3.py:resnet50_8bit \
    --workdir=runs/qsgd --config.data.dir=DIR

Alistarh et al. 2017 (arXiv 1610.02132), section 5: (a) AlexNet over time, (c)
ResNet-50 over 120 epochs with 32 bits, 4 bits, 8 bits and 1-bit SGD; a
two-layer perceptron on MNIST is named in the text, without a number. Settings
are those of configs/qsgd_table1.py, and so are the final accuracies. Nothing
is printed about the perceptron: 4,096 hidden units, 8 workers of 32 images, 10
epochs at 0.1 are ours. 1-bit SGD is labelled 1bitSGD*, and nothing says what
the star means; by columns, CNTK's default, is ours. (b), an LSTM on AN4, is in
configs/qsgd_an4.py.

Quick: ResNet-8 for both networks, leaves from 1,000 elements; the perceptron on
handwritten digits.

Published:

  row             top-1 (%)
  ─────────────────────────
  alexnet_32bit       59.50
  alexnet_4bit        60.05
  resnet50_32bit      74.68
  resnet50_4bit       74.76
"""

from configs import qsgd_table1
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import IMAGENET
from experiments.papers.table import MNIST
from experiments.papers.table import Row
from experiments.papers.table import Table

_ONE_BIT = {'compression.name': 'one_bit_sgd'}
_MNIST = {
  'data.name': 'mnist',
  'data.augment': False,
  'model.name': 'perceptron',
  'optimizer.schedule': 'constant',
  'optimizer.milestones': '',
  'optimizer.weight_decay': 0.0,
  'train.learning_rate': 0.1,
  'epochs': 10,
}
_DIGITS = {
  'data.name': 'digits',
  'model.name': 'perceptron',
  'train.batch_size': 16,
}


def _row(model, fields, top1=None, beside=''):
  return Row(
    fields=fields,
    published={} if top1 is None else {'top1': top1},
    beside=beside,
    full=qsgd_table1.MODELS[model],
    quick=qsgd_table1.SMALL if fields else {},
    needs=(IMAGENET, GPU_DAYS),
  )


TABLE = Table(
  title='AlexNet, ResNet-50 and a perceptron, 8 workers',
  source='Alistarh et al. 2017, figure 3',
  metrics=('top1',),
  full=qsgd_table1.FULL,
  rows={
    'alexnet_32bit': _row('alexnet', {}, 59.50),
    'alexnet_4bit': _row(
      'alexnet', qsgd_table1.qsgd(4), 60.05, 'alexnet_32bit'
    ),
    'resnet50_32bit': _row('resnet50', {}, 74.68),
    'resnet50_4bit': _row(
      'resnet50', qsgd_table1.qsgd(4), 74.76, 'resnet50_32bit'
    ),
    'resnet50_8bit': _row(
      'resnet50', qsgd_table1.qsgd(8), beside='resnet50_32bit'
    ),
    'resnet50_1bit': _row('resnet50', _ONE_BIT, beside='resnet50_32bit'),
    'perceptron_32bit': Row(
      fields={}, full=_MNIST, quick=_DIGITS, needs=(MNIST,)
    ),
    'perceptron_4bit': Row(
      fields=qsgd_table1.qsgd(4),
      beside='perceptron_32bit',
      full=_MNIST,
      quick=_DIGITS | qsgd_table1.SMALL,
      needs=(MNIST,),
    ),
  },
)
get_config = TABLE.get_config
