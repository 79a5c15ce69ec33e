r"""Trains at full length on a GPU, the most informative runs first.

  python -m experiments.full_length --budget=36000
  python -m experiments.full_length --list

It trains rows of several tables, one after the other, and records each row as
`python -m experiments.papers TABLE ROW` does, in a JSON file for each table
below `--workdir`. The same command again leaves out finished runs, and resumes
stopped ones from their checkpoints. The exit status is 0 when nothing is
missing. With `--budget` no further run begins after so many seconds; the
current run is finished.

All workers are simulated on one device. CIFAR-10 is tested on data_batch_5,
which training does not see, so that nobody needs its test file; PTB and
Multi30k are tested on their test files.
"""

from collections.abc import Callable
import time

from absl import flags
from experiments.papers import catalogue
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import running
from experiments.papers import table as papers
from experiments.program import command_line
from experiments.program import tables

_WORKDIR = command_line.define_workdir('runs/full_length')
_SEEDS = command_line.define_seeds(0)
_BUDGET = flags.DEFINE_float(
  'budget', None, 'seconds after which no further run begins', lower_bound=0
)
_LIST = flags.DEFINE_bool('list', False, 'show the rows, and run nothing')

# Table, size and rows; each row brings the dense row that it is compared to.
ORDER = (
  ('schemes_cifar10', papers.HELD_OUT, 'dgc gtopk dgc_4bit qsgd_4bit variance'),
  (
    'cifar10_resnet20',
    papers.HELD_OUT,
    'dgc_8workers dgc_16workers dgc_32workers',
  ),
  (
    'dgc_table2',
    papers.HELD_OUT,
    'dgc_4workers dgc_8workers dgc_16workers dgc_32workers',
  ),
  ('dgc_table4_ptb', papers.FULL, 'dgc'),
  ('gtopk_figure7', papers.FULL, 'gtopk'),
  ('schemes_translation', papers.FULL, 'dgc adam_dropping gtopk'),
)


def main(clock: Callable[[], float] = time.monotonic) -> int | None:
  """Runs what is missing, prints each table, says what is still missing."""
  begun, missing = clock(), 0
  for name, size, named in ORDER:
    table = catalogue.load(name)
    rows = running.with_dense(table, named.split())
    if _LIST.value:
      print(f'{name}, {size}: {", ".join(rows)}')
      continue
    budget = _BUDGET.value
    record = records.Record(_WORKDIR.value / f'{name}.json', name, table)
    found = running.run(
      table,
      rows,
      size=size,
      seeds=_SEEDS.value,
      workdir=_WORKDIR.value / name,
      record=record,
      command=command_line.typed(),
      budget=None if budget is None else max(0.0, budget + begun - clock()),
    )
    if columns := page.results(table, record.frame(size, rows)):
      tables.show(page.console(columns, title=table.title))
    for run in found:
      print(f'missing: {name}, {run.row}, seed {run.seed}: {run.why}')
    missing += len(found)
  return 1 if missing else None


if __name__ == '__main__':
  command_line.run(main)
