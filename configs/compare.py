r"""Every scheme on digits, four workers, for `python -m experiments.compare`.

One setting a scheme, chosen on a split of the training set
(`data.test_split='validation'`); the network and the rest of the setting are
those of configs/digits.py. No paper has this experiment.

Command for one of them:
  python -m experiments.main --config=configs/compare.py:strom \
    --workdir=runs/compare/strom

Measured: experiments/results/compare.json, by `python -m experiments.compare`.
"""

from configs import digits
from experiments.program import errors
import gradsparse as gs
import ml_collections

# What a setting has beside the example of `gs.recipes.RECIPES` or instead:
# arguments of the factory, and fields that differ from configs/digits.py. The
# scheme is the part of the name before the colon.
_CHANGES = {
  'dense': {},
  'dense:bfloat16': {'wire_dtype': 'bfloat16'},
  'gradient_dropping': {'min_size': 0},
  'gradient_dropping:exponent4': {'values': 'exponent4', 'min_size': 0},
  'gradient_dropping:local': {
    'min_size': 0,
    'local_gradient': 'partial',
    'average_every': 100,
  },
  'dgc': {'min_size': 0, 'warmup_steps': 88},
  'ef21': {'min_size': 0},
  'gtopk': {'density': 0.01, 'min_size': 0},
  'strom': {'threshold': 0.05, 'min_size': 0, 'learning_rate': 0.05},
  'variance_based': {'alpha': 6.0, 'min_size': 0, 'learning_rate': 0.05},
  'variance_strom': {
    'alpha': 1.0,
    'threshold': 0.05,
    'min_size': 0,
    'learning_rate': 0.02,
  },
  'qsgd': {'min_size': 0},
  'qsgd:scatter': {'exchange': 'reduce_scatter', 'min_size': 0},
  'qsgd:elias': {
    'levels': 1,
    'bucket_size': 128,
    'code': 'elias_sparse',
    'min_size': 0,
  },
  # For full gradients, biased and without a memory: what is dropped is lost.
  # The small leaves stay dense.
  'qsgd_descent': {'min_size': 10_000, 'learning_rate': 0.05},
  'terngrad': {'min_size': 0},
  'one_bit_sgd': {'min_size': 0},
  # Two roundings in a row: at 0.1, or with a mean for 512 elements, too much.
  'one_bit_sgd:scatter': {
    'exchange': 'reduce_scatter',
    'bucket_size': 64,
    'min_size': 0,
    'learning_rate': 0.05,
  },
  'sign_majority': {'min_size': 0, 'learning_rate': 0.0005},
  'dryden': {'density': 0.005, 'min_size': 0},
  'ada_comp': {'min_size': 0},
  'random_k': {
    'density': 0.1,
    'memory': True,
    'min_size': 0,
    'learning_rate': 0.02,
  },
  'power_sgd': {},
}

SCHEMES = {
  name: {**gs.recipes.RECIPES[name.partition(':')[0]].example, **changes}
  for name, changes in _CHANGES.items()
}


def get_config(setting: str = 'dense') -> ml_collections.ConfigDict:
  """Returns one of `SCHEMES`."""
  if setting not in SCHEMES:
    raise errors.ConfigError(
      f'this config has no setting {setting!r}; it has {", ".join(SCHEMES)}'
    )
  config = digits.get_config('dense')
  fields = dict(SCHEMES[setting])
  config.train.learning_rate = fields.pop(
    'learning_rate', config.train.learning_rate
  )
  config.compression.name = setting.partition(':')[0]
  config.compression.update(fields)
  config.train.eval_every = 0
  config.train.checkpoint_every = 0
  return config
