"""Writers: which there are, what each tracker is told, and what fails."""

import json
import pathlib
import re
import sys
import types

from absl import flags
from experiments.program import errors
from experiments.run import trackers
from experiments.run import writers
from experiments.training import train
import pytest

_CONFIG = {'train': {'steps': 4, 'seed': 0}, 'compression': {'name': 'dgc'}}
_NUMBERS = {'train/loss': 0.5, 'comm/sent_bytes': 8}


class _Recorder(types.ModuleType):
  """A module whose functions, whatever their name, keep what they get."""

  def __init__(self, name):
    super().__init__(name)
    self.calls = []

  def __getattr__(self, name):
    if name.startswith('__'):
      raise AttributeError(name)

    def call(*args, **kwargs):
      self.calls.append((name, args, kwargs))
      return self._result

    return call

  @property
  def _result(self):
    """A run of any of them: wandb's own functions are its methods."""
    run = types.SimpleNamespace(
      id='w1', info=types.SimpleNamespace(run_id='m1')
    )
    run.log, run.finish = self.__getattr__('log'), self.__getattr__('finish')
    return run


@pytest.fixture(params=['wandb', 'mlflow'])
def fake(request, monkeypatch):
  """A package that is not installed here, and remembers what it was told."""
  module = _Recorder(request.param)
  monkeypatch.setitem(sys.modules, request.param, module)
  return module


def _attempt(fake, workdir, last_step):
  """Writes steps 2 and 4 as a run would that has written `last_step`."""
  fake.calls.clear()
  made = writers.Writers(
    writers.find_writers([fake.__name__]), _CONFIG, workdir, last_step
  )
  for step in (2, 4):
    made.write(step, _NUMBERS)
  made.close()
  return fake.calls


def test_a_tracker_gets_the_fields_once_and_each_step_once(fake, tmp_path):
  workdir = tmp_path / 'my_run'
  workdir.mkdir()
  first = _attempt(fake, workdir, 0)
  names = [name for name, _, _ in first]
  begin, logged = {
    'wandb': ('init', 'log'),
    'mlflow': ('start_run', 'log_metrics'),
  }[fake.__name__]
  assert names[0] == begin and names.count(logged) == 2
  assert names[-1] in ('finish', 'end_run') and names.count(names[-1]) == 1
  steps = [(args, kw['step']) for name, args, kw in first if name == logged]
  assert steps == [((_NUMBERS,), 2), ((_NUMBERS,), 4)]
  began = first[0][2]
  shown = began.get('name') or began['run_name']
  assert shown.startswith('my_run')
  if fake.__name__ == 'mlflow':
    params = {'train.steps': 4, 'train.seed': 0, 'compression.name': 'dgc'}
    assert first[1] == ('log_params', (params,), {})
  else:
    assert began['config'] == _CONFIG

  # The run goes on: as the same one, without what was written and the fields.
  known = json.loads((workdir / trackers.IDS).read_text())[fake.__name__]
  again = _attempt(fake, workdir, 2)
  began = again[0][2]
  assert {
    'wandb': lambda: (began['id'], began['resume']) == (known, 'allow'),
    'mlflow': lambda: again[0] == (begin, (), {'run_id': known}),
  }[fake.__name__]()
  assert [kw['step'] for name, _, kw in again if name == logged] == [4]
  assert 'log_params' not in [name for name, _, _ in again]


def test_nothing_is_imported_that_was_not_asked_for(monkeypatch, tmp_path):
  for package, _ in trackers.TRACKERS.values():
    monkeypatch.setitem(sys.modules, package, None)  # raises ImportError
  assert writers.find_writers([]) == {}
  writers.Writers({}, _CONFIG, tmp_path, 0).close()
  for name, (package, _) in trackers.TRACKERS.items():
    with pytest.raises(errors.ConfigError) as told:
      writers.find_writers([name])
    assert str(told.value).startswith(f'--writer={name} needs the package')
    assert str(told.value).endswith(f'pip install {package}')


@pytest.mark.parametrize('text', ['wand', '', 'os:', ':f', 'wandb,,mlflow'])
def test_a_wrong_name_is_told_by_the_flag(text, monkeypatch):
  own = flags.FlagValues()
  define = flags.DEFINE
  monkeypatch.setattr(
    flags, 'DEFINE', lambda *a, **kw: define(*a, flag_values=own, **kw)
  )
  held = writers.define_flag()
  own(['program', '--writer=wandb,a.b:c'])
  assert own[held.name].value == ['wandb', 'a.b:c']
  with pytest.raises(flags.Error, match='must be one of tensorboard, wandb, '):
    own(['program', f'--writer={text}'])


# --- of the user's own -------------------------------------------------------


class Own:
  """Keeps what it is told, by step."""

  def __init__(self, config, workdir, last_step):
    assert config['train']['steps'] and workdir.is_dir()
    self._file = (workdir / 'own.txt').open('a')
    print(f'begins after {last_step}', file=self._file)

  def write(self, step, numbers):
    """Writes a line."""
    print(f'{step} {numbers["train/loss"]:.7g}', file=self._file, flush=True)

  def close(self):
    """Writes that it was closed."""
    print('closed', file=self._file)
    self._file.close()


