"""Makes one HTML page of finished or running experiments.

  python -m experiments.report DIR...

Each DIR is a working directory, or a folder of them. The page has its picture
inside and needs no other file.
"""

from collections.abc import Sequence
import os
import pathlib

from absl import flags
from experiments.program import command_line
from experiments.report import page

_OUTPUT = command_line.define_path(
  'output', None, 'page to write (report.html in what the DIRs share)'
)
_FIGURE = command_line.define_path(
  'figure', None, 'also write the picture to this PNG'
)
_TITLE = flags.DEFINE_string('title', page.TITLE, 'of the page')


def main(directories: Sequence[str]) -> None:
  """Writes the page and says where."""
  output = _OUTPUT.value
  if output is None:
    shared = os.path.commonpath([os.path.abspath(d) for d in directories])
    output = pathlib.Path(shared, 'report.html')
  page.write(directories, output, title=_TITLE.value, figure=_FIGURE.value)
  print(output)


if __name__ == '__main__':
  command_line.run(main, arguments='DIR...')
