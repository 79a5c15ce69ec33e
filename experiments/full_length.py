r"""Trains at full length on a GPU, the most informative runs first.

  python -m experiments.full_length --budget=36000
  python -m experiments.full_length --list

It trains rows of several tables, one after the other, and records each row as
`python -m experiments.papers TABLE ROW` does, in a JSON file for each table
below `--workdir`. The same command again leaves out finished runs, and resumes
stopped ones from their checkpoints. The exit status is 0 when nothing is
missing. With `--budget` no further run begins after so many seconds; the
current run is finished.

CIFAR-10 is tested on data_batch_5; see `experiments/papers/full_length.py`.
"""

from absl import flags
from experiments.papers import full_length
from experiments.program import command_line

_WORKDIR = command_line.define_workdir('runs/full_length')
_SEEDS = command_line.define_seeds(0)
_BUDGET = flags.DEFINE_float(
  'budget', None, 'seconds after which no further run begins', lower_bound=0
)
_LIST = flags.DEFINE_bool('list', False, 'show the rows, and run nothing')


def main() -> int | None:
  """Runs what is missing, prints each table, says what is still missing."""
  if _LIST.value:
    for part in full_length.ORDER:
      print(part.text)
    return None
  missing = full_length.run(
    _WORKDIR.value,
    seeds=_SEEDS.value,
    command=command_line.typed(),
    budget=_BUDGET.value,
  )
  for what in missing:
    print(f'missing: {what}')
  return 1 if missing else None


if __name__ == '__main__':
  command_line.run(main)
