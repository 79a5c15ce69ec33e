"""Sets what the papers print about time beside their own cost models.

  python -m experiments.cost_model --workdir=DIR

Prints the table, and writes it to `cost_model.json`. `dgc_fig6.png` has the
speed-ups of figure 6 of Deep Gradient Compression. The paper gives no compute
times: assumed are those that gTop-k's table VI has for 64 images a node
(AlexNet, 0.369 s) and 32 (ResNet-50, 4.842/8 s).
"""

from absl import flags
from experiments.cost_model import papers
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables

_WORKDIR = command_line.define_workdir(None, 'folder for picture and numbers')
flags.DEFINE_alias('out', 'workdir')  # its former name


def main() -> None:
  """Writes both and prints the table."""
  rows = papers.comparisons()
  files.write_json(
    _WORKDIR.value / 'cost_model.json', {'printed_and_model': rows}
  )
  files.write_bytes(_WORKDIR.value / 'dgc_fig6.png', papers.dgc_figure_6())
  cells = [
    (
      *(row[name] for name in ('paper', 'what', 'unit')),
      f'{row["printed"]:.4g}',
      f'{row["model"]:.4g}',
      f'{row["printed"] / row["model"]:.2f}',
    )
    for row in rows
  ]
  head = ('paper', 'what', 'unit', 'printed', 'model', 'printed/model')
  tables.show(tables.make(head, cells, left=3))


if __name__ == '__main__':
  flags.mark_flag_as_required('workdir')
  command_line.run(main)
