r"""Runs a configuration with all combinations of some changed fields.

  python -m experiments.sweep --config=configs/digits.py:dgc \
    --sweep=learning_rate,seed --workdir=runs/rates --print
  python -m experiments.sweep ... --jobs=2
  python -m experiments.sweep ... --index=$SLURM_ARRAY_TASK_ID
  python -m experiments.sweep ... --collect=runs/rates.csv

`--sweep=NAME` names a function `sweep_NAME()` of the configuration file. The
function yields dicts of fields and values, such as {'train.seed': 1}. With
several names the points of the sweep are all combinations. Fields that all
points share are set as in `experiments.main`, `--config.SECTION.FIELD=VALUE`.

Each point is a run of `experiments.main` in a folder of its own below
--workdir, with its output in `output.txt` there. The same command again leaves
out finished points, and resumes stopped ones. The exit code is 0 only when all
points that were asked for reached their last step.
"""

from absl import flags
from experiments.program import command_line
from experiments.program import errors
from experiments.program import tables
from experiments.run import writers
import pandas as pd

_CONFIG = command_line.define_config()
_WORKDIR = command_line.define_workdir(None, 'parent folder of the points')
_SWEEP = command_line.define_list(
  'sweep', (), str, 'names of functions sweep_NAME() of the configuration file'
)
_WRITER = writers.define_flag()
_JOBS = flags.DEFINE_integer(
  'jobs', None, 'points that run at once; 1 if not given', lower_bound=1
)
_INDEX = flags.DEFINE_integer(
  'index', None, 'run this point only, counted from 0', lower_bound=0
)
_PRINT = flags.DEFINE_bool(
  'print', None, 'show the points and their folders, and run nothing'
)
_COLLECT = command_line.define_path(
  'collect', None, 'CSV file to write, a row a point; nothing is run'
)


def check() -> None:
  """Raises where the flags make no sense together."""
  if not _SWEEP.value:
    raise errors.ConfigError('--sweep=NAME,NAME is missing')
  command_line.check_config(_CONFIG)


def main() -> int | None:
  """Runs points, or shows or collects what there is of them."""
  # Imported late: a mistake in the flags is told before JAX is loaded.
  from experiments.sweep import points as sweeps
  from experiments.sweep import running

  words, workdir = command_line.config_words(), _WORKDIR.value
  points = sweeps.make(_SWEEP.value, words, workdir)
  if _PRINT.value or _COLLECT.value:
    found = [point.row(index) for index, point in enumerate(points)]
    rows = pd.DataFrame(found, dtype=object)
    if _COLLECT.value:
      tables.write_csv(_COLLECT.value, rows)
      print(_COLLECT.value)
    else:
      tables.show(rows[['index', 'status', 'step', 'folder']])
    return None
  if _INDEX.value is not None:
    if _INDEX.value >= len(points):
      raise errors.ConfigError(
        f'--index must be in 0..{len(points) - 1}, got {_INDEX.value}'
      )
    points = [points[_INDEX.value]]
  failed = running.run(points, jobs=_JOBS.value or 1, writers=_WRITER.value)
  if failed:
    print(f'not finished: {len(failed)} of {len(points)} points')
  return 1 if failed else None


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  flags.mark_flags_as_mutual_exclusive(['jobs', 'index', 'print', 'collect'])
  command_line.run(main, check=check)
