"""Sets what the papers print about time beside their own cost models.

  python -m experiments.cost_model --workdir=DIR

Prints them, and the lines of figure 6 of Deep Gradient Compression; writes both
to `cost_model.json`. For the figure the paper gives no compute times: assumed
are those of gTop-k's table VI for 64 images a node (AlexNet, 0.369 s) and 32
(ResNet-50, 4.842/8 s).
"""

from absl import flags
from experiments.cost_model import papers
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables

_WORKDIR = command_line.define_workdir(None, 'folder for the numbers')
flags.DEFINE_alias('out', 'workdir')  # its former name

_COMPARED = {
  'paper': ('paper', ''),
  'what': ('what', ''),
  'unit': ('unit', ''),
  'printed': ('printed', '.4g'),
  'model': ('model', '.4g'),
}
_FIGURE = {
  'model': ('model', ''),
  'scheme': ('scheme', ''),
  'Gbit/s': ('gbits', ''),
  **{f'{p} nodes': (f'{p}', '.1f') for p in papers.NODES},
}


def main() -> None:
  """Writes both and prints the tables."""
  rows, lines = papers.comparisons(), papers.dgc_figure_6()
  files.write_json(
    _WORKDIR.value / 'cost_model.json',
    {'printed_and_model': rows, 'dgc_figure_6': lines},
  )
  for columns, found in ((_COMPARED, rows), (_FIGURE, lines)):
    cells = tables.cells(columns, found)
    tables.show(tables.make([*columns], cells, left=3))


if __name__ == '__main__':
  flags.mark_flag_as_required('workdir')
  command_line.run(main)
