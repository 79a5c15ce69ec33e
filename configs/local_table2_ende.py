r"""English to German, one node and four: the local-gradient paper's table 2.

Commands (WMT 2017, English and German, below DIR; see docs/papers.md):
  python -m experiments.papers local_table2_ende
  python -m experiments.papers local_table2_ende local --full
  python -m experiments.report runs/papers/local_table2_ende/quick/*
  python -m experiments.main --config=configs/local_table2_ende.py:local \
    --workdir=runs/ende_local --config.data.dir=DIR

Aji et al. 2019 (submission to ICLR 2019); figure 5 is the same runs over time.
Printed (section 4): eight layers of LSTM (ours: deep transition, four cells in
the encoder and eight in the decoder, as in the system that they name, of WMT
2017; so the year of the pairs), 225 million parameters, 19.1 million pairs
after back-translation, up to 8 epochs, on average 250 sentences a GPU, rate
0.0012 risen in 4000 steps; of one node (`1x4`) 0.0003, risen for as many
examples; all else as in configs/local_table1.py and
configs/local_table2_roen.py. Not printed: as there; tokens of a batch (7,000:
ours). The pairs that were translated back are theirs; without them the set is
another.

Quick: Multi30k and a small network, one level, one epoch; one worker for one
node. It is that of configs/local_table2_roen.py.

Published:

  row        BLEU  test BLEU    CE  words/s  hours  h to 33.5
  ───────────────────────────────────────────────────────────
  1x4       34.38      27.48  37.4   19,007  63.71      24.94
  dense     34.45      27.81  35.7   41,020  31.67      11.69
  dropping  34.38      27.50  36.1   58,000  23.58      10.12
  local     34.52      27.68  35.8   56,836  24.37       7.89
"""

from configs import local_table1
from configs import local_table2_roen
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import WMT
from experiments.papers.table import Table

_ENDE = local_table1.COMMON | {
  'data.source': 'en',
  'data.target': 'de',
  'data.vocabulary': 86_400,  # of both: 225 million parameters
  'model.name': 'attention_en_de',
  'train.batch_size': 250,  # on average; an epoch is counted by it
  'data.tokens': 7_000,
  'examples': 19_100_000,
  'epochs': 8,
  'train.learning_rate': 0.0012,
  'optimizer.linear_warmup_steps': 4000,
}
_TARGET = 'hours_to_33.5'
_PUBLISHED = {
  '1x4': (19007, 24.94, 63.71, 37.4, 34.38, 27.48),
  'dense': (41020, 11.69, 31.67, 35.7, 34.45, 27.81),
  'dropping': (58000, 10.12, 23.58, 36.1, 34.38, 27.50),
  'local': (56836, 7.89, 24.37, 35.8, 34.52, 27.68),
}

TABLE = Table(
  title='Local gradients on WMT 2017 En-De, 1 x 4 and 4 x 4 workers',
  source='Aji et al. 2019, table 2 and figure 5',
  metrics=(*local_table1.METRICS, 'words', 'hours', _TARGET),
  full=_ENDE | local_table1.NODES,
  quick=local_table1.QUICK,
  rows=local_table2_roen.rows(
    _ENDE,
    {
      name: local_table2_roen.published(*numbers, target=_TARGET)
      for name, numbers in _PUBLISHED.items()
    },
  ),
  needs=(WMT, 'its pairs translated back', GPU_DAYS),
)
get_config = TABLE.get_config
