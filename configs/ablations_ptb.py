r"""What the papers vary, one thing at a time, in half an epoch of PTB.

Commands (Mikolov's text of the Penn Treebank below DIR; see docs/papers.md):
  python -m experiments.papers ablations_ptb
  python -m experiments.papers ablations_ptb dgc dgc_without_warmup
  python -m experiments.papers ablations_ptb partial_sync --seeds=0,1,2
  python -m experiments.main --config=configs/ablations_ptb.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

No paper has this table: the questions are theirs, network and data those of the
quick setting of configs/schemes_ptb.py, two and a half times as long: 1,452
steps, so that a density of a thousandth may send everything once and a half.
Momentum SGD, norm clipped at 0.25, a learning rate that falls as a cosine; a
warm-up is a tenth of the run. Each scheme has the rate that did best in three
trials of half a quick run of schemes_ptb: dense 4, all others 8. In whole quick
runs 8 is much better than 4 for DGC, but no better for dropping and worse for
PARTIAL. So the rows of `averages` may look too bad beside dense, but not beside
each other.

  parts     of DGC at density 0.001 (Lin et al. 2018, figure 3; that most of it
            is warm-up, Aji et al. 2019 on local gradients)
  averages  of parameters every 500 steps, as Aji et al. print, with PARTIAL,
            density 0.01. An average sends parameters and momentum, and a run
            has two, so `partial_sync` sends 1.11 times what `dropping` sends;
            `dropping_equal`, at density 0.0111, sends as much
"""

from configs import local_table1
from configs import schemes_ptb
from configs import sequence_schemes
from configs.dgc_table2 import DGC
from configs.dgc_table2 import DROPPING
from experiments.papers.table import PTB
from experiments.papers.table import Question
from experiments.papers.table import Row
from experiments.papers.table import Table

_RATE = {'train.learning_rate': 8.0}
_WARMUP = {'warmup_share': 0.1}
_UNMASKED = {'compression.factor_masking': False}


def _row(group, fields):
  return Row(fields=fields | _RATE, beside='dense', groups=(group,))


def _local(mode, *, sync=False, density=0.01):
  made = local_table1.local(mode, sync=sync, warmup=False)
  fields = made.fields | {'compression.density': density}
  return _row('averages', fields)


TABLE = Table(
  title='One thing at a time in half an epoch of PTB, 4 workers',
  source='ours, of no paper',
  metrics=('perplexity', 'worker_perplexity'),
  full=schemes_ptb.TABLE.full
  | {
    'train.batch_size': 4,
    'train.bptt_length': 20,
    'epochs': 0.5,
    'train.eval_every': 363,
  },
  quick=None,
  rows={
    'dense': Row(fields={}),
    'dropping_0.001': _row('parts', DROPPING),
    'warmup_alone': _row('parts', DROPPING | _WARMUP),
    'correction_alone': _row('parts', DGC | _UNMASKED),
    'dgc_without_warmup': _row('parts', DGC),
    'dgc': _row('parts', DGC | _WARMUP),
    'dropping': _local(''),
    'dropping_equal': _local('', density=0.0111),
    'partial': _local('partial'),
    'partial_sync': _local('partial', sync=True),
  },
  needs=(PTB,),
  questions=(
    Question('all of DGC, none of it', 'dgc', 'dropping_0.001'),
    Question('its warm-up alone', 'warmup_alone', 'dropping_0.001'),
    Question(
      'its momentum correction alone', 'correction_alone', 'dropping_0.001'
    ),
    Question('warm-up on, off', 'dgc', 'dgc_without_warmup'),
    *sequence_schemes.averaging('dropping', 'perplexity', ('partial',)),
  ),
)
get_config = TABLE.get_config
