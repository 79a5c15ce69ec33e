"""A small table, and records of it that nobody measured."""

import pathlib

from experiments.papers import record as records
from experiments.papers import table as papers
from experiments.program import files
from experiments.results_page import page

NAME = 'made_up'
SEEDS = (0, 1, 2)

_FIELDS = {
  'data.name': 'digits',
  'model.name': 'mlp',
  'train.batch_size': 16,
  'epochs': 30 * 64 / 1437,
  'parallel.num_workers': 4,
}


def _row(density, groups='', **fields):
  scheme = {
    'compression.name': 'gtopk',
    'compression.density': density,
    **{name.replace('__', '.'): value for name, value in fields.items()},
  }
  return papers.Row(fields=scheme, beside='dense', groups=tuple(groups.split()))


TABLE = papers.Table(
  title='A made-up table',
  source='nobody',
  metrics=('top1',),
  full=_FIELDS,
  quick=_FIELDS,
  rows={
    'dense': papers.Row(
      fields={}, published={'top1': 99.0}, needs=('patience',)
    ),
    **{
      name: _row(0.001 * number)
      for number, name in enumerate(
        ('same', 'above', 'below', 'one', 'alike', 'diverged', 'partly'), 1
      )
    },
    'with_it': _row(0.01, 'parts'),
    'without_it': _row(0.01, 'parts density', optimizer__momentum=0.5),
    'gtopk_0.02': _row(0.02, 'density'),
    'gtopk_0.04': _row(0.04, 'density'),
    'gtopk_8workers': _row(
      0.01,
      'workers',
      parallel__num_workers=8,
      train__batch_size=8,
      compression__threshold=0.5,
    ),
    'gtopk_16workers': _row(
      0.01, 'workers', parallel__num_workers=16, train__batch_size=4
    ),
    'not_run': _row(0.5),
  },
  needs=('a large machine',),
  questions=(
    papers.Question('with it, without', 'with_it', 'without_it'),
    papers.Question('nobody knows', 'not_run', 'with_it'),
  ),
)
CATALOGUE = {NAME: TABLE}
DENSE = (0.90, 0.92, 0.94)

# Differences to dense by seed, in points.
POINTS = {
  'dense': (0.0, 0.0, 0.0),
  'same': (0.3, -0.4, 0.2),
  'above': (2.0, 2.1, 1.9),
  'below': (-3.0, -3.2, -2.9),
  'one': (0.5,),
  'alike': (-1.0, -1.0, -1.0),
  'partly': (0.1, -0.1),
  'with_it': (0.2, 0.1, -0.4),
  'without_it': (-2.0, -2.4, -2.1),
  'gtopk_0.02': (-1.0, -1.5, -0.2),
  'gtopk_0.04': (-0.5, -0.2, 0.3),
  'gtopk_8workers': (0.1, 0.5, -0.3),
  'gtopk_16workers': (-0.1, 0.2, 0.4),
}
# Of a message, at the last stage and over the whole run.
RATIOS = {
  'dense': (1.0, 1.0),
  'same': (1200.0, 90.0),
  'below': (2000.0, 1500.0),
  'without_it': (700.0, 70.0),
  'gtopk_0.02': (700.0, 70.0),
  'gtopk_0.04': (700.0, 70.0),
  'gtopk_8workers': (700.0, 70.0),
  'gtopk_16workers': (700.0, 70.0),
}
FAILED = {'diverged': SEEDS, 'partly': (2,)}
_OTHERS = (1000.0, 80.0)


def run(name, seed, tests=True):
  """Returns what is kept of a run."""
  accuracy = DENSE[seed] + POINTS[name][seed] / 100
  last, whole = RATIOS.get(name, _OTHERS)
  made = {
    'steps': 30,
    'date': f'2020-02-0{seed + 1}',
    'setting': setting(name),
    'final': {'test_accuracy': accuracy},
    'comm': {
      'ratio': last,
      'run_average_ratio': whole,
      'sent_bytes_per_step': (1 if name == 'dense' else 2) * 1e6 / last,
      'run_average_sent_bytes_per_step': 1_024_000 / whole,
    },
    'seconds': 60.0,
    'command': 'python -m experiments.papers made_up',
    'environment': {
      'device': 'abacus',
      'devices': 1,
      'cpu_cores': 2,
      'jax': '0.0',
      'optax': '0.1',
    },
  }
  if tests:
    steps = ((10, accuracy - 0.1), (20, accuracy), (30, accuracy))
    made['evaluations'] = [
      {
        'step': step,
        'test_accuracy': score,
        'sent_bytes': int(step * 2**20 / whole),
        'seconds': 2.0 * step,
      }
      for step, score in steps
    ]
  return made


def setting(name):
  return records.changes(TABLE.config(TABLE.rows[name], papers.QUICK))


def write(root: pathlib.Path, tests: bool = True) -> None:
  """Writes the records below a root, and trials that enclose most rates."""
  record = records.Record(root / page.RECORDS / f'{NAME}.json', NAME, TABLE)
  for name, points in POINTS.items():
    for seed in range(len(points)):
      record.add(papers.QUICK, name, seed, run(name, seed, tests))
  trials = [
    {'row': name, 'learning_rate': rate, 'setting': {}}
    for name in {*POINTS} - {'same', 'gtopk_8workers'}
    for rate in (0.05, 0.1, 0.2)
  ]
  trials += [
    # The row has another threshold than the last of these.
    {
      'row': 'gtopk_8workers',
      'learning_rate': rate,
      'setting': {'compression.threshold': threshold},
    }
    for rate, threshold in ((0.05, 0.5), (0.1, 0.5), (0.2, 0.1))
  ]
  files.write_json(root / page.RATES / f'{NAME}.json', trials)
  for name, seeds in FAILED.items():
    for seed in seeds:
      why = {'why': 'the loss is no number', 'setting': setting(name)}
      record.add(papers.QUICK, name, seed, why, 'failures')
