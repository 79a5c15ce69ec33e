r"""The demo: a small convolutional network on handwritten digits, five ways.

Commands:
  make demo
  python -m experiments.main --config=configs/digits.py:dgc --workdir=runs/dgc

30 epochs of 1,437 images of 8 x 8, four workers, 283,786 parameters. No paper
has this experiment; it is small enough for every machine and has real data.
Density of gradient dropping: Aji & Heafield 2017 (99 % dropped); DGC's
density and warm-up: Lin et al. 2018, section 4.1; gTop-k's here is ten times
the paper's 0.001, which without a warm-up costs more than a point in so short a
run.

Ours, with differences to dense over seeds: these five are rows of
configs/schemes_digits.py, where dense has half the learning rate.

Learning rates and seeds, all with all:
  python -m experiments.sweep --config=configs/digits.py:dgc \
    --sweep=learning_rate,seed --workdir=runs/digits_rates
"""

from collections.abc import Iterator
from typing import Any

from configs import default
from experiments.papers import building
import ml_collections

# Every argument that is not here has the factory's default. min_size=0: all
# leaves are compressed, biases too.
SCHEMES = {
  'dense': {},
  'gradient_dropping': {'density': 0.01, 'min_size': 0},
  'dgc': {'density': 0.001, 'min_size': 0},
  'gtopk': {'density': 0.01, 'min_size': 0},
  'qsgd': {'levels': 7, 'min_size': 0},  # 4 bits: 2^3 - 1 levels and a sign
}

_STEPS_PER_EPOCH = 22
WARMUP_STEPS = 4 * _STEPS_PER_EPOCH

# What all schemes share.
FIELDS = {
  'data.name': 'digits',
  'model.name': 'convnet',
  'parallel.num_workers': 4,
  'train.batch_size': 16,
  'train.steps': 30 * _STEPS_PER_EPOCH,
  'train.learning_rate': 0.1,
  'train.log_every': 10,
  'train.eval_every': 2 * _STEPS_PER_EPOCH,
  'optimizer.schedule': 'cosine',
}


def get_config(scheme: str = 'dense') -> ml_collections.ConfigDict:
  """Returns the setting of one of `SCHEMES`."""
  config = building.build(FIELDS)
  default.with_scheme(config, SCHEMES, scheme)
  if scheme == 'dgc':
    config.compression.warmup_steps = WARMUP_STEPS
  return config


def sweep_learning_rate() -> Iterator[dict[str, Any]]:
  """Yields half the demo's learning rate, the rate, and twice it."""
  for rate in (0.05, 0.1, 0.2):
    yield {'train.learning_rate': rate}


def sweep_seed() -> Iterator[dict[str, Any]]:
  """Yields three seeds of parameters and data order."""
  for seed in range(3):
    yield {'train.seed': seed}
