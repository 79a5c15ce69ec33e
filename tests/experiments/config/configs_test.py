"""The configurations are the papers' settings, and every one is valid."""

import pathlib

from absl import flags
from configs import cifar10_resnet20
from configs import compare
from configs import default
from configs import digits
from configs import fashion_mnist
from experiments.config import settings
from experiments.program import errors
import gradsparse as gs
from ml_collections import config_flags
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_NAMES = (
  *((compare, name) for name in compare.SCHEMES),
  *((module, n) for module in (digits, fashion_mnist) for n in digits.SCHEMES),
)


@pytest.mark.parametrize('module, name', _NAMES)
def test_every_setting_is_valid(module, name):
  config = module.get_config(name)
  settings.check(config.to_dict(), default.get_config().to_dict())
  assert config.compression.name == name.partition(':')[0]


def test_every_scheme_is_compared_and_says_only_what_is_its_own():
  compared = {name.partition(':')[0] for name in compare.SCHEMES}
  assert compared == set(gs.recipes.RECIPES)
  for name, changes in compare._CHANGES.items():
    example = gs.recipes.RECIPES[name.partition(':')[0]].example
    assert not example.items() & changes.items(), name


def test_he_et_al_take_64000_steps():
  assert cifar10_resnet20.get_config().train.steps == 64_000


def test_epochs_stay_where_flags_change_the_batch():
  def parsed(name, *arguments):
    path = _ROOT / 'configs' / f'{name}'
    command = ['', f'--config={path}', *arguments]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
      'config', flag_values=values, sys_argv=command
    )
    values(command)
    return values.config

  row = 'gtopk_table5.py:resnet20_gtopk'
  config = parsed(row, '--config.parallel.num_workers=2')
  assert config.train.steps == 140 * 50_000 // 256
  assert config.compression.warmup_steps == 4 * 50_000 // 256
  config = parsed(
    row,
    '--config.train.batch_size=32',
    '--config.train.steps=7',
    '--config.compression.warmup_steps=3',
  )
  assert config.to_dict()['train']['steps'] == 7
  assert config.compression.warmup_steps == 3
  # A share of the run follows its steps.
  config = parsed(f'{row}:quick', '--config.train.steps=40')
  assert config.compression.warmup_steps == 10
  # Steps whose gradients are accumulated make whole exchanges.
  row = 'gtopk_table5.py:resnet50_dense'
  config = parsed(row, '--config.optimizer.accumulate=7')
  assert config.train.steps == 15 * 1_281_167 // (4 * 16 * 7) * 7


def test_an_unknown_setting_names_the_known():
  with pytest.raises(errors.ConfigError, match='it has dense, dgc'):
    cifar10_resnet20.get_config('gtop')