def fails(config, workdir, last_step):
  """A factory that cannot reach its server."""
  raise OSError('no route to host')


class FailsLater(Own):
  """Loses its server at step 4."""

  def write(self, step, numbers):
    """Writes a line, or fails."""
    if step >= 4:
      raise OSError('no route to host')
    super().write(step, numbers)


class _Killed(Exception):
  """Stands for the end of a process between two steps."""


def _own(name):
  return f'{__name__}:{name}'


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_run_that_goes_on_writes_no_step_twice(
  tiny_config, compiled_once, tmp_path
):
  config = tiny_config('dgc', density=0.1, steps=8)
  config.train.log_every, config.train.checkpoint_every = 1, 3

  def kill(step, steps, line):
    del steps, line
    if step == 6:  # the last checkpoint may be of step 3
      raise _Killed

  def run(**options):
    writers = [_own('Own'), 'tensorboard']
    train.train_and_evaluate(config, tmp_path, writers=writers, **options)

  with pytest.raises(_Killed):
    run(progress=kill)
  (tmp_path / trackers.IDS).write_text('{"wandb": "x"}')
  run()
  said = (tmp_path / 'own.txt').read_text().splitlines()
  written = [line.split() for line in said if line[0].isdigit()]
  lines = _lines(tmp_path)
  assert [int(step) for step, _ in written] == [line['step'] for line in lines]
  assert [float(loss) for _, loss in written] == [
    line['train/loss'] for line in lines
  ]
  assert said.count('closed') == 2 and said[0] == 'begins after 0'
  assert len(list((tmp_path / 'tensorboard').glob('events*'))) == 2
  assert (tmp_path / trackers.IDS).exists()


@pytest.mark.slow
def test_a_writer_that_fails_is_one_warning_and_the_run_ends_well(
  tiny_config, compiled_once, tmp_path, caplog
):
  config = tiny_config(steps=8)
  (tmp_path / trackers.IDS).write_text('{"wandb": "of a former run"}')
  summary = train.train_and_evaluate(
    config, tmp_path, writers=[_own('FailsLater')]
  )
  assert summary['steps'] == 8
  assert [line['step'] for line in _lines(tmp_path)] == [2, 4, 6, 8]
  (told,) = [text for text in caplog.messages if '--writer' in text]
  assert told == (
    f'--writer={_own("FailsLater")} failed at step 4 and is left out from '
    'here on: OSError: no route to host'
  )
  said = (tmp_path / 'own.txt').read_text().splitlines()
  assert [line.split()[0] for line in said] == ['begins', '2', 'closed']
  assert not (tmp_path / trackers.IDS).exists()  # the run began anew


def test_one_that_cannot_begin_is_an_error_and_later_a_warning(
  tmp_path, caplog
):
  factories = writers.find_writers([_own('Own'), _own('fails')])
  with pytest.raises(errors.UserError) as told:
    writers.Writers(factories, _CONFIG, tmp_path, 0)
  assert str(told.value) == (
    f'--writer={_own("fails")} cannot begin: OSError: no route to host'
  )
  # The first one was closed.
  assert (tmp_path / 'own.txt').read_text() == 'begins after 0\nclosed\n'
  made = writers.Writers(factories, _CONFIG, tmp_path, 2)
  made.write(4, _NUMBERS)
  made.close()
  assert caplog.text.count('failed after step 2 and is left out') == 1
  assert (tmp_path / 'own.txt').read_text().endswith('after 2\n4 0.5\nclosed\n')


def test_the_page_has_all_trackers_and_its_own_writer_works(tmp_path):
  page = (pathlib.Path(__file__).parents[3] / 'docs/experiments.md').read_text()
  _, _, section = page.partition('## Trackers\n')
  section, _, _ = section.partition('\n## ')
  named = re.findall(r'^\| `([\w.:]+)` \|', section, re.MULTILINE)
  assert named == [*trackers.TRACKERS, 'package.module:factory']
  (block,) = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
  names = {}
  exec(block, names)
  for last_step in (0, 2):
    made = writers.Writers({'mine': names['CSV']}, _CONFIG, tmp_path, last_step)
    made.write(last_step + 2, _NUMBERS)
    made.close()
  assert (tmp_path / 'loss.csv').read_text() == '# seed 0\n2,0.5\n4,0.5\n'


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('no_such_module:f', "No module named 'no_such_module'"),
    ('os:no_such_function', "no attribute 'no_such_function'"),
    ('os:getcwd', 'too many positional arguments'),
    ('os:sep', 'is not a callable object'),
  ],
)
def test_a_factory_that_is_none_is_told(name, says):
  with pytest.raises(errors.ConfigError, match=says) as told:
    writers.find_writers([name])
  assert 'a function of (config, workdir, last_step)' in str(told.value)
