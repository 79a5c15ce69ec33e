"""Which tables there are: each is `TABLE` of a file in configs/."""

import importlib

from experiments.papers import table
from experiments.program import errors
from gradsparse.arguments import did_you_mean

NAMES = tuple(
  """
  schemes_cifar10 schemes_digits schemes_ptb schemes_speech
  schemes_translation ablations_digits ablations_ptb cifar10_resnet20
  dgc_table2 dgc_table3 dgc_figure3 dgc_table4_ptb dgc_table4_librispeech
  dgc_figure5 variance_table1 variance_table2 gtopk_table5 gtopk_table7
  gtopk_figure7 gtopk_figure12 qsgd_table1 qsgd_figure2 qsgd_figure3
  qsgd_sensitivity qsgd_an4 local_table1 local_table2_roen local_table2_ende
  local_figure1 between_sites between_sites_longer schemes_cifar10_longer
  """.split()
)

# What is no list of trainings has a program of its own.
ELSEWHERE = {
  'Lin et al., figure 6: speed-up': 'python -m gradsparse.advise',
  'Shi et al., figures 8 and 9: exchanges on 1 Gbps Ethernet': (
    'python -m experiments.benchmarks.exchange --json=FILE'
  ),
  'Shi et al., figure 10: scaling on a slow network': (
    'python -m experiments.benchmarks.training --json=FILE'
  ),
  'Alistarh et al., theorem 3.6: the rate of QSVRG': (
    'python -m experiments.qsvrg --config=configs/qsvrg.py --json=FILE'
  ),
}


def load(name: str) -> table.Table:
  """Returns a table.

  Args:
    name: one of `NAMES`, or of a module with a `TABLE`, `package.module`.

  Raises:
    ConfigError: there is no such table.
  """
  if name in NAMES:
    return importlib.import_module(f'configs.{name}').TABLE
  if '.' not in name:
    raise errors.ConfigError(
      f'unknown table {name!r}{did_you_mean(name, NAMES)}; there are '
      f'{", ".join(NAMES)}, and package.module of a TABLE of your own'
    )
  try:
    return importlib.import_module(name).TABLE
  except (ImportError, AttributeError) as error:
    raise errors.ConfigError(f'table {name}: {error}') from error
