"""Gathers finished runs in one JSON file, to keep with the project.

  python -m experiments.record DIR... --json=experiments/results/NAME.json

The file has the command of each run, its machine, its result and the curves of
its loss and score.
"""

from collections.abc import Sequence

from absl import flags
from experiments.program import command_line
from experiments.program import files
from experiments.report import page
from experiments.report import record

_JSON = command_line.define_json()
flags.DEFINE_alias('output', 'json')  # its former name


def main(directories: Sequence[str]) -> None:
  """Writes the file and says where."""
  files.write_json(_JSON.value, record.gather(page.find_runs(directories)))
  print(_JSON.value)


if __name__ == '__main__':
  flags.mark_flag_as_required('json')
  command_line.run(main, arguments='DIR...')
