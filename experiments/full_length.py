r"""Full-length runs, those that tell most first: one command for a GPU.

  python -m experiments.full_length --budget=36000
  python -m experiments.full_length --list

It trains rows of several tables, one after the other, and keeps each as
`python -m experiments.papers TABLE ROW` would, in a JSON file for each table
below `--workdir`. What is finished is not run again, and a run that was stopped
goes on from its checkpoint, so the same command goes on until nothing is
missing; the exit status is then 0. With `--budget` no further run begins after
so many seconds; the one that is under way comes to its end.

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
