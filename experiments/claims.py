"""Measures how far compressed training stays from dense, over several seeds.

  python -m experiments.claims --json=experiments/results/digits.json

One seed on a small test set proves little (an image of the digits is 0.28
points). The claim "within one point of dense" is about the mean, over seeds,
of the difference between a scheme's test accuracy and that of the dense run
with the same seed, so the same start and the same data order. To choose
settings, use `--test_split=validation`, which never looks at the test set.
"""

from configs import digits
from experiments.program import command_line
from experiments.program import files
from experiments.run import machine
from experiments.studies import claims

_JSON = command_line.define_json(former='output')
_WORKDIR = command_line.define_workdir('runs/claims')
_SCHEMES = command_line.define_schemes(digits.SCHEMES)
_SEEDS = command_line.define_seeds(0, 1, 2)
_STEPS = command_line.define_steps(None, "instead of the setting's")
_TEST_SPLIT = command_line.define_test_split()


def main() -> None:
  """Measures, writes the record, says what holds."""
  rows = claims.measure(
    _WORKDIR.value,
    _SCHEMES.value,
    _SEEDS.value,
    test_split=_TEST_SPLIT.value,
    steps=_STEPS.value,
  )
  files.write_json(
    _JSON.value,
    {
      'claim': claims.CLAIM,
      'command': command_line.typed(),
      'setting': 'configs/digits.py',
      'test_split': _TEST_SPLIT.value,
      'seeds': _SEEDS.value,
      'schemes': rows,
      'environment': machine.describe(),
    },
  )
  print(claims.verdicts(rows))


if __name__ == '__main__':
  command_line.require('json')
  command_line.run(main)
