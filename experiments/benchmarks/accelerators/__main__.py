r"""Compiles a step of each scheme for TPUs that are not here.

  python -m experiments.benchmarks.accelerators --target=v5e:2x4 \
    --tree=resnet50 --schemes=dgc,qsgd4 --json=FILE

Nothing runs: the compiler of TPUs says what it makes of a step from
gradients to new parameters, with a worker on each device. `x SGD` is the
estimate of XLA beside that of momentum SGD. What has none is in `uncounted`.
"""

from typing import Any

from absl import flags
from experiments.benchmarks.accelerators import programs
from experiments.benchmarks.accelerators import targets
from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import trees
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
import jax

_JSON = command_line.define_json()
_SCHEMES = command_line.define_schemes(contenders.SCHEMES)
_TARGETS = command_line.define_list(
  'target',
  ('v5e:2x4',),
  targets.parse,
  'topologies of TPUs, such as v5e:2x4, v5p:2x2x2, v6e:2x4',
)
_TREES = command_line.define_list(
  'tree',
  ('resnet50',),
  command_line.one_of(trees.TREES, 'tree'),
  'which of: ' + ', '.join(trees.TREES),
)
_NUM_PARAMS = flags.DEFINE_integer(
  'num_params', 25_600_000, 'parameters, at most', lower_bound=500_000
)


def table(rows: list[dict[str, Any]]) -> tables.Table:
  """The rows, for reading."""

  def number(value, form='.1f'):
    return '-' if value is None else format(value, form)

  return tables.make(
    (
      'target',
      'tree',
      'scheme',
      'compile\n(s)',
      'x SGD',
      'temporary\n(models)',
      'loops\nunknown',
      'launches',
      'plan\n(B)',
      'program\n(B)',
      'uncounted',
    ),
    [
      (
        row['target'],
        row['tree'],
        row['scheme'],
        number(row['compile_s']),
        number(row['cycles_x_sgd']),
        number(row['temp_models'], '.2f'),
        f'{row["unknown_loops"]:,}',
        f'{row["launches"]:,}',
        f'{row["plan_bytes"]:,.0f}',
        f'{row["program_bytes"]:,.0f}',
        ', '.join(f'{n} {kind}' for kind, n in row['uncounted'].items()),
      )
      for row in rows
    ],
  )


def main() -> None:
  """Compiles, prints and writes down."""
  targets.prepare()
  rows: list[dict[str, Any]] = []
  for target in _TARGETS.value:
    devices = targets.devices(target)
    for tree in _TREES.value:
      bench = programs.Bench(trees.make(tree, _NUM_PARAMS.value), devices)
      for name in _SCHEMES.value:
        scheme = contenders.SCHEMES[name](axis_name=programs.AXIS)
        row = {
          'scheme': name,
          'target': target,
          'tree': tree,
          'jax': jax.__version__,
          **bench.row(scheme),
        }
        rows.append(row)
        command_line.say(
          f'{target} {tree} {name}: {row["compile_s"]:.1f} s to compile'
        )
        if _JSON.value:
          files.write_json(_JSON.value, rows)
        jax.clear_caches()
  tables.show(table(rows))


if __name__ == '__main__':
  command_line.run(main)
