"""Every program: its help, its mistakes, and that nothing imports it."""

import pathlib
import re
import shlex
import signal
import subprocess
import sys

from absl import flags
from experiments.program import command_line
import pytest
from tests import marks
from tests import pipes

_EXPERIMENTS = pathlib.Path(command_line.__file__).parents[1]
PROGRAMS = {
  '.'.join(path.relative_to(_EXPERIMENTS).with_suffix('').parts).removesuffix(
    '.__main__'
  ): path
  for path in sorted(_EXPERIMENTS.rglob('*.py'))
  if "if __name__ == '__main__'" in path.read_text()
}
# Programs of records in experiments/results that are gone, or tests now.
_GONE = {
  'benchmarks.moments',
  'benchmarks.network',
  'studies.kill_and_resume',
  'studies.large_models',
  'studies.long_run',
  'studies.network_faults',
}


def test_the_documents_name_programs_that_are_there():
  root = _EXPERIMENTS.parent
  texts = [root / 'README.md', root / 'BUILD.md', root / 'Makefile']
  texts += (root / 'docs').glob('*.md')
  texts += [*(root / 'configs').glob('*.py'), *PROGRAMS.values()]
  assert _named(texts) <= PROGRAMS.keys() and len(_named(texts)) > 10
  records = _named(_EXPERIMENTS.rglob('*.json'))
  assert records <= PROGRAMS.keys() | _GONE


def _named(texts):
  """Programs that are run in some files."""
  return {
    name
    for path in texts
    for name in re.findall(r'-m experiments\.([a-z_.]*[a-z])', path.read_text())
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', PROGRAMS)
def test_help_says_what_it_does_and_which_flags_it_has(name, program):
  done = program(name, '--help')
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()[0]) > 30
  source = PROGRAMS[name].read_text()
  for flag in re.findall(r"(?:DEFINE_|define_)\w+\(\s*'(\w+)'", source):
    assert re.search(rf'^  --(\[no\])?{flag}:', done.stdout, re.MULTILINE), flag
  done = program(name, '--nonsense=1')
  assert done.returncode == 2 and "'nonsense'" in done.stderr
  assert 'Traceback' not in done.stderr


def _ended(source):
  """A program of this source, when it has ended."""
  return subprocess.run(
    [sys.executable, '-c', source],
    cwd=_EXPERIMENTS.parent,
    capture_output=True,
    text=True,
  )


@pytest.mark.parametrize(
  ('error', 'status', 'line'),
  marks.few(
    [
      ("errors.StoppedError('saved in x', 15)", 143, 'saved in x'),
      ('KeyboardInterrupt', 130, 'stopped by SIGINT'),
      ("errors.FileError('cannot write x')", 1, 'error: cannot write x'),
    ],
    ('KeyboardInterrupt', 130, 'stopped by SIGINT'),
  ),
)
def test_what_ends_a_program_is_one_line(error, status, line):
  source = (
    'from experiments.program import command_line, errors\n'
    f'def main():\n  raise {error}\n'
    'command_line.run(main)'
  )
  done = _ended(source)
  assert (done.returncode, done.stderr) == (status, f'{line}\n')


@pytest.mark.parametrize('unbuffered', ['', '1'])
@pytest.mark.parametrize('flag', ['', '--help'])
def test_a_program_that_nobody_reads_ends_quietly(flag, unbuffered):
  source = (
    '"""Prints a line."""\n'
    'from experiments.program import command_line\n'
    "command_line.run(lambda: print('a line'))"
  )
  words = ('-c', source, *filter(None, [flag]))
  done = pipes.unread(*words, PYTHONUNBUFFERED=unbuffered)
  assert done.stderr == ''
  assert done.returncode in (0, 128 + signal.SIGPIPE)


def test_another_pipe_that_breaks_is_told():
  source = (
    'import os\n'
    'from experiments.program import command_line\n'
    'def main():\n'
    '  read, write = os.pipe()\n'
    '  os.close(read)\n'
    "  os.write(write, b'x')\n"
    'command_line.run(main)'
  )
  done = _ended(source)
  assert 'BrokenPipeError' in done.stderr and done.returncode == 1


@pytest.fixture
def values(monkeypatch):
  """Returns what parses flags that are defined in the test only."""
  own = flags.FlagValues()
  for name in ('DEFINE', 'DEFINE_integer'):
    plain = getattr(flags, name)
    monkeypatch.setattr(
      flags,
      name,
      lambda *args, plain=plain, **kw: plain(*args, flag_values=own, **kw),
    )
  return lambda line: own(['program', *shlex.split(line)])


def test_flags_are_paths_and_lists(values):
  path = command_line.define_json()
  floats = command_line.define_numbers('num_params', 5, 'many')
  schemes = command_line.define_names('schemes', ('dense', 'dgc'))
  seeds = command_line.define_numbers('seeds', 0, 'of runs', 0)
  values('')
  assert path.value is None and floats.value == [5] and seeds.value == [0]
  assert schemes.value == ['dense', 'dgc']
  values(
    '--json=a/b.json --num_params=1_000_000,2000 --schemes=dgc --seeds 1,2'
  )
  assert path.value == pathlib.Path('a/b.json') and seeds.value == [1, 2]
  assert floats.value == [1_000_000, 2000] and schemes.value == ['dgc']


@pytest.mark.parametrize(
  'line, message',
  [
    ('--num_params=1.5', "invalid literal for int.* '1.5'"),
    ('--num_params=nan', "invalid literal for int.* 'nan'"),
    ('--num_params=0', '0 is not a positive integer'),
    ('--schemes=dense,dcg', 'value should be one of <dense|dgc>'),
    ('--json=', 'must name a file'),
  ],
)
def test_wrong_values_are_told(line, message, values):
  command_line.define_json()
  command_line.define_numbers('num_params', 5, 'many')
  command_line.define_names('schemes', ('dense', 'dgc'))
  with pytest.raises(flags.IllegalFlagValueError, match=message):
    values(line)


def test_a_file_without_a_configuration_is_told():
  missing = "module 'config_config' has no attribute 'get_config'"
  told = command_line._told(AttributeError(missing))
  assert told == "the file of --config has no attribute 'get_config'"
