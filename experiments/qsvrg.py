r"""Runs QSVRG against plain QSGD on l2-regularised logistic regression.

  python -m experiments.qsvrg --json=experiments/results/qsvrg.json \
    --figure=runs/qsvrg.png

Handwritten digits below five or not, four simulated workers; see
`experiments/studies/qsvrg.py`.
"""

from absl import flags
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
from experiments.studies import qsvrg

_JSON = command_line.define_json(former='output')
_FIGURE = command_line.define_path('figure', None, 'PNG file to draw')
_EPOCHS = flags.DEFINE_integer(
  'epochs', 20, 'of 1000 exchanges each', lower_bound=1
)


def main() -> None:
  """Runs both and prints the errors."""
  found = qsvrg.measure(_EPOCHS.value)
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
  print(f'QSVRG: factor {found["qsvrg_factor_per_epoch"]:.3f} an epoch')
  print(
    f'a message: {found["qsvrg_bits_per_message"]:.1f} bits, theorem 3.6 '
    f'counts {found["theorem_bits_per_message"]:.1f}'
  )
  if _FIGURE.value:
    qsvrg.plot(losses, _FIGURE.value)
  if _JSON.value:
    files.write_json(
      _JSON.value,
      {
        'command': command_line.typed(),
        'environment': machine.describe(),
        **found,
      },
    )


if __name__ == '__main__':
  command_line.run(main)
