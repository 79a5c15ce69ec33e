"""A factory of the user's own is a scheme, by its module and name."""

import sys

from configs import default
from experiments.config import schemes
from experiments.config import settings
from experiments.papers import catalogue
from experiments.program import errors
from experiments.training import train
import pytest

_MODULE = """
import gradsparse as gs
from experiments.papers import table

def thinned(density, *, share=1.0, axis_name):
  return gs.gradient_dropping(density * share, axis_name=axis_name, min_size=0)

def anything(axis_name=None, **arguments):
  return gs.gradient_dropping(**arguments, axis_name=axis_name)

def forgotten(axis_name, **arguments):
  anything(axis_name, **arguments)

def alone(density):
  return gs.gradient_dropping(density, axis_name=None)

NUMBER = 3
TABLE = table.Table(
  title='mine', source='', metrics=('top1',), quick=None,
  full={
    'data.name': 'digits', 'model.name': 'logistic', 'train.steps': 2,
    'train.eval_every': 0, 'train.checkpoint_every': 0,
    'parallel.num_workers': 2,
  },
  rows={'thinned': table.Row(fields={
    'compression.name': 'own_scheme_module:thinned', 'compression.density': 0.1,
  })},
)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
  """A module that is not of this repository."""
  (tmp_path / 'own_scheme_module.py').write_text(_MODULE)
  (tmp_path / 'broken_scheme_module.py').write_text('import no_such_thing')
  (tmp_path / 'own_tables').mkdir()
  (tmp_path / 'own_tables' / 'one.py').write_text(_MODULE)
  monkeypatch.syspath_prepend(tmp_path)
  yield
  for name in ('own_scheme_module', 'own_tables', 'own_tables.one'):
    sys.modules.pop(name, None)


def _check(name, **arguments):
  config = default.get_config()
  config.compression.update(name=name, **arguments)
  settings.check(config.to_dict())


@pytest.mark.slow
def test_a_run_trains_with_it(tiny_config, tmp_path):
  config = tiny_config('own_scheme_module:thinned', steps=2, density=0.1)
  del config.compression['min_size']
  config.compression.share = 0.5
  summary = train.train_and_evaluate(config, tmp_path / 'run')
  assert summary['scheme'] == 'own_scheme_module:thinned'
  assert summary['comm']['element_ratio'] == pytest.approx(20, rel=0.05)


def test_its_arguments_are_those_of_its_signature():
  _check('own_scheme_module:thinned', density=0.1, share=0.5)
  _check('own_scheme_module:anything', density=0.1, min_size=3)
  with pytest.raises(errors.ConfigError, match=r"mean 'share'.*thinned\(densi"):
    _check('own_scheme_module:thinned', density=0.1, shared=0.5)
  with pytest.raises(errors.ConfigError, match='axis_name is not an argument'):
    _check('own_scheme_module:anything', density=0.1, axis_name='x')


def test_its_density_is_a_number_unless_it_says_otherwise():
  stages = schemes.stages(
    {
      'name': 'own_scheme_module:thinned',
      'density': 0.01,
      'warmup_steps': 8,
      'warmup': 'paper',
    }
  )
  assert [stage.given for stage in stages][1:3] == [0.0625, 0.015625]


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('no_such_module:f', "No module named 'no_such_module'"),
    ('broken_scheme_module:f', "No module named 'no_such_thing'"),
    ('own_scheme_module:thin', "has no attribute 'thin'"),
    ('own_scheme_module:', "has no attribute ''"),
    ('own_scheme_module:NUMBER', '3 is not a callable object'),
    ('own_scheme_module:alone', "unexpected keyword argument 'axis_name'"),
    (':f', 'Empty module name'),
  ],
)
def test_what_is_no_factory_is_told_in_a_line(name, says):
  with pytest.raises(errors.ConfigError) as told:
    _check(name)
  assert f'compression.name={name}: ' in str(told.value)
  assert says in str(told.value) and '\n' not in str(told.value)


def test_a_factory_without_a_return_is_told():
  with pytest.raises(errors.ConfigError, match='must return a transformation'):
    _check('own_scheme_module:forgotten', density=0.1)


def test_a_row_of_a_table_of_ones_own_takes_it():
  table = catalogue.load('own_tables.one')
  settings.check(table.get_config('thinned').to_dict())
  with pytest.raises(errors.ConfigError, match='no_such.*No module named'):
    catalogue.load('no_such.table')
