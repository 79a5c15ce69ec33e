r"""Takes very many steps, and checks whether anything grows or drifts.

  python -m experiments.studies.long_run --steps=100000 \
    --json=experiments/results/long_run.json

It trains a small perceptron on digits; each worker has a device of the
processor. At --points of the run it measures the memory of the process, the
arrays that JAX holds, the programs compiled since the first call, the norms of
the workers' residuals, and whether the workers' copies of shared state are
equal, bit for bit. The exit status is 1 if anything grew, drifted or was
compiled later. 100,000 steps of three schemes took ten minutes on two cores,
beside other work.
"""

import time
from typing import Any

from absl import flags
from experiments.hosts import placement
from experiments.program import command_line
from experiments.program import errors
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
from experiments.studies.long_run import run
from experiments.studies.long_run import verdict
import gradsparse as gs
import jax

_JSON = command_line.define_json()
_SCHEMES = command_line.define_list(
  'schemes',
  ('dgc', 'gtopk', 'power_sgd'),
  flags.EnumParser([*run.SCHEMES]).parse,
  'which of: ' + ', '.join(run.SCHEMES),
)
_STEPS = flags.DEFINE_integer(
  'steps', 100_000, 'steps of each scheme', lower_bound=1
)
_WORKERS = flags.DEFINE_integer(
  'workers', 2, 'workers, each on a device of its own', lower_bound=2
)
_POINTS = flags.DEFINE_integer(
  'points', 100, 'number of measurements of a scheme', lower_bound=4
)
_CHUNK = flags.DEFINE_integer(
  'chunk', 20, 'steps in one call of the compiled program', lower_bound=1
)


def check() -> None:
  """Raises where the flags make no sense together."""
  least = _POINTS.value * _CHUNK.value
  if _STEPS.value % least:
    raise errors.ConfigError(
      f'--steps must be a multiple of --points times --chunk, {least}, got '
      f'{_STEPS.value}'
    )


def _measured(name: str) -> dict[str, Any]:
  began = time.perf_counter()
  points = []
  for point in run.measure(
    name,
    steps=_STEPS.value,
    every=_STEPS.value // _POINTS.value,
    chunk=_CHUNK.value,
    num_workers=_WORKERS.value,
  ):
    points.append(point)
    command_line.say(f'{name}: {point}')
  return {
    'scheme': name,
    'steps': _STEPS.value,
    'workers': _WORKERS.value,
    'seconds': round(time.perf_counter() - began, 3),
    **verdict.summary(points),
    'points': [point._asdict() for point in points],
  }


def main() -> int:
  """Runs the schemes, prints the table, and keeps what was measured."""
  placement.pose_as(_WORKERS.value)
  rows: list[dict[str, Any]] = []
  for name in _SCHEMES.value:
    try:
      rows.append(_measured(name))
    except gs.workers.DisagreementError as error:
      raise errors.DisagreementError(f'{name}: {error}') from error
    jax.clear_caches()
    if _JSON.value:
      files.write_json(
        _JSON.value,
        {
          'command': command_line.typed(),
          'environment': machine.describe(),
          'rows': rows,
        },
      )
  tables.show(verdict.results_table(rows))
  for row in rows:
    for wrong in row['wrong']:
      command_line.say(f'{row["scheme"]}: {wrong}')
  return int(any(row['wrong'] for row in rows))


if __name__ == '__main__':
  command_line.run(main, check=check)
