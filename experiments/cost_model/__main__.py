"""Draws the papers' figures of time from their cost models.

  python -m experiments.cost_model --workdir=DIR [--measured=FILE.json,...]

Writes a picture for each figure and `cost_model.json` with every number, and
prints the papers' numbers beside those of their models.

Each FILE.json adds measured points: rows as experiments.benchmarks.exchange
writes them (`scheme`, `floats`, `workers`, `rate`, `step_ms`, perhaps
`plan_bytes`). Rows of experiments.benchmarks.network give the network's alpha
and beta: 'ping_pong', a message of that many floats, one way, or else
'all_reduce', a bare dense all-reduce.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from absl import flags
from experiments.cost_model import drawing
from experiments.cost_model import figures
from experiments.cost_model import measured
from experiments.cost_model import papers
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables

_WORKDIR = command_line.define_workdir(None, 'folder for pictures and numbers')
flags.DEFINE_alias('out', 'workdir')  # its former name
_MEASURED = command_line.define_list(
  'measured', (), pathlib.Path, 'JSON lists of measured rows'
)

NUMBERS = 'cost_model.json'


def _plain(value: Any) -> Any:
  """Named tuples and arrays as what JSON has."""
  if hasattr(value, '_asdict'):
    return _plain(value._asdict())
  if isinstance(value, dict):
    return {str(key): _plain(one) for key, one in value.items()}
  if isinstance(value, str | None):
    return value
  if hasattr(value, '__iter__'):
    return [_plain(one) for one in value]
  return value.item() if hasattr(value, 'item') else value


def write(out: pathlib.Path, rows: figures.Rows) -> list[pathlib.Path]:
  """Writes pictures and numbers, and returns their paths."""
  fitted = measured.fits(rows)
  pictures = [
    *figures.all_figures(rows, fitted),
    measured.steps_figure(rows, fitted),
  ]
  paths = []
  for picture in filter(None, pictures):
    paths.append(out / f'{picture.name}.png')
    files.write_bytes(paths[-1], drawing.draw(picture))
  networks = {
    rate: {'alpha_s': net.alpha_s, 'beta_s_per_byte': net.beta_s_per_byte}
    for rate, net in fitted.items()
  }
  numbers = {
    'figures': {p.name: _plain(p) for p in filter(None, pictures)},
    'fitted_networks': networks,
    'printed_and_model': papers.comparisons(),
  }
  files.write_json(out / NUMBERS, numbers)
  return [*paths, out / NUMBERS]


def print_comparisons(rows: Sequence[Mapping[str, Any]]) -> None:
  """Prints what the papers print beside what their models say."""
  tables.show(
    tables.make(
      ('paper', 'what', 'unit', 'printed', 'model', 'printed/model'),
      [
        (
          row['paper'],
          row['what'],
          row['unit'],
          f'{row["printed"]:.4g}',
          f'{row["model"]:.4g}',
          f'{row["printed"] / row["model"]:.2f}',
        )
        for row in rows
      ],
      left=3,
    )
  )


def main() -> None:
  """Writes all and prints the table."""
  rows = [row for path in _MEASURED.value for row in measured.read_rows(path)]
  paths = write(_WORKDIR.value, rows)
  print_comparisons(papers.comparisons())
  for path in paths:
    print(path)


if __name__ == '__main__':
  flags.mark_flag_as_required('workdir')
  command_line.run(main)
