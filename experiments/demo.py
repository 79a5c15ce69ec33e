"""Trains a small network five ways and compares accuracy and bytes.

  python -m experiments.demo          (what `make demo` runs)

Four simulated workers, scikit-learn's handwritten digits, one fixed seed; the
setting is `configs/digits.py`. Takes under three minutes on two cores and
writes `runs/demo/report.html` beside each run's records. Former runs there are
replaced.
"""

import shutil

from configs import digits
from experiments.program import command_line
from experiments.report import page
from experiments.run import display
from experiments.run import records
from experiments.training import train
import jax

_WORKDIR = command_line.define_workdir('runs/demo')
_SCHEMES = command_line.define_names('schemes', digits.SCHEMES)


def main() -> None:
  """Trains each scheme afresh, writes the report and prints its table."""
  folders = [_WORKDIR.value / scheme for scheme in _SCHEMES.value]
  with display.Display(several=True).shown() as shown:
    for folder in folders:
      config, name = digits.get_config(folder.name), f'{folder.name:<18} '
      config.train.checkpoint_every = 0
      if (folder / records.CONFIG).exists():
        shutil.rmtree(folder)
      shown.start(name, config.train.steps)
      train.train_and_evaluate(config, folder, progress=shown)
      jax.clear_caches()  # the next scheme compiles its own programs
  report = _WORKDIR.value / 'report.html'
  title = 'Five ways to exchange gradients: digits, 4 workers'
  page.write(folders, report, title=title)
  print(page.table(page.find_runs(folders)).set_index('run').T.to_string())
  print(f'Report: {report}')


if __name__ == '__main__':
  command_line.run(main)
