"""Wrong configurations, command lines and data files, told in words.

The tables are in tests/bad_input. Nothing is trained and nothing is compiled.
"""

import pathlib
import re

from experiments import data as data_sets
import pytest
from tests.bad_input import cases
from tests.bad_input import configs
from tests.bad_input import data
from tests.bad_input import programs


@pytest.mark.parametrize('case', cases.params(configs.CASES))
def test_a_wrong_configuration_is_refused_in_words(case):
  case.check()


def test_numpy_scalars_are_numbers_in_a_configuration():
  configs.check({})
  configs.check(configs.numpy_fields())


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  made = tmp_path_factory.mktemp('lines')
  programs.write_files(made)
  return made


@pytest.mark.parametrize(
  'line',
  [
    pytest.param(line, id=f'{line.program} {line.arguments[-60:]}')
    for line in programs.LINES
  ],
)
def test_a_wrong_command_line_ends_with_one_message(line, folder, monkeypatch):
  monkeypatch.chdir(pathlib.Path(__file__).parents[2])
  words = line.arguments.replace('{tmp}', str(folder)).split(' ')
  status, said = programs.run(line.program, *filter(None, words))
  assert status == line.status, said
  assert re.search(f'(?s)error: .*{line.says}', said), said
  assert 'Traceback' not in said
  assert not (folder / 'run').exists()


@pytest.fixture
def folders(cifar_folder, idx_folder, imagenet_folder):
  return {
    data.CIFAR: cifar_folder,
    data.IDX: idx_folder,
    data.IMAGENET: imagenet_folder,
  }


@pytest.mark.parametrize('damage', data.DAMAGES)
def test_a_damaged_data_file_is_named(damage, folders):
  folder = folders[damage.dataset]
  cases.Case(
    damage.file,
    lambda: damage.load(folder),
    data.errors.DataFileError,
    damage.says,
  ).check()


@pytest.mark.parametrize('name, below, split, error, says', data.REQUESTS)
def test_a_data_set_that_is_not_there_is_told(
  name, below, split, error, says, tmp_path, monkeypatch
):
  monkeypatch.delenv('GRADSPARSE_DATA', raising=False)
  (tmp_path / 'file').touch()
  where = below if below[:1] in ('', '~') else str(tmp_path / below)
  load = lambda: data_sets.load(name, where, split)
  cases.Case('load', load, error, says).check()


def test_no_folder_at_all_says_how_to_give_one(monkeypatch):
  monkeypatch.delenv('GRADSPARSE_DATA', raising=False)
  with pytest.raises(data.errors.DataFileError, match='data.dir=DIR or set GR'):
    data_sets.load('mnist')
