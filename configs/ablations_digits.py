r"""What the papers vary, one thing at a time, on handwritten digits.

Commands:
  python -m experiments.papers ablations_digits
  python -m experiments.papers ablations_digits --seeds=0,1,2,3,4
  python -m experiments.papers ablations_digits dgc dgc_without_warmup
  python -m experiments.main --config=configs/ablations_digits.py:dgc \
    --workdir=runs/dgc

No paper has this table: the questions are theirs, network and data are those of
configs/digits.py, small enough for many seeds. Four workers of 16 images, 30
epochs, learning rate 0.1 that falls as a cosine, all leaves compressed; a
scheme with a warm-up has it for 4 epochs, at a tenth of the learning rate
(DGC) or a quarter (gTop-k).

  parts      of DGC at density 0.001 (Lin et al. 2018, figure 3; that most of it
             is warm-up, Aji et al. 2019 on local gradients); clipping is at a
             norm of 1, which is 2 on each of four workers
  density    of gTop-k (Shi et al. 2019, figure 12)
  workers    of DGC at density 0.001 (Lin et al. 2018, table 2), 64 images a
             step for all of them
  selection  exact or by a sampled threshold (Lin et al. 2018, section 5);
             gTop-k's put-back as printed and without loss
  bits       of QSGD, and its buckets (Alistarh et al. 2017, section 5)

One test image is 0.28 points.
"""

from configs import dgc_figure3
from configs.dgc_table2 import DGC
from configs.dgc_table2 import DROPPING
from configs.gtopk_table5 import GTOPK
from experiments.papers.table import Question
from experiments.papers.table import Row
from experiments.papers.table import Table

_ALL = {'compression.min_size': 0}
_DGC = DGC | _ALL
_DROPPING = DROPPING | _ALL
_GTOPK = GTOPK | _ALL
_UNMASKED = {'compression.factor_masking': False}
_CLIPPED = {'compression.clip_norm': 1.0}
_WARMUP = {'warmup_epochs': 4, 'optimizer.warmup_factor': 0.1}
_GTOPK_WARMUP = {'warmup_epochs': 4, 'optimizer.warmup_factor': 0.25}
_STEP_IMAGES = 64


def _row(groups, fields, beside='dense'):
  return Row(fields=fields, beside=beside, groups=tuple(groups.split()))


def _workers(count):
  """A dense row and DGC's, of so many workers."""
  shared = {
    'parallel.num_workers': count,
    'train.batch_size': _STEP_IMAGES // count,
  }
  dense = f'dense_{count}workers'
  return {
    dense: Row(fields=shared),
    f'dgc_{count}workers': _row('workers', _DGC | _WARMUP | shared, dense),
  }


_FIELDS = {
  'data.name': 'digits',
  'model.name': 'convnet',
  'parallel.num_workers': 4,
  'parallel.workers_per_chunk': 1,
  'train.batch_size': 16,
  'train.learning_rate': 0.1,
  'train.log_every': 10,
  'optimizer.schedule': 'cosine',
  'epochs': 30,
}

TABLE = Table(
  title='One thing at a time on handwritten digits',
  source='ours, of no paper',
  metrics=('top1',),
  full=_FIELDS,
  quick=None,
  rows={
    'dense': Row(fields={}),
    'dropping': _row('parts', _DROPPING),
    'dropping_with_warmup': _row('parts', _DROPPING | _WARMUP),
    'dropping_with_clipping': _row('parts', _DROPPING | _CLIPPED),
    'momentum_correction': _row('parts', _DGC | _UNMASKED),
    'dgc_without_warmup': _row('parts', _DGC),
    'dgc_without_masking': _row('parts', _DGC | _UNMASKED | _WARMUP),
    'dgc_with_clipping': _row('parts', _DGC | _CLIPPED | _WARMUP),
    'dgc': _row('parts selection workers', _DGC | _WARMUP),
    'dgc_sampled': _row(
      'selection', _DGC | _WARMUP | {'compression.sample_rate': 0.01}
    ),
    'gtopk_as_printed': _row(
      'selection', _GTOPK | _GTOPK_WARMUP | {'compression.put_back': 'paper'}
    ),
    'gtopk_0.001': _row('selection density', _GTOPK | _GTOPK_WARMUP),
    **{
      f'gtopk_{density:g}': _row(
        'density', _GTOPK | _GTOPK_WARMUP | {'compression.density': density}
      )
      for density in (0.0005, 0.005, 0.01, 0.05)
    },
    **_workers(8),
    **_workers(16),
    **_workers(32),
    **{
      f'qsgd_{bits}bit_{bucket}': _row(
        'bits',
        {
          'compression.name': 'qsgd',
          'compression.levels': 2 ** (bits - 1) - 1,
          'compression.bucket_size': bucket,
        }
        | _ALL,
      )
      for bits in (2, 4, 8)
      for bucket in (64, 512, 8192)
    },
  },
  questions=(
    *dgc_figure3.QUESTIONS,
    Question('threshold sampled, exact', 'dgc_sampled', 'dgc'),
    Question(
      "gTop-k's put-back as printed, exact", 'gtopk_as_printed', 'gtopk_0.001'
    ),
  ),
)
get_config = TABLE.get_config
