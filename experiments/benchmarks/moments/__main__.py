"""What second moments cost, as multiples of a plain gradient.

  python -m experiments.benchmarks.moments --json=FILE

For a perceptron, a residual network with batch normalisation and a recurrent
network. The ways run in turns; ratios are medians over the rounds. With
`--copies` also the way that knows no layer: a copy of all parameters for each
example.
"""

from typing import Any

from absl import flags
from experiments.benchmarks.moments import ways
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.run import machine

_JSON = command_line.define_json()
_REPEATS = command_line.define_repeats()
_BATCH = flags.DEFINE_integer('batch', 16, 'examples', lower_bound=2)
_COPIES = flags.DEFINE_bool('copies', False, 'a copy for each example, too')

_MIB = 1 << 20


def _table(rows: list[dict[str, Any]]) -> tables.Table:
  return tables.make(
    ('way', 'ms', 'x plain', 'compile\n(s)', 'peak\n(MiB)'),
    [
      (
        row['way'],
        f'{row["step_ms"]:.1f}',
        f'{row["plain_ratio"]:.2f}',
        f'{row["compile_s"]:.1f}',
        '-'
        if row['peak_bytes'] is None
        else f'{row["peak_bytes"] / _MIB:,.0f}',
      )
      for row in rows
    ],
    title=f'{rows[0]["model"]}, batch of {rows[0]["batch"]}',
  )


def main() -> None:
  """Measures and prints."""
  rows: list[dict[str, Any]] = []
  for name in ways.TASKS:
    new = ways.measure(name, _BATCH.value, _REPEATS.value, copies=_COPIES.value)
    rows += new
    tables.show(_table(new))
  if _JSON.value:
    files.write_json(
      _JSON.value,
      {
        'command': command_line.typed(),
        'environment': machine.describe(),
        'repeats': _REPEATS.value,
        'rows': rows,
      },
    )


if __name__ == '__main__':
  command_line.run(main)
