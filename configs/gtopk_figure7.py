r"""An LSTM language model on PTB, four workers: gTop-k's figure 7.

Commands (Mikolov's text of the Penn Treebank below DIR; see docs/papers.md):
  python -m experiments.papers gtopk_figure7
  python -m experiments.papers gtopk_figure7 --full
  python -m experiments.report runs/papers/gtopk_figure7/quick/*
  python -m experiments.main --config=configs/gtopk_figure7.py:gtopk \
    --workdir=runs/gtopk_ptb --config.data.dir=DIR

Shi et al. 2019 (arXiv 1901.04359). Printed (tables IV and V, section IV-A): 2
layers of LSTM, 10,000 words, 40 epochs, batches of 100 (a worker, as in
configs/gtopk_table5.py), learning rate 1.0, momentum 0.9 for all; 4 workers,
density 0.005 (section IV-B, figure 7); the first four epochs at densities 0.25,
0.0725, 0.015, 0.004 and smaller learning rates, no number: a quarter is ours.
0.004 is below the final density and left out; the other three share the four
epochs. The curves are in the figure only. The network is "similar as in" DGC's,
which has 1500 units, tied. Not printed: 1500 units, not tied (66,034,000
parameters), windows of 35 words, dropout 0.65, norm clipped at 0.25, one rate
for the first 63 epochs: those of their published code. That code has batches of
20 a worker and no momentum for PTB, and clips after the exchange; here it is
table V's, and clipping on each worker before it.

Tested on the validation text, of 73,760 words: table IV has 73,000 validation
samples.

Quick: a small LSTM, a fifth of an epoch, a quarter of it warm-up.
"""

from configs.dgc_table2 import QUICK_WARMUP
from configs.gtopk_table5 import GTOPK
from configs.gtopk_table5 import WARMUP
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import PTB
from experiments.papers.table import Row
from experiments.papers.table import Table

TABLE = Table(
  title='An LSTM of 2 x 1500 units on PTB, 4 workers',
  source='Shi et al. 2019, table V and figure 7',
  metrics=('perplexity',),
  full={
    'data.name': 'ptb',
    # Of about table IV's 73,000 validation samples.
    'data.test_split': 'validation',
    'model.name': 'lstm_1500_untied',
    'parallel.num_workers': 4,
    'train.batch_size': 100,
    'train.bptt_length': 35,
    'train.learning_rate': 1.0,
    'train.log_every': 100,
    'compression.clip_norm': 0.25,
    'epochs': 40,
  },
  rows={
    'dense': Row(fields={}),
    'gtopk': Row(
      fields=GTOPK | {'compression.density': 0.005},
      beside='dense',
      full=WARMUP,
      quick=QUICK_WARMUP,
    ),
  },
  needs=(PTB, GPU_HOURS),
)
get_config = TABLE.get_config
