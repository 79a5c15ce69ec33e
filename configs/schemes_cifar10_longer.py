r"""Rows of configs/schemes_cifar10.py for ten times as many epochs.

Commands (CIFAR-10 in its binary version below DIR; see docs/papers.md):
  python -m experiments.papers schemes_cifar10_longer
  python -m experiments.main --config=configs/schemes_cifar10_longer.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

Quick: ResNet-8 for 20 epochs, 25,000 steps. All else is as in the quick setting
there, the warm-up too, a quarter of the run. The learning rates did best in
trials of 20 epochs, chosen as there. The trials are in
experiments/results/rates/schemes_cifar10_longer.json.
"""

import dataclasses

from configs import schemes_cifar10

_SHORT = schemes_cifar10.TABLE
_ROWS = ('dense', 'dgc', 'dgc_4bit', 'gtopk', 'dropping', 'qsgd_4bit')
# Where the rate is not that of two epochs.
_RATES = {'dense': 0.2, 'dgc_4bit': 0.4, 'dropping': 0.05}

TABLE = dataclasses.replace(
  _SHORT,
  title='Schemes on CIFAR-10, 4 workers, more epochs',
  quick={'epochs': 20},
  rows={
    name: dataclasses.replace(
      row, chosen_rate=_RATES.get(name, row.chosen_rate)
    )
    for name, row in _SHORT.rows.items()
    if name in _ROWS
  },
)
get_config = TABLE.get_config
