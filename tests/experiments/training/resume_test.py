"""A run that was broken, stopped or made longer ends like one that was not."""

import json
import os
import shutil
import signal
import time

from experiments.program import errors
from experiments.program import files
from experiments.program import manifest
from experiments.run import checkpoints
from experiments.training import train
import numpy as np
import pytest

STEPS = 8


@pytest.fixture(scope='module')
def make_config(tiny_config, compiled_once):
  """Returns a function that makes the run of all these tests."""

  def make(steps=STEPS):
    config = tiny_config('dgc', density=0.01, steps=steps)
    config.train.checkpoint_every = 3
    return config

  return make


@pytest.fixture(scope='module')
def whole(make_config, tmp_path_factory):
  """The working directory of an undisturbed run."""
  folder = tmp_path_factory.mktemp('whole')
  train.train_and_evaluate(make_config(), folder)
  return folder


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  return [
    {k: v for k, v in line.items() if k != 'time/seconds'} for line in lines
  ]


def _steps(workdir):
  names = (path.name for path in (workdir / 'checkpoints').iterdir())
  # Beside them may lie what Orbax was writing when the disk was full.
  return sorted(n for n in names if not n.endswith('.orbax-checkpoint-tmp'))


def _assert_same_end(workdir, whole):
  with (
    np.load(whole / 'params.npz') as expected,
    np.load(workdir / 'params.npz') as found,
  ):
    assert set(expected) == set(found)
    for name in expected:
      np.testing.assert_array_equal(expected[name], found[name])
  assert _lines(workdir)[-1] == _lines(whole)[-1]


@pytest.mark.slow
def test_a_damaged_last_checkpoint_changes_nothing_but_its_name(
  make_config, whole, tmp_path, caplog
):
  run = tmp_path / 'run'
  shutil.copytree(whole, run)
  (data,) = (run / 'checkpoints' / '8' / 'd').iterdir()
  content = bytearray(data.read_bytes())
  content[len(content) // 2] ^= 1
  data.write_bytes(content)
  (run / 'checkpoints' / '9').mkdir()
  with (run / 'metrics.jsonl').open('ab') as file:
    file.write(b'{"step": 9, "train/loss": 1.0}\n\xff\xfe')
  train.train_and_evaluate(make_config(), run)
  _assert_same_end(run, whole)
  assert _lines(run) == _lines(whole)
  assert _steps(run) == ['6', '8', '8.damaged', '9.damaged']
  named = [line for line in caplog.messages if 'is damaged' in line]
  assert len(named) == 2 and data.name in named[1] and 'empty' in named[0]
  assert f'resuming after step 6 of {STEPS}' in caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_says_where_and_the_run_goes_on(
  number, make_config, whole, tmp_path
):
  def ask(step, steps, line):
    del steps, line
    if step == 4:
      os.kill(os.getpid(), number)
      time.sleep(0.5)  # until it is heard

  with pytest.raises(errors.StoppedError) as caught:
    train.train_and_evaluate(make_config(), tmp_path, progress=ask)
  assert caught.value.exit_status == 128 + number
  saved = tmp_path / 'checkpoints' / '5'
  assert f'after step 5 of {STEPS}: saved in {saved}' in str(caught.value)
  assert manifest.verify(saved)['step'] == 5
  if number == signal.SIGINT:
    return  # the same from here on
  train.train_and_evaluate(make_config(), tmp_path)
  _assert_same_end(tmp_path, whole)


@pytest.mark.slow
def test_a_run_on_a_disk_that_fills_up_goes_on_when_there_is_room(
  make_config, whole, small_disk, caplog
):
  disk = small_disk('size=32m')
  filler, run = disk / 'filler', disk / 'run'

  def fill(step, steps, line):
    del steps, line
    if step == 4:
      while not (run / 'checkpoints' / '3').exists():
        time.sleep(0.01)
      with pytest.raises(OSError, match='No space'):
        filler.write_bytes(bytes(32 << 20))

  with pytest.raises(errors.FileError, match='cannot write.*No space') as told:
    train.train_and_evaluate(make_config(), run, progress=fill)
  assert '\n' not in str(told.value)
  assert not [x for x in caplog.records if x.levelname == 'ERROR']  # of Orbax
  assert _steps(run) == ['3'] and manifest.verify(run / 'checkpoints' / '3')
  filler.unlink()
  train.train_and_evaluate(make_config(), run)
  _assert_same_end(run, whole)
  assert _lines(run) == _lines(whole)


def test_a_save_that_fails_as_well_does_not_hide_the_reason(
  tiny_config, compiled_once, tmp_path, monkeypatch
):
  reason = errors.DivergedError('not finite')

  def fail(*args):
    raise reason if args else errors.FileError('no room')

  monkeypatch.setattr(checkpoints.Checkpoints, 'close', lambda _: fail())
  with pytest.raises(errors.DivergedError) as told:
    train.train_and_evaluate(tiny_config(steps=2), tmp_path, progress=fail)
  assert told.value is reason


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(make_config, whole, tmp_path):
  refused = []

  def intrude(step, steps, line):
    del steps, line
    if step == 1:
      with pytest.raises(errors.ResumeError, match='alive, process') as caught:
        train.train_and_evaluate(make_config(), tmp_path)
      refused.append(caught.value)

  train.train_and_evaluate(make_config(5), tmp_path, progress=intrude)
  assert refused  # a second run, while this one was alive
  folder = tmp_path / 'checkpoints' / '5'
  about = manifest.verify(folder)

  def sealed(about):
    (folder / manifest.NAME).unlink()
    manifest.seal(folder, about)

  sealed({**about, 'format': about['format'] - 1})
  with pytest.raises(errors.ResumeError, match='another version') as caught:
    train.train_and_evaluate(make_config(), tmp_path)
  assert 'another --workdir' in str(caught.value)
  sealed(about)
  train.train_and_evaluate(make_config(), tmp_path)
  _assert_same_end(tmp_path, whole)


@pytest.mark.slow
def test_a_failed_first_try_leaves_the_directory_free(tiny_config, tmp_path):
  config = tiny_config(steps=2)
  config.train.checkpoint_every = 2
  config.train.learning_rate = 1e38
  with pytest.raises(errors.DivergedError):
    train.train_and_evaluate(config, tmp_path)
  assert _steps(tmp_path) == []
  config.train.learning_rate = 0.1
  assert train.train_and_evaluate(config, tmp_path)['steps'] == 2
  written = files.read_json(tmp_path / 'config.json')
  assert written['train']['learning_rate'] == 0.1
