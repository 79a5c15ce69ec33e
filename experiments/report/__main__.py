"""Makes one HTML page of finished or running experiments.

  python -m experiments.report DIR...

Each DIR is a working directory, or a folder of working directories. The page
contains its picture and needs no other file.

`--csv` also writes a row a run: its name, status, fields and summary.
`--pareto` draws the scores of finished runs against the bytes that a worker
sent, and a line through the runs that no other run beats in both.
"""

from collections.abc import Sequence
import os
import pathlib

from absl import flags
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.report import page
from experiments.report import pareto
from experiments.report import rows
import pandas as pd

_OUTPUT = command_line.define_path(
  'output',
  None,
  'page to write; report.html in the common parent of the DIRs if not given',
)
_FIGURE = command_line.define_path(
  'figure', None, 'also write the picture to this PNG'
)
_CSV = command_line.define_path('csv', None, 'also write a row a run as CSV')
_PARETO = command_line.define_path(
  'pareto', None, 'also draw scores against bytes sent, to this PNG'
)
_TITLE = flags.DEFINE_string('title', page.TITLE, 'title of the page')


def main(directories: Sequence[str]) -> None:
  """Writes the page and says where."""
  output = _OUTPUT.value
  if output is None:
    shared = os.path.commonpath([os.path.abspath(d) for d in directories])
    output = pathlib.Path(shared, 'report.html')
  page.write(directories, output, title=_TITLE.value, figure=_FIGURE.value)
  runs = page.find_runs(directories)
  if _CSV.value:
    found = pd.DataFrame(rows.make(runs), dtype=object)
    tables.write_csv(_CSV.value, found)
  if _PARETO.value:
    files.write_bytes(_PARETO.value, pareto.draw(runs))
  print(output)


if __name__ == '__main__':
  command_line.run(main, arguments='DIR...')
