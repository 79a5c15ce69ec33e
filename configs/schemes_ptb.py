r"""Every scheme beside dense on PTB, four workers; of no paper.

Commands (Mikolov's text of the Penn Treebank below DIR; see docs/papers.md):
  python -m experiments.papers schemes_ptb
  python -m experiments.papers schemes_ptb dgc gtopk --seeds=0,1,2
  python -m experiments.papers schemes_ptb --held_out --budget=3600
  python -m experiments.main --config=configs/schemes_ptb.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

A small LSTM, windows of 35 words, 20 rows in all (quick: 20 words, 16 rows),
momentum SGD (configs/dgc_table4_ptb.py has no momentum), norm clipped at 0.25
as there; the learning rate falls as a cosine. Densities, bits and buckets are
those of the papers: dropping 0.01, DGC 0.001, gTop-k 0.005 (its PTB row).
Warm-ups are a tenth of a full run and a quarter of a quick one. `sum`,
`partial` and `error` are local gradients; `_sync` averages parameters every 500
steps (quick: 50), `_warmup` lets the drop ratio rise. An average sends
parameters and momentum, 2 models: as many bytes as the gradients of 79 steps at
density 0.01. So `_sync` rows of a quick run send 2.5 times what dropping sends,
and `dropping_equal`, at density 0.026, sends as much as `partial_sync`. SUM's
mean step is (1 + 1/4) / 2 of a gradient. Adam is not affected by that, but
momentum SGD is: its SUM rows have in effect 0.625 times the rate. ERROR's mean
step is a whole gradient where all is sent, and a quarter where nothing is.
Every test takes the mean of all workers' parameters, also in rows without
`_sync`; this average is not counted. The last model of one worker is tested by
itself, too.

The rate of full runs is the best of 0.5, 2, 4 and 8 for `dense`, by the
perplexity of the validation file in the quick setting. Without clipping it is
2, the better of 1 and 2. A quick row takes the best rate of its whole trials
with seed 0 (experiments/results/rates/schemes_ptb.json), two at least.
docs/papers.md says how many rows have a worse rate on either side. The file
also has trials of half a run, which chose where to look, and do not count:
fewer steps need a larger rate.

Quick: a fifth of an epoch.
"""

from configs import sequence_schemes
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import PTB
from experiments.papers.table import Table

_RATE = 4.0
_ROWS = sequence_schemes.with_momentum(
  {}, dense='dense', unclipped={'train.learning_rate': 2.0}
) | sequence_schemes.with_local(
  {}, dense='dense', dropping='dropping', equal=0.026
)
# Of quick rows whose trials chose another.
_OWN_QUICK_RATES = {
  'dgc': 8.0,
  'dgc_without_warmup': 8.0,
  'terngrad': 0.25,
  'sum': 8.0,
  'sum_sync': 8.0,
  'sum_warmup': 8.0,
  'sum_sync_warmup': 8.0,
  'error': 8.0,
}

TABLE = Table(
  title='Every scheme on PTB, 4 workers',
  source='ours, of no paper',
  metrics=('perplexity', 'worker_perplexity', 'cross_entropy', 'words'),
  full={
    'data.name': 'ptb',
    'model.name': 'lstm_200',
    'parallel.num_workers': 4,
    'train.batch_size': 5,
    'train.bptt_length': 35,
    'train.learning_rate': _RATE,
    'train.log_every': 50,
    'optimizer.schedule': 'cosine',
    'compression.clip_norm': 0.25,
    'epochs': 10,
  },
  rows=sequence_schemes.at_rates(_ROWS, _OWN_QUICK_RATES),
  needs=(PTB, GPU_HOURS),
  questions=sequence_schemes.questions('dropping', 'perplexity'),
)
get_config = TABLE.get_config
