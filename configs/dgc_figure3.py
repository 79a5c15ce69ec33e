r"""What each part of DGC is worth: its figure 3, learning curves.

Commands (data as for configs/dgc_table2.py and configs/dgc_table3.py):
  python -m experiments.papers dgc_figure3
  python -m experiments.papers dgc_figure3 --full --seeds=0,1,2
  python -m experiments.report runs/papers/dgc_figure3/quick/*
  python -m experiments.main --config=configs/dgc_figure3.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

Lin et al. 2018 (arXiv 1712.01887), section 4.2: (a, b) ResNet-110 on CIFAR-10,
4 nodes, sparsity 99.9 %: baseline, gradient dropping, then with momentum
correction, then with factor masking and warm-up. (c, d) ResNet-50 on ImageNet.
Settings are those of tables 2 and 3. The figure has curves; its final numbers
for (a) and for ResNet-50 are in these tables.

Ours, not the paper's: DGC without one of its parts each, with and without
clipping (norm 0.25, ours; they clip recurrent networks), and warm-up alone,
which Aji et al. (local gradients) say is most of it.

Quick: ResNet-8, 2 epochs, a quarter of them warm-up where there is one.

Published:

  row             top-1 (%)
  ─────────────────────────
  dense               93.75
  dropping            92.75
  dgc                 93.87
  resnet50_dense      75.96
  resnet50_dgc        76.15
"""

from configs import dgc_table2
from configs import dgc_table3
from configs.dgc_table2 import DGC
from configs.dgc_table2 import DROPPING
from configs.dgc_table2 import QUICK_WARMUP
from configs.dgc_table2 import WARMUP
from experiments.papers.table import CIFAR
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import IMAGENET
from experiments.papers.table import Question
from experiments.papers.table import Row
from experiments.papers.table import Table

_UNMASKED = {'compression.factor_masking': False}
_CLIPPED = {'compression.clip_norm': 0.25}
# What each part is worth; also of the rows of ablations_digits.
QUESTIONS = (
  Question('all of DGC, none of it', 'dgc', 'dropping'),
  Question('its warm-up alone', 'dropping_with_warmup', 'dropping'),
  Question('its momentum correction alone', 'momentum_correction', 'dropping'),
  Question('its clipping alone', 'dropping_with_clipping', 'dropping'),
  Question('warm-up on, off', 'dgc', 'dgc_without_warmup'),
  Question('masking on, off', 'dgc', 'dgc_without_masking'),
  Question('clipping on, off', 'dgc_with_clipping', 'dgc'),
)
_RESNET50 = dgc_table3.FULL | dgc_table3.RESNET50


def _row(fields, top1=None, *, warmup=True):
  return Row(
    fields=fields,
    published={} if top1 is None else {'top1': top1},
    beside='dense',
    full=WARMUP if warmup else {},
    quick=QUICK_WARMUP if warmup else {},
    needs=(CIFAR,),
  )


TABLE = Table(
  title='The parts of DGC, one by one',
  source='Lin et al. 2018, figure 3',
  metrics=('top1',),
  full=dgc_table2.RESNET110 | {'parallel.num_workers': 4},
  rows={
    'dense': Row(fields={}, published={'top1': 93.75}, needs=(CIFAR,)),
    'dropping': _row(DROPPING, 92.75, warmup=False),
    'momentum_correction': _row(DGC | _UNMASKED, warmup=False),
    'dgc': _row(DGC, 93.87),
    'dgc_without_masking': _row(DGC | _UNMASKED),
    'dgc_without_warmup': _row(DGC, warmup=False),
    'dgc_with_clipping': _row(DGC | _CLIPPED),
    'dropping_with_warmup': _row(DROPPING),
    'dropping_with_clipping': _row(DROPPING | _CLIPPED, warmup=False),
    'resnet50_dense': Row(
      fields={}, published={'top1': 75.96}, full=_RESNET50, needs=(IMAGENET,)
    ),
    'resnet50_dgc': Row(
      fields=DGC,
      published={'top1': 76.15},
      beside='resnet50_dense',
      full=_RESNET50 | WARMUP,
      quick=QUICK_WARMUP,
      needs=(IMAGENET,),
    ),
  },
  needs=(GPU_DAYS,),
  questions=QUESTIONS,
)
get_config = TABLE.get_config
