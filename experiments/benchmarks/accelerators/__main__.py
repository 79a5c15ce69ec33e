r"""Compiles a step of each scheme for accelerators that need not be there.

  python -m experiments.benchmarks.accelerators --target=v5e:2x4 \
    --tree=resnet50 --schemes=dgc,qsgd4 --json=FILE

Nothing runs. The compiler for TPUs, or for H100s (`--target=h100`, a host of
8), compiles a step from gradients to new parameters, with a worker on each
device, and reports its estimates. With `--slices=N` a worker is a slice of
TPUs, inside which the model is sharded, and bytes are those that a device sends
to other slices.

`x SGD` is XLA's estimate of the step for TPUs, as a multiple of momentum SGD's.
Operations without an estimate are in `uncounted`. `floor` is the least that
memory allows, as such a multiple.

It prints the tables of docs/accelerators_tables.md. `--recorded=FILE,FILE`
compiles nothing: the tables are of such records. `--plot=FILE` draws the
estimates for a v5e.
"""

import itertools
import pathlib
from typing import Any

from absl import flags
from experiments.benchmarks.accelerators import page
from experiments.benchmarks.accelerators import programs
from experiments.benchmarks.accelerators import targets
from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import trees
from experiments.program import command_line
from experiments.program import files
import jax

_JSON = command_line.define_json()
_MADE = {**contenders.SCHEMES, **programs.OUTER}
_SCHEMES = command_line.define_names('schemes', _MADE)
_TARGETS = command_line.define_list(
  'target',
  ('v5e:2x4',),
  targets.parse,
  'h100, or topologies of TPUs, such as v5e:2x4, v5p:2x2x2, v6e:2x4, '
  'tpu7x:2x2x1',
)
_SLICES = flags.DEFINE_integer(
  'slices', 1, 'number of slices of TPUs, each a target', lower_bound=1
)
_TREES = command_line.define_names('tree', trees.TREES, ('resnet50',))
_NUM_PARAMS = flags.DEFINE_integer(
  'num_params', 25_600_000, 'most parameters of a tree', lower_bound=500_000
)
_RECORDED = command_line.define_list(
  'recorded', (), pathlib.Path, 'records to show; nothing is compiled'
)
_PLOT = command_line.define_path('plot', None, 'PNG file to draw, of a v5e')


def main() -> None:
  """Compiles, prints and writes down; or prints what was recorded."""
  rows = sum(map(files.read_json, _RECORDED.value), []) or _compiled()
  print(page.page(rows))
  if _PLOT.value:
    files.write_bytes(_PLOT.value, page.draw(rows))


def _compiled() -> list[dict[str, Any]]:
  targets.prepare(_TARGETS.value, _SLICES.value)
  rows: list[dict[str, Any]] = []
  for name, tree in itertools.product(_TARGETS.value, _TREES.value):
    shapes = trees.make(tree, _NUM_PARAMS.value)
    bench = programs.Bench(shapes, targets.make(name, _SLICES.value))
    for scheme in _SCHEMES.value:
      row = {'scheme': scheme, 'target': name, 'slices': _SLICES.value}
      row |= {'tree': tree, 'jax': jax.__version__}
      try:
        rows.append(row | bench.row(_MADE[scheme](axis_name=programs.AXIS)))
        told = f'{rows[-1]["compile_s"]:.1f} s to compile'
      except programs.NotShardedError as refused:
        told = f'left out: {refused}'
      command_line.say(f'{page.place(row)}, {scheme}: {told}')
      if _JSON.value:
        files.write_json(_JSON.value, rows)
      jax.clear_caches()
  return rows


if __name__ == '__main__':
  command_line.run(main)
