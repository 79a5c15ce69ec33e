"""A configuration from dotted fields, and from epochs, as papers print them."""

from collections.abc import Mapping
from typing import Any

from configs import default
import ml_collections

# Training images of a published data set.
IMAGES = {
  'cifar10': 50_000,
  'digits': 1_437,
  'fashion_mnist': 60_000,
  'imagenet': 1_281_167,
  'mnist': 60_000,
}
_CIFAR_FILE = 10_000  # images of a training file, which may be held out

# What stands for steps. Of all training images: `epochs` of the run,
# `warmup_epochs` of rising sparsity and `linear_warmup_epochs` of a rising
# learning rate. `warmup_share` is that part of the run instead.
DERIVED = ('epochs', 'warmup_epochs', 'warmup_share', 'linear_warmup_epochs')


def build(fields: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Returns the default configuration with some fields changed.

  Args:
    fields: by their dotted names, and those of `DERIVED`. Steps that follow
      from epochs are computed when they are read, so that flags may change the
      number of workers and the batch. Tests and checkpoints are once an epoch
      unless a field says otherwise.
  """
  config = default.get_config()
  for name, value in fields.items():
    if name not in DERIVED:
      section, field = name.split('.')
      config[section][field] = value
  images = IMAGES[config.data.name]
  if config.data.name == 'cifar10' and config.data.test_split != 'file':
    images -= _CIFAR_FILE
  batch = (
    config.parallel.get_oneway_ref('num_workers')
    * config.parallel.get_oneway_ref('inner_workers')
    * config.train.get_oneway_ref('batch_size')
  )
  if 'epochs' in fields:
    # Whole exchanges: what is left over would reach nobody.
    every = config.optimizer.get_oneway_ref('accumulate')
    exchanges = round(fields['epochs'] * images) // (batch * every)
    config.train.steps = exchanges * every
    for field in ('eval_every', 'checkpoint_every'):
      if f'train.{field}' not in fields:
        config.train[field] = images // batch
  if 'warmup_epochs' in fields:
    warmup = round(fields['warmup_epochs'] * images)
    config.compression.warmup_steps = warmup // batch
  if 'warmup_share' in fields:
    parts = round(1 / fields['warmup_share'])
    steps = config.train.get_oneway_ref('steps')
    config.compression.warmup_steps = steps // parts
  if 'linear_warmup_epochs' in fields:
    rising = round(fields['linear_warmup_epochs'] * images)
    config.optimizer.linear_warmup_steps = rising // batch
  return config
