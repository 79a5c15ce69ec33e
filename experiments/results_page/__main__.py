"""Writes RESULTS.md and docs/results from the records of trainings.

  python -m experiments.results_page
  python -m experiments.results_page --check

Run it in the root of the repository. It reads experiments/results, with the
words of RESULTS.template.md there, and writes RESULTS.md and docs/results. With
`--check` it writes nothing, says what differs from the records, and exits with
status 1 if something does. `--csv` also writes all runs, a row a run.
"""

from absl import flags
from experiments.papers import catalogue
from experiments.program import command_line
from experiments.program import errors
from experiments.program import tables as text
from experiments.results_page import page

_ROOT = command_line.define_path('root', '.', 'root of the repository')
_CHECK = flags.DEFINE_bool(
  'check', False, 'compare with the records, and write nothing'
)
_CSV = command_line.define_path('csv', None, 'CSV file to write, a row a run')


def main() -> int | None:
  """Writes the pages and says where, or says what differs."""
  root = _ROOT.value
  if not (root / page.RECORDS).is_dir():
    raise errors.FileError(
      f'--root must have the folder {page.RECORDS}, got {root}'
    )
  tables = {name: catalogue.load(name) for name in catalogue.NAMES}
  if _CSV.value:
    runs = page.runs_of(tables, root).drop(columns='tests')
    text.write_csv(_CSV.value, runs)
  done = page.differences if _CHECK.value else page.write
  found = done(tables, root)
  for line in found:
    print(line)
  return 1 if _CHECK.value and found else None


if __name__ == '__main__':
  command_line.run(main)
