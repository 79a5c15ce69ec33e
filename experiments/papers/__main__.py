r"""Runs the rows of a table, and prints them beside the published numbers.

  python -m experiments.papers --list
  python -m experiments.papers dgc_table2 --seeds=0,1,2 --budget=3600
  python -m experiments.papers dgc_table2 dgc_4workers --full
  python -m experiments.papers schemes_digits dgc gtopk --seeds=0,1,2
  python -m experiments.papers schemes_cifar10 package.module:factory

The first argument is a table of configs/, or `package.module` of a `TABLE` of
your own. The others are rows; without them all rows run. Each row also runs the
dense row that it is compared with.

The quick setting takes minutes a row on two cores, with small networks: on
CIFAR-10 with data_batch_5 held out, on PTB, on spoken digits, or on Multi30k.
That of cifar10_resnet20 and dgc_table4_ptb is for a GPU. `--full` is the
paper's setting. `--held_out` is the paper's setting, tested on a part of the
training set: data_batch_5 of CIFAR-10, a fifth of the digits. Use it to choose
settings, or if you have CIFAR-10 without its test file. The tables on digits
and ablations_ptb have the full setting only, which takes less than a minute a
row, for PTB ten.

A run is recorded as soon as it is finished. The same command again runs only
what is missing, and resumes a stopped run from its checkpoint. If runs are
missing at the end, the program says why, and the exit status is 1.

A scheme of your own is a row of any table, `package.module:factory`, with
arguments behind commas, such as `mine:thinned,density=0.01`. It is shown beside
the rows that are on record in experiments/results/papers. With a field such as
`train.learning_rate=0.2` among them, `--held_out` compares settings.

`--csv` writes a row a run.
"""

from collections.abc import Sequence
import pathlib

from absl import flags
from experiments.papers import catalogue
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import running
from experiments.papers import table as papers
from experiments.program import command_line
from experiments.program import errors
from experiments.program import tables
import pandas as pd

_RUNS = pathlib.Path('runs/papers')
_KEPT = pathlib.Path(__file__).parents[1] / 'results' / 'papers'

_JSON = command_line.define_path(
  'json', None, 'JSON file of the record; below --workdir if not given'
)
_WORKDIR = command_line.define_workdir(str(_RUNS))
_SEEDS = command_line.define_numbers(
  'seeds', 0, 'seeds of parameters and data order', 0, 2**32 - 1
)
_FULL = flags.DEFINE_bool(
  'full', False, "the paper's setting, not the quick one"
)
_HELD_OUT = flags.DEFINE_bool(
  'held_out', False, "the paper's setting, tested on a part of the training set"
)
_BUDGET = flags.DEFINE_float(
  'budget', None, 'seconds after which no further run begins', lower_bound=0
)
_LIST = flags.DEFINE_bool('list', False, 'show all tables and rows')
_CSV = command_line.define_path('csv', None, 'CSV file to write, a row a run')


def main(given: Sequence[str]) -> int | None:
  """Runs what is missing, prints the table, says what is still missing."""
  if _LIST.value:
    print(page.listing({n: catalogue.load(n) for n in catalogue.NAMES}))
    for what, program in catalogue.ELSEWHERE.items():
      print(f'elsewhere: {what}: {program}')
    return None
  if not given:
    raise errors.ConfigError('TABLE is missing; --list shows them')
  name, *rows = given
  table = catalogue.load(name)
  if _FULL.value and _HELD_OUT.value:
    raise errors.ConfigError('--full and --held_out are two settings: take one')
  own = [row for row in rows if ':' in row]
  table = table.with_schemes(own)
  rows = running.with_dense(table, rows)
  path = _JSON.value or _WORKDIR.value / f'{name}.json'
  size = _size(table)
  record = records.Record(path, name, table)
  missing = running.run(
    table,
    rows,
    size=size,
    seeds=_SEEDS.value,
    workdir=_WORKDIR.value / name,
    record=record,
    command=command_line.typed(),
    budget=_BUDGET.value,
  )
  frame = record.frame(size, rows)
  _show(table, frame, f'{table.title} ({table.source}): {size} setting')
  if own:
    kept = records.Record(_KEPT / f'{name}.json', name, table)
    _show(table, kept.frame(size), 'The same on record, by other runs')
  if _CSV.value:
    tables.write_csv(_CSV.value, frame.drop(columns='tests'))
  for run in missing:
    print(f'missing: {run.row}, seed {run.seed}: {run.why}')
  return 1 if missing else None


def _show(table: papers.Table, frame: pd.DataFrame, title: str) -> None:
  """Prints what the runs of a table say."""
  caption = (
    f"{table.middle} of the seeds; difference: paired by seed, with Student's "
    '95 % interval; the quick setting is not that of a paper'
  )
  tables.show(page.results(table, frame), title, caption)


def _size(table: papers.Table) -> str:
  """Returns the setting that the flags ask for."""
  if _HELD_OUT.value:
    return papers.HELD_OUT
  asked = papers.FULL if _FULL.value else papers.QUICK
  return asked if asked in table.sizes else papers.FULL


if __name__ == '__main__':
  command_line.run(main, arguments='TABLE [ROW...]', least=0)
