r"""Measures what compression costs in arithmetic, in steps of momentum SGD.

  python -m experiments.benchmarks.compress --json=FILE

There is one worker and no network. A step turns a gradient into new parameters
with all that a scheme does but the exchange itself; its state is donated. Plain
SGD follows the scheme. An outer step, if you name it, has `sync_every=1`. Each
scheme runs in turns with momentum SGD, for 20 ms a turn; ratios are medians
over the rounds. On an accelerator rows also have `device_ms`, the time of all
operations without gaps, `device_ratio`, the ratio of that to momentum SGD's,
and `launches`, the number of operations.

`--recorded=FILE` measures nothing: it prints the table of docs/performance.md,
or of docs/accelerators.md, from such a record, and with `--plot=FILE` draws its
picture.
"""

import functools
from typing import Any

from absl import flags
from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import page
from experiments.benchmarks.compress import programs
from experiments.benchmarks.compress import trees
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
import jax
import jax.numpy as jnp

_JSON = command_line.define_json()
_REPEATS = flags.DEFINE_integer('repeats', 7, 'rounds', lower_bound=1)
_MADE = contenders.SCHEMES | {
  name: functools.partial(make, axis_name=None, sync_every=1)
  for name, make in contenders.OUTER.items()
}
_SCHEMES = command_line.define_names('schemes', _MADE, contenders.SCHEMES)
_NUM_PARAMS = flags.DEFINE_integer(
  'num_params', 25_600_000, 'most parameters of a tree', lower_bound=500_000
)
flags.DEFINE_alias('floats', 'num_params')  # as in the records
_SHAPES = command_line.define_names('shapes', trees.TREES, trees.MEASURED)

_RECORDED = command_line.define_path(
  'recorded', None, 'record to show; nothing is measured'
)
_PLOT = command_line.define_path(
  'plot', None, 'PNG file to draw, of what was measured or recorded'
)


def _references(bench: programs.Bench) -> dict[str, programs.Program]:
  """Rows that give the scale: one read pass, one selection by JAX."""
  grads = bench.gradient()
  joined = jnp.concatenate([g.reshape(-1) for g in grads.values()])
  count = max(1, round(contenders.DENSITY * joined.size))
  made = {
    'read': jnp.max,
    'lax.top_k': lambda x: jax.lax.top_k(abs(x), count)[1],
  }
  return {name: programs.program(each, joined) for name, each in made.items()}


def measure(tree: str, names: list[str], keep: Any) -> None:
  """Measures schemes on one tree; `keep` gets each row when it is there."""
  shapes = trees.make(tree, _NUM_PARAMS.value)
  bench, reference = programs.Bench(shapes), contenders.REFERENCE
  sgd = bench.step(contenders.momentum_sgd())

  setting = {'shapes': tree, 'floats': trees.size(shapes)}

  def compare(made, *shown):
    pair = {reference: sgd, **made}
    found = programs.compared(pair, _REPEATS.value, reference)
    for name in shown:
      keep({'scheme': name, **setting, **found[name]})

  beside = _references(bench)
  compare(beside, reference, *beside)
  del beside
  for name in names:
    scheme = _MADE[name]()
    compare({name: bench.step(contenders.followed(scheme))}, name)
    jax.clear_caches()


_COLUMNS = {
  'scheme': ('scheme', ''),
  'step (ms)': ('step_ms', '.1f'),
  'spread': ('step_ms_spread', '.1f'),
  'x SGD': ('sgd_ratio', '.2f'),
  'compile (s)': ('compile_s', '.1f'),
  'peak (MiB)': ('peak_bytes', ',.0f', 1 << 20),
}


def main() -> None:
  """Measures and prints, or prints what was recorded."""
  if _RECORDED.value:
    rows = files.read_json(_RECORDED.value)['rows']
    print(page.table(rows))
  else:
    rows = _measured()
  if _PLOT.value:
    files.write_bytes(_PLOT.value, page.draw(rows))


def _measured() -> list[dict[str, Any]]:
  rows: list[dict[str, Any]] = []

  def keep(row):
    rows.append(row)
    command_line.say(
      f'{row["shapes"]} {row["scheme"]}: {row["step_ms"]:.1f} ms, '
      f'{row["sgd_ratio"]:.2f} x SGD, {row["compile_s"]:.1f} s to compile'
    )
    if _JSON.value:
      record = {
        'command': command_line.typed(),
        'environment': machine.describe(),
        'repeats': _REPEATS.value,
        'rows': rows,
      }
      files.write_json(_JSON.value, record)

  for tree in _SHAPES.value:
    measure(tree, _SCHEMES.value, keep)
    own = tables.cells(_COLUMNS, [row for row in rows if row['shapes'] == tree])
    tables.show(own, tree)
  return rows


if __name__ == '__main__':
  command_line.run(main)
