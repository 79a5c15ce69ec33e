r"""Every scheme beside dense on Multi30k En-De, four workers; of no paper.

Commands (the files of Multi30k below DIR; see docs/papers.md):
  python -m experiments.papers schemes_translation
  python -m experiments.papers schemes_translation partial_sync --seeds=0,1,2
  python -m experiments.papers schemes_translation --held_out --budget=3600
  python -m experiments.main --config=configs/schemes_translation.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

The model is an attentional encoder-decoder with 4,000 pieces: that of
configs/local_table1.py, of 40.0 million parameters here, and a small one of 3.7
million in quick runs. A worker has 16 pairs. As in that file the optimizer is
Adam, whose learning rate rises for a tenth of an epoch and falls as a cosine.
gTop-k, QSGD and the others take Adam, too, after the exchange. `dgc` and
`momentum_dense` have momentum SGD, as in DGC's paper; `adam_dgc` accumulates
gradients before Adam, which no paper defines. Nothing is clipped. An average
sends 3 models, parameters and Adam's moments: `_sync` rows of a quick run send
3.4 times what dropping sends, and `adam_dropping_equal`, at density 0.035,
sends as much as `partial_sync`. Tests take the mean of all workers; for local
gradients the last model of one worker is tested, too. All other schemes and
names are those of configs/schemes_ptb.py.

  rate  a quarter of the learning rate (`_1x`), and none of its rise (`_steep`),
        for dense, dropping and PARTIAL (local-gradient paper, section 4.2);
        `adam_dense_1worker` is one worker at a quarter of the rate

Quick: one epoch. Two runs at a time shared a machine, so their seconds give
orders of magnitude only. A trial of a rate is a whole run with seed 0, its
score is BLEU of the validation file; `data.final_split` tested the same runs on
both (experiments/results/rates/schemes_translation.json).

Quick rows take the best of their trials; the rows of `rate` are in proportion
to it. Full runs had no trials: they have 0.002, as the local-gradient paper,
and 1.6. Trials are at multiples of the full rate.

The alpha of `variance` is the largest within one BLEU of the best of its
trials. The hybrid has that of the paper, and had two thresholds.
"""

from collections.abc import Mapping
from typing import Any

from configs import local_table1
from configs import sequence_schemes
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import MULTI30K
from experiments.papers.table import Question
from experiments.papers.table import Row
from experiments.papers.table import Table

_RATE = 0.002  # of full runs; trials chose that of quick ones
_QUICK_RATE = 0.016
# Of rows whose own trials chose another.
_OWN_QUICK_RATES = {
  'qsgd_4bit': 0.032,
  'sum': 0.008,
  'sum_sync': 0.008,
  'hybrid': 0.004,
  'dgc': 0.8,
}
_ADAM = {
  'optimizer.name': 'adam',
  'train.learning_rate': _RATE,
  'linear_warmup_epochs': 0.1,
}
_MOMENTUM = {
  'optimizer.name': 'sgd',
  'train.learning_rate': 1.6,
  'linear_warmup_epochs': 0.1,
}

# Rows that are trained with other rates, too, and how they combine gradients.
_MODES = {'adam_dropping': '', 'partial_sync': 'partial'}


def _at_a_rate(end: str, changes: Mapping[str, Any]) -> dict[str, Row]:
  """Returns dense, dropping and PARTIAL where the learning rate is another."""
  own, dense = {**_ADAM, **changes}, f'adam_dense{end}'
  rows = {dense: Row(fields=own, groups=('rate',))}
  for name, mode in _MODES.items():
    made = local_table1.local(mode, sync=bool(mode), warmup=False)
    rows[f'{name}{end}'] = Row(
      fields={**own, **made.fields},
      beside=dense,
      quick=made.quick,
      groups=('rate',),
    )
  return rows


def _rows() -> dict[str, Row]:
  momentum = sequence_schemes.with_momentum(_MOMENTUM, dense='momentum_dense')
  with_adam = sequence_schemes.with_momentum(
    _ADAM, dense='adam_dense', alpha=0.5
  )
  dgc = with_adam.pop('dgc')
  del with_adam['dgc_without_warmup']
  del with_adam['dropping']  # is there as `adam_dropping`
  return {
    **with_adam,
    'adam_dgc': Row(
      fields=dgc.fields,
      beside='adam_dense',
      full=dgc.full,
      quick=dgc.quick,
    ),
    'momentum_dense': momentum['momentum_dense'],
    **{name: momentum[name] for name in ('dgc', 'dgc_without_warmup')},
    **sequence_schemes.with_local(
      _ADAM, dense='adam_dense', dropping='adam_dropping', equal=0.035
    ),
    'adam_dense_1worker': Row(
      fields=_ADAM
      | {'parallel.num_workers': 1, 'train.learning_rate': _RATE / 4},
      groups=('rate',),
    ),
    **_at_a_rate('_1x', {'train.learning_rate': _RATE / 4}),
    **_at_a_rate('_steep', {'linear_warmup_epochs': 0}),
  }


def _quick_rates(rows: Mapping[str, Row]) -> dict[str, float]:
  """Returns the rates of quick runs: with Adam in proportion to full ones."""
  return {
    name: row.fields['train.learning_rate'] / _RATE * _QUICK_RATE
    for name, row in rows.items()
    if row.fields['optimizer.name'] == 'adam'
  } | _OWN_QUICK_RATES


_ROWS = _rows()

TABLE = Table(
  title='Every scheme on Multi30k En-De, 4 workers',
  source='ours, of no paper',
  metrics=('bleu', 'worker_bleu', 'cross_entropy', 'words'),
  full={
    'data.name': 'multi30k',
    'data.vocabulary': 4000,
    'model.name': 'attention_ro_en',
    'parallel.num_workers': 4,
    'train.batch_size': 16,
    'train.log_every': 50,
    'optimizer.schedule': 'cosine',
    'epochs': 10,
  },
  rows=sequence_schemes.at_rates(_ROWS, _quick_rates(_ROWS)),
  needs=(MULTI30K, GPU_HOURS),
  questions=(
    *sequence_schemes.questions('adam_dropping', 'bleu'),
    *(
      Question(f'{asks}, {name}', name, f'{name}{end}')
      for name in ('adam_dense', *_MODES)
      for asks, end in (
        ('four times the rate', '_1x'),
        ('a rate that rises, none', '_steep'),
      )
    ),
  ),
)
get_config = TABLE.get_config
