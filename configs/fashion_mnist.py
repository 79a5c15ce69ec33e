r"""A perceptron on Fashion-MNIST (or MNIST), one of the demo's five schemes.

Commands (the four idx files, plain or .gz, in DIR or DIR/fashion-mnist):
  python -m experiments.main --config=configs/fashion_mnist.py:dgc \
    --workdir=runs/fashion --config.data.dir=DIR
  and the same with --config.data.name=mnist

Published: no paper of ours has it; QSGD (arXiv 1610.02132, section 5) trains a
two-layer perceptron on MNIST and reports its accuracy in words only.
Ours: not measured, for want of the files on the machine that wrote this.
"""

from configs import default
from configs import digits
import ml_collections


def get_config(scheme: str = 'dense') -> ml_collections.ConfigDict:
  """Returns ten epochs with the demo's arguments for `scheme`."""
  config = default.get_config()
  config.train.batch_size = 32
  steps_per_epoch = 60_000 // (config.train.batch_size * 4)
  config.train.steps = 10 * steps_per_epoch
  config.train.log_every = 50
  config.train.eval_every = steps_per_epoch
  config.train.checkpoint_every = steps_per_epoch
  config.data.name = 'fashion_mnist'
  config.model.name = 'mlp'
  config.optimizer.schedule = 'cosine'
  default.with_scheme(config, digits.SCHEMES, scheme)
  if scheme == 'dgc':
    config.compression.warmup_steps = steps_per_epoch
  return config
