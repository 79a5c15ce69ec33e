r"""Every scheme beside dense on strings of digits, four workers; of no paper.

Commands (the recordings of FSDD below DIR; see docs/papers.md):
  python -m experiments.papers schemes_speech
  python -m experiments.papers schemes_speech dgc gtopk --seeds=0,1,2
  python -m experiments.papers schemes_speech --held_out --budget=3600
  python -m experiments.main --config=configs/schemes_speech.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

A small network with CTC, 8 strings a worker, momentum SGD (Nesterov's, as in
configs/dgc_figure5.py) with its norm clipped at 100, or Adam for the rows of
the local-gradient paper; the learning rate falls as a cosine. Schemes, names
and settings are those of configs/schemes_ptb.py. The rates of the full setting
are the best for the dense rows in the quick setting, on recordings 5 to 9,
which are not for training there.
Each quick row has the best of half, once and twice that rate, or of a further
one where the smallest or largest of these was best. The trials had one seed and
as many epochs, and were trained and tested on two parts of the training set
(experiments/results/rates/schemes_speech.json).

An average sends 3 models here, parameters and Adam's moments: `_sync` rows send
3.2 times what dropping sends, and `adam_dropping_equal`, at density 0.033,
sends as much as `partial_sync`. Tests take the mean of all workers; the last
model of one worker is tested by itself, too. Cross-entropy is CTC's, of an
utterance. Trials chose the alphas of `variance` and `hybrid`, and the hybrid's
threshold, too: the largest alpha within a point of the best.

Quick: 4 epochs.
"""

from configs import sequence_schemes
from experiments.papers.table import FSDD
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import Table

_NESTEROV = {'optimizer.nesterov': True}
_ADAM = {
  'optimizer.name': 'adam',
  'optimizer.nesterov': False,
  'train.learning_rate': 0.004,
}
# Where another rate than that of all rows beside the same dense one did best in
# the trials.
_RATES = {
  **dict.fromkeys(
    (
      'dense',
      'dropping',
      'dgc_without_warmup',
      'gtopk',
      'qsgd_2bit',
      'qsgd_4bit',
      'qsgd_8bit',
      'terngrad',
      'dense_unclipped',
      'variance',
      'hybrid',
    ),
    0.01,
  ),
  **dict.fromkeys(
    (
      'adam_dense',
      'adam_dropping',
      'adam_dropping_equal',
      'adam_dropping_warmup',
      'sum_sync',
      'sum_warmup',
      'sum_sync_warmup',
      'error_warmup',
      'error_sync_warmup',
    ),
    0.008,
  ),
}
_ROWS = sequence_schemes.with_momentum(
  _NESTEROV, dense='dense', unclipped={}, alpha=0.125, hybrid=(0.5, 0.3)
) | sequence_schemes.with_local(
  _ADAM, dense='adam_dense', dropping='adam_dropping', equal=0.033
)

TABLE = Table(
  title='Every scheme on strings of spoken digits, 4 workers',
  source='ours, of no paper',
  metrics=('wer', 'worker_wer', 'cross_entropy'),
  full={
    'data.name': 'fsdd',
    'model.name': 'deepspeech_small',
    'parallel.num_workers': 4,
    'train.batch_size': 8,
    'train.learning_rate': 0.02,
    'train.log_every': 50,
    'optimizer.schedule': 'cosine',
    'compression.clip_norm': 100.0,
    'epochs': 40,
  },
  rows=sequence_schemes.at_rates(_ROWS, _RATES),
  needs=(FSDD, GPU_HOURS),
  questions=sequence_schemes.questions('adam_dropping', 'wer'),
)
get_config = TABLE.get_config
