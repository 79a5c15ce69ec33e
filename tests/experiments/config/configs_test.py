"""The configurations are the papers' settings, and every one is valid."""

import pathlib

from absl import flags
from configs import cifar10_resnet20
from configs import cifar10_resnet110
from configs import compare
from configs import default
from configs import digits
from configs import fashion_mnist
from experiments.config import settings
from experiments.config import warmup
from experiments.program import errors
import gradsparse as gs
from ml_collections import config_flags
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_NAMES = (
  *((cifar10_resnet20, name) for name in cifar10_resnet20.SETTINGS),
  *((cifar10_resnet110, name) for name in cifar10_resnet110.SETTINGS),
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


def test_gtopk_trains_as_its_table_v_says():
  config = cifar10_resnet20.get_config('gtopk')
  assert config.model.name == 'resnet20'
  assert (config.parallel.num_workers, config.train.batch_size) == (4, 128)
  assert config.train.steps == 140 * 50_000 // 512
  assert config.train.learning_rate == 0.1 and config.optimizer.momentum == 0.9
  assert config.optimizer.warmup_factor < 1
  stages = warmup.stages_of(
    'gtopk', config.compression, config.compression.warmup_steps
  )
  densities = (0.25, 0.0725, 0.015, 0.004, 0.001)
  assert tuple(stage.density for stage in stages) == densities
  # An epoch has 97.7 steps.
  assert [stage.first_step for stage in stages] == [0, 97, 195, 292, 390]
  dense = cifar10_resnet20.get_config('dense:gtopk')
  assert dense.train.steps == config.train.steps
  assert dense.optimizer.warmup_factor == 1


def test_dgc_trains_as_its_section_4_1_says():
  dgc = cifar10_resnet110.get_config('dgc')
  assert dgc.model.name == 'resnet110'
  assert dgc.parallel.num_workers * dgc.train.batch_size == 128
  assert dgc.train.steps == 164 * 50_000 // 128
  assert dgc.compression.warmup_steps == 4 * 50_000 // 128
  assert dgc.compression.density == 0.001 and dgc.optimizer.warmup_factor < 1
  # Its table 2 drops 99.9 % without any of DGC's tricks.
  dropping = cifar10_resnet110.get_config('gradient_dropping')
  assert dropping.compression.density == 0.001
  assert dropping.compression.warmup_steps == 0
  assert dropping.train.steps == dgc.train.steps


def test_he_et_al_take_64000_steps():
  assert cifar10_resnet20.get_config().train.steps == 64_000


def test_epochs_stay_where_flags_change_the_batch():
  def parsed(*arguments):
    path = _ROOT / 'configs' / 'cifar10_resnet20.py'
    command = ['', f'--config={path}:gtopk', *arguments]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
      'config', flag_values=values, sys_argv=command
    )
    values(command)
    return values.config

  config = parsed('--config.parallel.num_workers=2')
  assert config.train.steps == 140 * 50_000 // 256
  assert config.compression.warmup_steps == 4 * 50_000 // 256
  config = parsed(
    '--config.train.batch_size=32',
    '--config.train.steps=7',
    '--config.compression.warmup_steps=3',
  )
  assert config.to_dict()['train']['steps'] == 7
  assert config.compression.warmup_steps == 3


def test_an_unknown_setting_names_the_known():
  with pytest.raises(errors.ConfigError, match='it has dense, dense:gtopk, gt'):
    cifar10_resnet20.get_config('gtop')
