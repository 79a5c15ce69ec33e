"""A configuration from dotted fields, and from epochs, as papers print them."""

from collections.abc import Mapping
from typing import Any

from configs import default
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
_CIFAR_FILE = 10_000  # images of a training file, which may be held out

# What stands for steps. Of all training examples: `epochs` of the run,
# `warmup_epochs` of rising sparsity and `linear_warmup_epochs` of a rising
# learning rate. `warmup_share` is that part of the run instead. `examples` says
# how many there are, where the name of the data does not.
DERIVED = (
  'epochs',
  'examples',
  'warmup_epochs',
  'warmup_share',
  'linear_warmup_epochs',
)


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
    * config.parallel.get_oneway_ref('inner_workers')
    * config.train.get_oneway_ref('batch_size')
  )
  if config.data.name in TEXTS:
    batch *= config.train.get_oneway_ref('window')
  if 'epochs' in fields:
    examples = _examples(config, fields)
    # Whole exchanges: what is left over would reach nobody.
    every = config.optimizer.get_oneway_ref('accumulate')
    exchanges = round(fields['epochs'] * examples) // (batch * every)
    config.train.steps = exchanges * every
    for field in ('eval_every', 'checkpoint_every'):
      if f'train.{field}' not in fields:
        config.train[field] = examples // batch
  if 'warmup_epochs' in fields:
    warmup = round(fields['warmup_epochs'] * _examples(config, fields))
    config.compression.warmup_steps = warmup // batch
  if 'warmup_share' in fields:
    parts = round(1 / fields['warmup_share'])
    steps = config.train.get_oneway_ref('steps')
    config.compression.warmup_steps = steps // parts
  if 'linear_warmup_epochs' in fields:
    rising = round(fields['linear_warmup_epochs'] * _examples(config, fields))
    config.optimizer.linear_warmup_steps = rising // batch
  return config


def _examples(
  config: ml_collections.ConfigDict, fields: Mapping[str, Any]
) -> int:
  """Returns what an epoch has, in images, utterances, pairs or tokens."""
  if 'examples' in fields:
    return fields['examples']
  name = config.data.name
  if name not in EXAMPLES:
    raise errors.ConfigError(
      f'epochs of data.name={name} need `examples`: how many there are'
    )
  if name == 'cifar10' and config.data.test_split != 'file':
    return EXAMPLES[name] - _CIFAR_FILE
  return EXAMPLES[name]
