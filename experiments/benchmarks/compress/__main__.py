r"""Measures what compression costs in arithmetic, in steps of momentum SGD.

  python -m experiments.benchmarks.compress --json=FILE

There is one worker and no network. A step turns a gradient into new parameters
with all that a scheme does but the exchange itself; its state is donated. Plain
SGD follows the scheme. Each scheme runs in turns with momentum SGD; ratios are
medians over the rounds. Then each stage of the scheme is measured by itself.

`--recorded=FILE` measures nothing: it prints the tables of docs/performance.md
from such a record, and with `--plot=FILE` draws its picture.
"""

import statistics
from typing import Any

from absl import flags
from experiments.benchmarks import rows as measured
from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import page
from experiments.benchmarks.compress import programs
from experiments.benchmarks.compress import stages
from experiments.benchmarks.compress import trees
from experiments.program import command_line
from experiments.program import errors
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
import jax
import jax.numpy as jnp

_JSON = command_line.define_json()
_REPEATS = flags.DEFINE_integer('repeats', 7, 'rounds', lower_bound=1)
_SCHEMES = command_line.define_schemes(contenders.SCHEMES)
_NUM_PARAMS = flags.DEFINE_integer(
  'num_params', 25_600_000, 'most parameters of a tree', lower_bound=500_000
)
flags.DEFINE_alias('floats', 'num_params')  # as in the records
_SHAPES = command_line.define_list(
  'shapes',
  trees.MEASURED,
  flags.EnumParser([*trees.TREES]).parse,
  'which of: ' + ', '.join(trees.TREES),
)
_STAGES = flags.DEFINE_bool('stages', True, 'measure each stage of a step, too')

_RECORDED = command_line.define_path(
  'recorded', None, 'record to show; nothing is measured'
)
_PLOT = command_line.define_path(
  'plot', None, 'PNG file to draw, of what was measured or recorded'
)


def _references(bench: programs.Bench) -> dict[str, programs.Program]:
  """What a step is measured in: one read pass, one selection by the library."""
  grads = bench.gradient()
  joined = jnp.concatenate([g.reshape(-1) for g in grads.values()])
  count = max(1, round(contenders.DENSITY * joined.size))

  def program(function):
    made, seconds = programs.compiled_for(jax.jit(function), joined)
    return programs.Program(
      lambda: jax.block_until_ready(made(joined)),
      seconds,
      machine.peak_bytes(made),
    )

  return {
    'read': program(jnp.max),
    'lax.top_k': program(lambda x: jax.lax.top_k(jnp.abs(x), count)[1]),
  }


def _row(
  tree: str,
  floats: int,
  name: str,
  made: programs.Program,
  ms: list[float],
  sgd: list[float],
) -> dict[str, Any]:
  return {
    'scheme': name,
    'shapes': tree,
    'floats': floats,
    'step_ms': statistics.median(ms),
    'step_ms_spread': measured.quartile_distance(ms),
    'sgd_ratio': programs.ratio(ms, sgd),
    'compile_s': made.compile_seconds,
    'peak_bytes': made.peak_bytes,
  }


def measure(tree: str, names: list[str], keep: Any) -> None:
  """Measures schemes on one tree; `keep` gets each row when it is there."""
  shapes = trees.make(tree, _NUM_PARAMS.value)
  floats, bench = trees.size(shapes), programs.Bench(shapes)
  reference = contenders.REFERENCE
  sgd = bench.step(contenders.momentum_sgd())
  beside = {reference: sgd, **_references(bench)}
  ms = programs.milliseconds(beside, _REPEATS.value)
  for name, made in beside.items():
    keep(_row(tree, floats, name, made, ms[name], ms[reference]))
  del beside
  for name in names:
    scheme = contenders.SCHEMES[name]()
    made = bench.step(contenders.followed(scheme))
    pair = {reference: sgd, name: made}
    ms = programs.milliseconds(pair, _REPEATS.value)
    row = _row(tree, floats, name, made, ms[name], ms[reference])
    del pair, made
    if _STAGES.value:
      parts = stages.of(scheme, bench)
      ms = programs.milliseconds({reference: sgd, **parts}, _REPEATS.value)
      row['stages_ms'] = {part: statistics.median(ms[part]) for part in parts}
      del parts
    keep(row)
    jax.clear_caches()


def table(rows: list[dict[str, Any]]) -> tables.Table:
  """The rows of one tree, for reading."""

  def stage(row, name):
    found = row.get('stages_ms', {}).get(name)
    return '-' if found is None else f'{found:.1f}'

  return tables.make(
    (
      'scheme',
      'step\n(ms)',
      'spread',
      'x SGD',
      'compile\n(s)',
      'peak\n(MiB)',
      *stages.NAMES,
    ),
    [
      (
        row['scheme'],
        f'{row["step_ms"]:.1f}',
        f'{row["step_ms_spread"]:.1f}',
        f'{row["sgd_ratio"]:.2f}',
        f'{row["compile_s"]:.1f}',
        measured.mebibytes(row['peak_bytes']),
        *(stage(row, name) for name in stages.NAMES),
      )
      for row in rows
    ],
    title=f'{rows[0]["shapes"]}: {rows[0]["floats"]:,} floats; stages in ms',
  )


def main() -> None:
  """Measures and prints, or prints what was recorded."""
  if _RECORDED.value:
    rows = files.read_json(_RECORDED.value)['rows']
    print(page.steps_table(rows))
    staged = [row for row in rows if row.get('stages_ms')]
    for tree in dict.fromkeys(row['shapes'] for row in staged):
      print(f'\n{tree}\n\n{page.stages_table(rows, tree)}')
  else:
    rows = _measured()
  if _PLOT.value:
    files.write_bytes(_PLOT.value, page.draw(rows))


def _measured() -> list[dict[str, Any]]:
  if not _SHAPES.value:
    raise errors.ConfigError('--shapes must name a tree')
  rows: list[dict[str, Any]] = []

  def keep(row):
    rows.append(row)
    command_line.say(
      f'{row["shapes"]} {row["scheme"]}: {row["step_ms"]:.1f} ms, '
      f'{row["sgd_ratio"]:.2f} x SGD, {row["compile_s"]:.1f} s to compile'
    )
    if _JSON.value:
      measured.write_record(_JSON.value, _REPEATS.value, rows)

  for tree in _SHAPES.value:
    measure(tree, _SCHEMES.value, keep)
    tables.show(table([row for row in rows if row['shapes'] == tree]))
  return rows


if __name__ == '__main__':
  command_line.run(main)
