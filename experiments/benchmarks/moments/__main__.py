"""Measures what second moments cost, as multiples of a plain gradient.

  python -m experiments.benchmarks.moments --json=FILE

The models are a perceptron, a residual network with batch normalisation and a
recurrent network. The ways to compute second moments run in turns; ratios are
medians over the rounds. `--copies` adds the general way, for any layer: a copy
of all parameters for each example.
"""

from typing import Any

from absl import flags
from experiments.benchmarks import rows as measured
from experiments.benchmarks.moments import ways
from experiments.program import command_line
from experiments.program import tables

_JSON = command_line.define_json()
_REPEATS = flags.DEFINE_integer('repeats', 7, 'rounds', lower_bound=1)
_BATCH = flags.DEFINE_integer('batch', 16, 'examples of a batch', lower_bound=2)
_COPIES = flags.DEFINE_bool(
  'copies', False, 'also measure one copy of the parameters for each example'
)


_COLUMNS = {
  'way': ('way', ''),
  'ms': ('step_ms', '.1f'),
  'x plain': ('plain_ratio', '.2f'),
  'compile\n(s)': ('compile_s', '.1f'),
  'peak\n(MiB)': ('peak_bytes', ',.0f', 1 << 20),
}


def main() -> None:
  """Measures and prints."""
  rows: list[dict[str, Any]] = []
  for name in ways.TASKS:
    new = ways.measure(name, _BATCH.value, _REPEATS.value, copies=_COPIES.value)
    rows += new
    title = f'{name}, batch of {_BATCH.value}'
    cells = tables.cells(_COLUMNS, new)
    tables.show(tables.make([*_COLUMNS], cells, title=title))
  if _JSON.value:
    measured.write_record(_JSON.value, _REPEATS.value, rows)


if __name__ == '__main__':
  command_line.run(main)
