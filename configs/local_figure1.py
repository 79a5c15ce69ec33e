r"""How much of DGC is its warm-up: the local-gradient paper's figure 1.

Commands (WMT 2016, Romanian and English, below DIR; see docs/papers.md):
  python -m experiments.papers local_figure1
  python -m experiments.papers local_figure1 --full
  python -m experiments.report runs/papers/local_figure1/quick/*
  python -m experiments.main --config=configs/local_figure1.py:dropping_warmup \
    --workdir=runs/dropping_warmup --config.data.dir=DIR

Aji et al. 2019 (submission to ICLR 2019), section 5.1: "we argue that most of
the improvement is due to the compression ratio warm-up", 4 x 4 workers on
Ro-En, setting of configs/local_table1.py. The curves, by epoch, and their names
are in the figure only. The text has gradient dropping, DGC, and gradient
dropping whose ratio rises in 1000 steps. DGC with Adam is defined by neither
paper: here it accumulates gradients, by leaves, and Adam follows the exchange.
It drops 99 % too, and clips at 1 on each worker, Marian's own norm (ours); the
dense row is not clipped. Its warm-up is DGC's, in as many steps, with the
learning rate as it is. Ours, not the paper's: DGC without warm-up.

Quick: Multi30k and a small network, one level, one epoch.
"""

from configs import local_table1
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import WMT
from experiments.papers.table import Row
from experiments.papers.table import Table

_DGC = {
  'compression.name': 'dgc',
  'compression.density': 0.01,
  'compression.clip_norm': 1.0,
}


def _row(fields, full=None, quick=None):
  return Row(fields=fields, beside='dense', full=full or {}, quick=quick or {})


TABLE = Table(
  title='Warm-up of gradient dropping on WMT 2016 Ro-En, 4 x 4 workers',
  source='Aji et al. 2019, figure 1',
  metrics=('bleu',),
  full=local_table1.ROEN | local_table1.NODES,
  quick=local_table1.QUICK,
  rows={
    'dense': Row(fields={}),
    'dropping': _row(local_table1.DROPPING),
    'dropping_warmup': _row(
      local_table1.DROPPING, local_table1.WARMUP, local_table1.QUICK_WARMUP
    ),
    'dgc_without_warmup': _row(_DGC),
    'dgc': _row(
      _DGC, {'compression.warmup_steps': 1000}, {'warmup_share': 0.25}
    ),
  },
  needs=(WMT, GPU_DAYS),
)
get_config = TABLE.get_config
