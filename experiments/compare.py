"""Trains every scheme on digits with four workers and prints the table.

  python -m experiments.compare

The settings are in `configs/compare.py`. Takes about ten minutes on two idle
cores and writes each run's records below `runs/compare`; `--json` keeps the
table. One test image is 0.28 points: the mean over seeds (`--seeds=0,1,2`)
says more than one.
"""

from configs import compare as settings
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
from experiments.studies import compare

_JSON = command_line.define_json(former='output')
_WORKDIR = command_line.define_workdir('runs/compare')
_SCHEMES = command_line.define_schemes(settings.SCHEMES)
_SEEDS = command_line.define_seeds(0)
_STEPS = command_line.define_steps(None, 'fewer, for a quick look')
_TEST_SPLIT = command_line.define_test_split(former='split')


def main() -> None:
  """Trains, prints the table, and keeps it."""
  rows = compare.measure(
    _WORKDIR.value,
    _SCHEMES.value,
    _SEEDS.value,
    test_split=_TEST_SPLIT.value,
    steps=_STEPS.value,
  )
  tables.show(compare.results_table(rows))
  if _JSON.value:
    files.write_json(
      _JSON.value,
      {
        'command': command_line.typed(),
        'environment': machine.describe(),
        'split': _TEST_SPLIT.value,
        'seeds': _SEEDS.value,
        'rows': rows,
      },
    )


if __name__ == '__main__':
  command_line.run(main)
