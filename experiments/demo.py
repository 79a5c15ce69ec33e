"""Trains a small network five ways and compares accuracy and bytes.

  python -m experiments.demo          (what `make demo` runs)

Four simulated workers, scikit-learn's handwritten digits, one fixed seed; the
setting is `configs/digits.py`. Takes under three minutes on two cores and
writes `runs/demo/report.html` beside each run's records.
"""

from absl import flags
from configs import digits
from experiments.program import command_line
from experiments.studies import demo

_WORKDIR = command_line.define_workdir('runs/demo')
_SCHEMES = command_line.define_schemes(digits.SCHEMES)
_STEPS = flags.DEFINE_integer(
  'steps', None, 'steps of each run, fewer for a quick look', lower_bound=1
)


def main() -> None:
  """Runs the demo."""
  demo.run(_WORKDIR.value, _SCHEMES.value, _STEPS.value)


if __name__ == '__main__':
  command_line.run(main)
