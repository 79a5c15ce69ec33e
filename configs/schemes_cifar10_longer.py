r"""Rows of configs/schemes_cifar10.py for ten times as many epochs.

Commands (CIFAR-10 in its binary version below DIR; see docs/papers.md):
  python -m experiments.papers schemes_cifar10_longer
  python -m experiments.main --config=configs/schemes_cifar10_longer.py:dgc \
    --workdir=runs/dgc --config.data.dir=DIR

Quick: ResNet-8 for 20 epochs, 25,000 steps, up to an hour a row on two cores.
All else, the learning rates too, is as in the quick setting there. So is the
warm-up, a quarter of the run.
"""

import dataclasses

from configs import schemes_cifar10

_SHORT = schemes_cifar10.TABLE
_ROWS = 'dense dgc dgc_4bit gtopk dropping qsgd_4bit'

TABLE = dataclasses.replace(
  _SHORT,
  title='Schemes on CIFAR-10, 4 workers, more epochs',
  quick={'epochs': 20},
  rows={name: _SHORT.rows[name] for name in _ROWS.split()},
)
get_config = TABLE.get_config
