"""A configuration from dotted fields, and from epochs, as papers print them."""

from collections.abc import Mapping
from typing import Any

from configs import default
from experiments.data import cifar10
from experiments.data import dataset
from experiments.program import errors
import ml_collections

# Training examples of a published data set; tokens where it is a text.
EXAMPLES = {
  'an4': 948,
  'cifar10': 50_000,
  'digits': 1_437,
  'fashion_mnist': 60_000,
  'fsdd': 3_087,  # strings of its digits
  'imagenet': 1_281_167,
  'librispeech': 281_241,
  'mnist': 60_000,
  'multi30k': 29_000,
  'ptb': 929_589,
  'ptb_characters': 5_017_482,
}
TEXTS = ('ptb', 'ptb_characters')  # a row of a batch is a window of these
# Of these `data.test_split` validation holds out a fifth of the training set,
# of FSDD some recordings; all others have a file for it.
_FIFTH_HELD_OUT = 'an4 cifar10 digits fashion_mnist imagenet mnist'.split()
_FSDD_HELD_OUT = 2_741  # strings that are left without recordings 5 to 9

# What stands for steps. Of all examples to train on: `epochs` of the run,
# `warmup_epochs` of rising sparsity and `linear_warmup_epochs` of a rising
# learning rate. `warmup_share` is that part of the run instead. `examples` says
# how many there are, where the name of the data does not.
DERIVED = ('epochs', 'warmup_epochs', 'linear_warmup_epochs')
DERIVED += ('examples', 'warmup_share')


def build(fields: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Returns the default configuration with some fields changed.

  Args:
    fields: by their dotted names, and those of `DERIVED`. Steps that follow
      from epochs are computed when they are read, so that flags may change the
      number of workers and the batch. Tests and checkpoints are once an epoch
      unless a field says otherwise.

  Raises:
    ConfigError: there are epochs, and nothing says how long one is.
  """
  config = default.get_config()
  for name, value in fields.items():
    if name not in DERIVED:
      section, field = name.split('.')
      config[section][field] = value
  batch = (
    config.parallel.get_oneway_ref('num_workers')
    * config.parallel.get_oneway_ref('devices_per_node')
    * config.train.get_oneway_ref('batch_size')
  )
  if config.data.name in TEXTS:
    batch *= config.train.get_oneway_ref('bptt_length')
  if 'epochs' in fields:
    examples = _examples(config, fields)
    # Whole exchanges: what is left over would reach nobody.
    every = config.optimizer.get_oneway_ref('accumulate')
    exchanges = round(fields['epochs'] * examples) // (batch * every)
    config.train.steps = exchanges * every
    for field in ('eval_every', 'checkpoint_every'):
      if f'train.{field}' not in fields:
        config.train[field] = examples // batch
  for epochs, (section, field) in {
    'warmup_epochs': ('compression', 'warmup_steps'),
    'linear_warmup_epochs': ('optimizer', 'linear_warmup_steps'),
  }.items():
    if epochs in fields:
      rising = round(fields[epochs] * _examples(config, fields))
      config[section][field] = rising // batch
  if 'warmup_share' in fields:
    steps = config.train.get_oneway_ref('steps')
    parts = round(1 / fields['warmup_share'])
    config.compression.warmup_steps = steps // parts
  return config


def _examples(config, fields: Mapping[str, Any]) -> int:
  """Returns what an epoch has, in images, utterances, pairs or tokens.

  Where `data.test_split` holds out a part of the training set, an epoch is what
  is left. No data are read for that: it is of the published number of examples
  and of the share that the loaders hold out, so files with more or fewer
  examples have shorter or longer epochs here. `examples` is taken as it is.

  Raises:
    ConfigError: nothing says how many there are.
  """
  if 'examples' in fields:
    return fields['examples']
  name = config.data.name
  if name not in EXAMPLES:
    raise errors.ConfigError(
      f'epochs of data.name={name} need `examples`, the number of examples'
    )
  count, split = EXAMPLES[name], config.data.test_split
  validation = split == 'validation'
  if name == 'cifar10' and (validation or split in cifar10.TRAIN_STEMS):
    count -= cifar10.RECORDS
  if name == 'fsdd' and validation:
    return _FSDD_HELD_OUT
  if name in _FIFTH_HELD_OUT and validation:
    count -= round(dataset.VALIDATION_FRACTION * count)
  return count
