r"""Runs QSVRG against plain QSGD on l2-regularised logistic regression.

  python -m experiments.qsvrg --config=configs/qsvrg.py \
    --json=experiments/results/qsvrg.json

The task is to tell whether a handwritten digit is below five; workers are
simulated. Set any field by `--config.FIELD=VALUE`.
`experiments/studies/qsvrg.py` explains the last lines of the output, which
`configs/qsvrg.py` has in its head.
"""

from absl import flags
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.studies import qsvrg

_CONFIG = command_line.define_config()
_JSON = command_line.define_json()
flags.DEFINE_alias('output', 'json')  # its former name


def check() -> None:
  """Raises unless the configuration makes sense."""
  command_line.check_config(_CONFIG)
  qsvrg.check(_CONFIG.value)


def main() -> None:
  """Runs both and prints the errors."""
  found = qsvrg.measure(_CONFIG.value)
  losses = found['excess_loss']
  lines = zip(*losses.values(), strict=True)
  tables.show(
    tables.make(
      ('epoch', *losses),
      [
        (str(number), *(f'{error:.2e}' for error in line))
        for number, line in enumerate(lines)
      ],
      left=0,
    )
  )
  print(qsvrg.header(found))
  if _JSON.value:
    files.write_json(_JSON.value, {'command': command_line.typed(), **found})


if __name__ == '__main__':
  flags.mark_flag_as_required('config')
  command_line.run(main, check=check)
