"""The configurations are the papers' settings, and every one is valid."""

import dataclasses
import pathlib

from absl import flags
from configs import cifar10_resnet20
from configs import digits
from configs import fashion_mnist
from configs import schemes_digits
from experiments.config import settings
from experiments.papers import table as papers
from experiments.program import errors
from flax import traverse_util
import gradsparse as gs
from ml_collections import config_flags
import pytest

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize('module', [digits, fashion_mnist])
@pytest.mark.parametrize('name', digits.SCHEMES)
def test_every_setting_is_valid(module, name):
  config = module.get_config(name)
  settings.check(config.to_dict())
  assert config.compression.name == name


def test_every_scheme_is_compared_and_says_only_what_is_its_own():
  compared = {scheme for scheme, _, _ in schemes_digits._SETTINGS}
  assert compared == set(gs.recipes.RECIPES)
  for scheme, variant, changes in schemes_digits._SETTINGS:
    example = gs.recipes.RECIPES[scheme].example
    assert not example.items() & changes.items(), (scheme, variant)


def test_a_rows_arguments_are_its_schemes_example_with_changes():
  rows = schemes_digits.TABLE.rows
  assert next(iter(rows)) == 'dense' and not rows['dense'].beside
  assert {row.beside for row in rows.values()} == {'', 'dense'}
  dgc = schemes_digits.get_config('dgc_exponent4')
  assert dgc.compression.density == 0.001  # of the example
  assert dgc.compression['values'] == 'exponent4'
  assert dgc.compression.warmup_steps == 88
  strom = schemes_digits.get_config('strom')
  assert strom.compression.threshold == 0.05 and strom.train.steps == 660
  assert strom.train.learning_rate == 0.05


@pytest.mark.parametrize('scheme', digits.SCHEMES)
def test_the_demos_schemes_are_rows_of_the_table(scheme):
  demo = traverse_util.flatten_dict(
    digits.get_config(scheme).to_dict(), sep='.'
  )
  untried = dataclasses.replace(
    schemes_digits.TABLE.rows[scheme], chosen_rate=None
  )
  row = schemes_digits.TABLE.config(untried, papers.FULL).to_dict()
  row = traverse_util.flatten_dict(row, sep='.')
  # The demo looks at its runs more often. Blocks change no setting.
  own = {'parallel.workers_per_chunk', *settings.FREE_ON_RESUME}
  assert {n: v for n, v in demo.items() if n not in own} == {
    n: v for n, v in row.items() if n not in own
  }


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
