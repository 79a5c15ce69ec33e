r"""A DeepSpeech model on AN4 and the parts of DGC: DGC's figure 5.

Commands (AN4's folders below DIR; see docs/papers.md):
  python -m experiments.papers dgc_figure5
  python -m experiments.papers dgc_figure5 --full --seeds=0,1,2
  python -m experiments.report runs/papers/dgc_figure5/quick/*
  python -m experiments.main --config=configs/dgc_figure5.py:dgc \
    --workdir=runs/dgc_an4 --config.data.dir=DIR

Lin et al. 2018 (arXiv 1712.01887). Printed: 5 layers of LSTM with 800 units,
948 utterances for training and 130 for testing, "Nesterov momentum SGD and
gradient clipping, while learning rate anneals every epoch", warm-up 1 of 80
epochs (section 4.1); 4 nodes, sparsity 99.9 % (section 4.2); "momentum
correction and local gradient clipping help improve the word error rate from
14.1% to 12.9%" (section 3.2; 14.1 must be gradient dropping's). The curves and
their names are in the figure only, and so is the baseline. Not printed: all
else, as in configs/dgc_table4_librispeech.py; 20 utterances a step (ours: 5 a
worker).

`dropping` is gradient dropping by one threshold, with Nesterov momentum after
the exchange. It has no clipping: they clip the sum of all workers there, and we
clip on a worker, before the exchange, or not at all. Ours, not the paper's:
each of the two by itself, and DGC without its warm-up.

Quick: a small network on strings of spoken digits, a quarter of it warm-up
where there is one.

Published:

  row                          WER (%)
  ────────────────────────────────────
  dropping                       14.10
  momentum_correction_clipped    12.90
"""

from configs.dgc_table2 import DGC
from configs.dgc_table2 import DROPPING
from configs.dgc_table2 import QUICK_WARMUP
from experiments.papers.table import AN4
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import Row
from experiments.papers.table import Table

# Also of the other speech model.
DEEPSPEECH = {
  'parallel.num_workers': 4,
  'train.learning_rate': 3e-4,
  'train.log_every': 100,
  'optimizer.nesterov': True,
  'optimizer.schedule': 'periodic',
  'optimizer.lr_decay_factor': 1 / 1.1,
  'optimizer.decay_epochs': 1.0,
  'compression.clip_norm': 400.0,
  'epochs': 80,
}
WARMUP = {'warmup_epochs': 1, 'optimizer.warmup_factor': 0.1}
# Of what is not clipped, in both settings.
_UNCLIPPED = {'compression.clip_norm': 0.0}
_UNMASKED = {'compression.factor_masking': False}


def _row(fields, wer=None, *, warmup=False):
  return Row(
    fields=fields,
    published={} if wer is None else {'wer': wer},
    beside='dense',
    full=WARMUP if warmup else {},
    quick=QUICK_WARMUP if warmup else {},
  )


TABLE = Table(
  title='DeepSpeech with 5 layers of 800 LSTM on AN4, 4 workers',
  source='Lin et al. 2018, figure 5 and section 3.2',
  metrics=('wer',),
  full=DEEPSPEECH
  | {
    'data.name': 'an4',
    'model.name': 'deepspeech_lstm',
    'train.batch_size': 5,
  },
  rows={
    'dense': Row(fields={}),
    'dropping': _row(DROPPING | _UNCLIPPED, 14.1),
    'dropping_clipped': _row(DROPPING),
    'momentum_correction': _row(DGC | _UNMASKED | _UNCLIPPED),
    'momentum_correction_clipped': _row(DGC | _UNMASKED, 12.9),
    'dgc_without_warmup': _row(DGC),
    'dgc': _row(DGC, warmup=True),
  },
  needs=(AN4, GPU_HOURS),
)
get_config = TABLE.get_config
