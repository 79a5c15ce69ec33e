"""Writes RESULTS.md and its pictures from the records of the papers' tables.

  python -m experiments.results_page
  python -m experiments.results_page --check

Run it in the root of the repository. It reads experiments/results, and writes
RESULTS.md and docs/results. With `--check` it writes nothing, says what differs
from the records, and exits with status 1 if something does.
"""

from absl import flags
from experiments.papers import catalogue
from experiments.program import command_line
from experiments.program import errors
from experiments.results_page import page

_ROOT = command_line.define_path('root', '.', 'root of the repository')
_CHECK = flags.DEFINE_bool(
  'check', False, 'compare with the records, and write nothing'
)


def main() -> int | None:
  """Writes the page and says where, or says what differs."""
  root = _ROOT.value
  if not (root / page.RECORDS).is_dir():
    raise errors.FileError(
      f'--root must have the folder {page.RECORDS}, got {root}'
    )
  tables = {name: catalogue.load(name) for name in catalogue.NAMES}
  if not _CHECK.value:
    for path in page.write(tables, root):
      print(path)
    return None
  found = page.differences(tables, root)
  for line in found:
    print(line)
  return 1 if found else None


if __name__ == '__main__':
  command_line.run(main)
