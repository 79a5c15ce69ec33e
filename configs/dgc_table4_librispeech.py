r"""A DeepSpeech model on LibriSpeech, four workers: DGC's table 4.

Commands (LibriSpeech's folders of flac files below DIR; see docs/papers.md):
  python -m experiments.papers dgc_table4_librispeech
  python -m experiments.papers dgc_table4_librispeech --full
  python -m experiments.main --workdir=runs/dgc_librispeech \
    --config=configs/dgc_table4_librispeech.py:dgc_clean --config.data.dir=DIR

Lin et al. 2018 (arXiv 1712.01887). Printed (section 4.1): convolutions, then 7
layers of GRU with 1200 units, no language model, 960 hours, "Nesterov momentum
SGD and gradient clipping, while learning rate anneals every epoch", warm-up 1
of 80 epochs; sparsity 99.9 %. Not printed: all else. Ours: what
deepspeech.pytorch of 2018 has for it by default: rate 0.0003, divided by 1.1
after each epoch, momentum 0.9, norm clipped at 400; its batch of 20 is for one
GPU, we take 16 on each of four workers, which is how many nodes the other
tables of section 4.2 have. The learning rate in the warm-up is a tenth (ours).

Each row is tested on one set, test-clean or test-other; with the same seed both
are the same training. The printed 488.08 MB is a misprint of 448.08, which is
that of 117,461,168 parameters, and 608 times 0.737.

Quick: a small network on strings of spoken digits, a quarter of it warm-up.
Both sets are the same one there.

Published:

  row          WER (%)  message (MiB)  ratio
  ──────────────────────────────────────────
  dense_clean     9.45         488.08      1
  dgc_clean       9.06           0.74    608
  dense_other    27.07         488.08      1
  dgc_other      27.04           0.74    608
"""

from configs.dgc_figure5 import DEEPSPEECH
from configs.dgc_figure5 import WARMUP
from configs.dgc_table2 import DGC
from configs.dgc_table2 import QUICK_WARMUP
from experiments.papers.table import GPU_DAYS
from experiments.papers.table import LIBRISPEECH
from experiments.papers.table import Row
from experiments.papers.table import Table

# Word error rates in %: dense, and DGC.
_PUBLISHED = {'clean': (9.45, 9.06), 'other': (27.07, 27.04)}


def _rows(name):
  dense, dgc = _PUBLISHED[name]
  tested = {'data.test_split': f'test-{name}'}
  return {
    f'dense_{name}': Row(
      fields={},
      published={'wer': dense, 'message': 488.08, 'ratio': 1},
      full=tested,
    ),
    f'dgc_{name}': Row(
      fields=DGC,
      published={'wer': dgc, 'message': 0.74, 'ratio': 608},
      beside=f'dense_{name}',
      full=tested | WARMUP,
      quick=QUICK_WARMUP,
    ),
  }


TABLE = Table(
  title='DeepSpeech with 7 layers of 1200 GRU on LibriSpeech, 4 workers',
  source='Lin et al. 2018, table 4',
  metrics=('wer', 'message', 'ratio'),
  full=DEEPSPEECH
  | {
    'data.name': 'librispeech',
    'model.name': 'deepspeech_gru',
    'train.batch_size': 16,
  },
  rows={name: row for part in _PUBLISHED for name, row in _rows(part).items()},
  needs=(LIBRISPEECH, GPU_DAYS),
)
get_config = TABLE.get_config
