r"""Every scheme beside dense on CIFAR-10, four workers; of no paper.

Commands (CIFAR-10 in its binary version below DIR; see docs/papers.md):
  python -m experiments.papers schemes_cifar10
  python -m experiments.papers schemes_cifar10 dgc gtopk --seeds=0,1,2
  python -m experiments.papers schemes_cifar10 --held_out --budget=36000
  python -m experiments.main --config=configs/schemes_cifar10.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

The setting is that of configs/cifar10_resnet20.py; the densities are those of
the papers, and ten times as much where a name ends in `_0.01`. `dgc_4bit` sends
the biases too, and values of 4 bits. Warm-up is as in configs/dgc_table2.py and
configs/gtopk_table5.py. Strom's threshold is that of configs/schemes_digits.py.
The alpha of `variance` did best of seven, and is the smallest, so it sends
most. The hybrid's alpha and threshold did best of six pairs.

Quick: ResNet-8, 2 epochs in batches of 8 images a worker, a quarter of them
warm-up where there is one. The learning rate of each row is the best of half,
once and twice that of the full setting, and of half or twice again until one
did worse: trials with one seed, trained on four fifths of the first four files
and tested on the other fifth. So no row is tested on what its rate was chosen
on. The trials are in experiments/results/rates/schemes_cifar10.json.

Recorded runs were stopped for up to six minutes now and then, so their seconds
say little. QSGD and TernGrad leave leaves under 1,000 elements dense there, as
the quick rows of QSGD's tables do; the printed limit of 10,000 would leave a
quarter of this small network dense. Their rates were tried with that, too.
"""

from configs import cifar10_resnet20
from configs.dgc_table2 import DGC
from configs.dgc_table2 import DROPPING
from configs.dgc_table2 import QUICK_WARMUP
from configs.dgc_table2 import WARMUP
from configs.gtopk_table5 import GTOPK
from configs.gtopk_table5 import WARMUP as GTOPK_WARMUP
from configs.qsgd_table1 import SMALL
from experiments.papers.table import CIFAR
from experiments.papers.table import GPU_HOURS
from experiments.papers.table import Row
from experiments.papers.table import Table

_TEN_TIMES = {'compression.density': 0.01}
_UNMASKED = {'compression.factor_masking': False}


def _scheme(name, /, learning_rate=None, **arguments):
  fields = {f'compression.{key}': value for key, value in arguments.items()}
  if learning_rate is not None:
    fields['train.learning_rate'] = learning_rate
  return {'compression.name': name} | fields


# Where another rate than that of all settings did best in the trials.
_RATES = {
  'dgc': 0.2,
  'dgc_0.01': 0.2,
  'dgc_4bit': 0.2,
  'dropping': 0.025,
  'dgc_without_warmup': 0.05,
  'dgc_without_masking': 0.2,
  'local_partial': 0.05,
  'strom': 0.025,
  'qsgd_2bit': 0.2,
}


# Of DGC: what each is worth.
_PARTS = ('momentum_correction', 'dgc_without_warmup', 'dgc_without_masking')


def _row(name, fields, full=None, quick=None):
  return Row(
    fields=fields,
    beside='dense',
    full=full or {},
    quick=quick or {},
    groups=('parts',) if name in _PARTS else (),
    chosen_rate=_RATES.get(name),
  )


def _warmed(name, fields, full=WARMUP):
  return _row(name, fields, full, QUICK_WARMUP)


_SCHEMES = {
  'dropping': DROPPING,
  'momentum_correction': DGC | _UNMASKED,
  'dgc_without_warmup': DGC,
  'dropping_0.01': DROPPING | _TEN_TIMES,
  'dropping_chunks': DROPPING | {'compression.scope': 'chunk'},
  'local_partial': DROPPING
  | {
    'compression.local_gradient': 'partial',
    'compression.param_sync_every': 100,
  },
  'strom': _scheme('strom', learning_rate=0.05, threshold=0.05),
  'variance': _scheme('variance_based', learning_rate=0.05, alpha=0.0625),
  'hybrid': _scheme(
    'variance_strom', learning_rate=0.05, alpha=0.25, threshold=0.1
  ),
  'qsgd_2bit': _scheme('qsgd', levels=1, bucket_size=128),
  'qsgd_4bit': _scheme('qsgd', levels=7),
  'qsgd_8bit': _scheme('qsgd', levels=127),
  'terngrad': _scheme('terngrad'),
  'one_bit': _scheme('one_bit_sgd'),
  'sign': _scheme('sign_majority', learning_rate=0.0005),
  'power_sgd': _scheme('power_sgd', rank=2),
}
_QUANTISED = ('qsgd_2bit', 'qsgd_4bit', 'qsgd_8bit', 'terngrad')

TABLE = Table(
  title='Every scheme on CIFAR-10, 4 workers',
  source='ours, of no paper',
  metrics=('top1',),
  full=cifar10_resnet20.TABLE.full,
  rows={
    'dense': Row(fields={}),
    **{
      name: _warmed(name, fields)
      for name, fields in {
        'dgc': DGC,
        'dgc_0.01': DGC | _TEN_TIMES,
        'dgc_4bit': DGC
        | {'compression.values': 'exponent4', 'compression.min_size': 0},
        'dgc_without_masking': DGC | _UNMASKED,
        'dropping_warmup': DROPPING,
      }.items()
    },
    'gtopk': _warmed('gtopk', GTOPK, GTOPK_WARMUP),
    'gtopk_0.01': _warmed('gtopk_0.01', GTOPK | _TEN_TIMES, GTOPK_WARMUP),
    **{
      name: _row(name, fields, quick=SMALL if name in _QUANTISED else None)
      for name, fields in _SCHEMES.items()
    },
  },
  needs=(CIFAR, GPU_HOURS),
)
get_config = TABLE.get_config
