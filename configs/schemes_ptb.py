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
2, the better of 1 and 2. Adam is far behind: 613 and 778 with rates of 0.001
and 0.004, where momentum SGD has 315. Each quick row had two trials, whole runs
with seed 0, at this rate and at half or twice of it, and takes the better rate.
The table has the perplexity of the validation file
(experiments/results/rates/schemes_ptb.json):

  row                         1        2        4        8
  ────────────────────────────────────────────────────────
  dense                       -        -    314.9    337.0
  dropping                    -        -    330.0    332.6
  dgc                         -        -    508.9    398.4
  dgc_without_warmup          -        -    465.6    407.3
  gtopk                       -        -    344.6    344.7
  qsgd_2bit                   -        -    327.8    357.6
  qsgd_4bit                   -        -    312.7    327.5
  qsgd_8bit                   -        -    314.7    330.4
  terngrad                    -   1067.1   1132.2        -
  dense_unclipped         427.0    369.1        -        -
  variance                485.0    438.2        -        -
  hybrid                  704.8    658.8        -        -
  sum                         -        -    388.8    356.1
  sum_sync                    -        -    371.0    337.6
  partial                     -        -    324.6    331.7
  partial_sync                -        -    328.0    337.5
  error                       -        -    373.0    368.8
  error_sync                  -        -    366.1    369.4
  dropping_warmup             -        -    320.0    336.0
  sum_warmup                  -        -    380.1    341.1
  sum_sync_warmup             -        -    362.6    321.4
  partial_warmup              -        -    318.0    333.2
  partial_sync_warmup         -        -    316.2    334.7
  error_warmup                -        -    343.8    355.7
  error_sync_warmup           -        -    341.8    356.8
  dropping_equal              -        -    326.1    341.4

  python -m experiments.papers schemes_ptb partial --lr_multipliers=1,2

Whether half or twice was tried comes from trials of half a run, at half, one
and two times the rate, for 14 rows (same file). In these, dropping, DGC, gTop-k
and local gradients did best at twice the rate, so the other twelve rows, which
are of these kinds, were tried at twice. In whole runs twice is better only for
DGC, for SUM, and for `error`: fewer steps need a larger rate. Runs on a slow
network had 4, DGC too.

Quick: a fifth of an epoch. Dense, dropping, PARTIAL, PARTIAL with averages,
dropping at the density that sends as much, and dropping with a warm-up have
three seeds; their numbers are means. All others have one seed.

Ours:

  row                  perplexity     full  held out    quick
  ───────────────────────────────────────────────────────────
  dense                         -  not run   not run   302.95
  dropping                      -  not run   not run   322.03
  dgc                           -  not run   not run   389.07
  dgc_without_warmup            -  not run   not run   394.92
  gtopk                         -  not run   not run   333.82
  qsgd_2bit                     -  not run   not run   317.65
  qsgd_4bit                     -  not run   not run   302.24
  qsgd_8bit                     -  not run   not run   306.03
  terngrad                      -  not run   not run  1022.64
  dense_unclipped               -  not run   not run   358.81
  variance                      -  not run   not run   425.13
  hybrid                        -  not run   not run   635.21
  sum                           -  not run   not run   345.68
  sum_sync                      -  not run   not run   327.20
  partial                       -  not run   not run   313.70
  partial_sync                  -  not run   not run   315.09
  error                         -  not run   not run   355.77
  error_sync                    -  not run   not run   356.84
  dropping_warmup               -  not run   not run   307.19
  sum_warmup                    -  not run   not run   330.78
  sum_sync_warmup               -  not run   not run   311.87
  partial_warmup                -  not run   not run   308.62
  partial_sync_warmup           -  not run   not run   307.59
  error_warmup                  -  not run   not run   334.94
  error_sync_warmup             -  not run   not run   332.63
  dropping_equal                -  not run   not run   312.81

  quick: 1 x cpu, 1 core, jax 0.10.2, 2026-11-23
  quick: 1 x cpu, 1 core, jax 0.10.2, 2026-11-24
  quick: 1 x cpu, 1 core, jax 0.10.2, 2026-11-25
  quick: 1 x cpu, 2 cores, jax 0.10.2, 2026-11-24
  full needs: Mikolov's text of the Penn Treebank, a GPU for hours
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
  'terngrad': 2.0,
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
