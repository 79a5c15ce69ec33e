"""Only intact checkpoints are used; what cannot be written is told at once."""

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess

from experiments.hosts.placement import Placement
from experiments.program import errors
from experiments.program import manifest
from experiments.run import checkpoints
import gradsparse as gs
import jax.numpy as jnp
import numpy as np
import pytest

_ONE = Placement('simulate', 1)


def _state(step):
  return {'a': jnp.arange(50.0) + step, 'n': jnp.asarray(step)}


def _open(folder, placement=_ONE):
  return checkpoints.Checkpoints(folder / 'checkpoints', 1, placement)


@pytest.fixture(scope='module')
def _written(tmp_path_factory):
  folder = tmp_path_factory.mktemp('written')
  saver = _open(folder)
  saver.prepare(0)
  for step in (2, 4, 6):
    saver.save(step, _state(step), {'note': step})
  saver.close()
  return folder


def test_copies_of_one_workers_memory_are_not_saved(tmp_path):
  params = {'w': jnp.zeros((8, 8))}
  tx = gs.gradient_dropping(0.1, axis_name='workers', min_size=0)
  state = gs.workers.init(tx, params, 2)
  stats = state.stats._replace(worker=jnp.ones(2, jnp.int32))
  with pytest.raises(ValueError, match=r'of workers \[0\] for all 2'):
    _open(tmp_path).save(1, state._replace(stats=stats), {})


@pytest.fixture
def run(_written, tmp_path):
  """A copy of a run that has saved after steps 2, 4 and 6."""
  shutil.copytree(_written, tmp_path / 'run')
  return tmp_path / 'run'


def _names(run):
  return sorted(path.name for path in (run / 'checkpoints').iterdir())


def _data(folder):
  """The file of a checkpoint that has the arrays."""
  files = (path for path in folder.rglob('d/*') if path.is_file())
  return max(files, key=lambda path: path.stat().st_size)


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def test_the_last_two_are_kept_and_the_last_is_restored(run):
  assert _names(run) == ['4', '6']
  saver = _open(run)
  found = saver.find()
  assert (found.step, found.about['note']) == (6, 6)
  assert 'jax' in found.about['versions']
  state = saver.restore(found, _state(0))
  np.testing.assert_array_equal(state['a'], _state(6)['a'])
  saver.close()


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda d: _flip(_data(d)), 'SHA-256'),
    (lambda d: os.truncate(_data(d), 10), 'has 10 bytes'),
    (lambda d: (shutil.rmtree(d), d.mkdir()), 'the folder is empty'),
    (lambda d: d.with_name('900').mkdir(), 'the folder is empty'),
    (lambda d: (d / manifest.NAME).unlink(), 'manifest.json is missing'),
    (lambda d: d.rename(d.with_name('8')), 'manifest.json is of step 6'),
  ],
)
def test_a_damaged_checkpoint_is_named_and_set_aside(
  damage, message, run, caplog
):
  damage(run / 'checkpoints' / '6')
  saver = _open(run)
  found = saver.find()
  expected = 6 if (run / 'checkpoints' / '900').exists() else 4
  assert found.step == expected
  saver.prepare(found.step)
  (line,) = caplog.messages
  assert message in line and '.damaged' in line
  (aside,) = (name for name in _names(run) if name.endswith('.damaged'))
  saver.save(int(aside.split('.')[0]), _state(6), {})  # its place is free
  saver.close()
  state = saver.restore(found, _state(0))
  np.testing.assert_array_equal(state['a'], _state(expected)['a'])


def test_none_intact_says_what_to_do(run):
  for name in ('4', '6'):
    _flip(_data(run / 'checkpoints' / name))
  before = _names(run)
  with pytest.raises(errors.ResumeError) as caught:
    _open(run).find()
  text = str(caught.value)
  assert re.search(r'is intact \(6: .*SHA-256.*; 4: .*SHA-256.*\)', text)
  assert 'backup' in text and 'begin again' in text and '\n' not in text
  assert _names(run) == before


@pytest.mark.parametrize('content', [None, b'', b'{', b'\xff'])
def test_what_is_not_sealed_is_not_needed(content, run):
  path = run / 'checkpoints' / '6' / '_CHECKPOINT_METADATA'
  path.unlink()
  if content is not None:
    path.write_bytes(content)
  saver = _open(run)
  found = saver.find()
  assert found.step == 6
  state = saver.restore(found, _state(0))
  np.testing.assert_array_equal(state['a'], _state(6)['a'])


def test_what_a_dead_run_was_writing_is_no_checkpoint(run):
  partial = run / 'checkpoints' / f'8{checkpoints.UNFINISHED}' / 'd'
  partial.mkdir(parents=True)
  assert _open(run).find().step == 6
  _open(run).prepare(6)
  assert not partial.exists()


def test_no_folder_is_a_run_that_begins(tmp_path):
  saver = checkpoints.Checkpoints(tmp_path / 'checkpoints', 0, _ONE)
  assert saver.find().step == 0
  saver.prepare(0)
  assert not saver.directory.exists()


@dataclasses.dataclass(frozen=True)
class _WithAnother(Placement):
  """A process beside one that has these intact."""

  intact: tuple[int, ...] = ()
  said: list = dataclasses.field(default_factory=list)

  def least(self, number):
    # The other one follows the same rule, from what was agreed before.
    limit = self.said[-1] if self.said else 10**9
    mine = max((s for s in self.intact if s <= limit), default=0)
    self.said.append(min(number, mine))
    return self.said[-1]


@pytest.mark.parametrize(
  ('intact', 'agreed'), [((4, 6), 6), ((2, 4), 4), ((4,), 4), ((5, 4), 4)]
)
def test_processes_agree_on_what_all_have_intact(intact, agreed, run, caplog):
  saver = _open(run, _WithAnother('shard_map', 2, intact=intact))
  assert saver.find().step == agreed
  saver.prepare(agreed)
  assert ('6.damaged' in _names(run)) == (agreed < 6)
  if agreed < 6:
    assert 'another process cannot read it' in caplog.text


# What cannot be written.


@pytest.mark.parametrize(
  'options',
  ['size=300k', 'size=8m,nr_inodes=40'],
  ids=['no bytes', 'no inodes'],
)
def test_a_full_disk_is_told_and_the_old_ones_are_whole(options, small_disk):
  disk = small_disk(options)
  saver = _open(disk)
  saver.prepare(0)
  noise = np.random.default_rng(0).normal(size=20_000).astype('float32')
  state = {'a': jnp.asarray(noise)}
  with pytest.raises(errors.FileError) as caught:
    for step in range(1, 5):
      saver.save(step, state, {})
      saver.wait()
  text = str(caught.value)
  assert 'cannot write a checkpoint to' in text and '\n' not in text
  kept = saver.steps()
  assert kept and f'those before are whole: {", ".join(map(str, kept))}' in text
  with contextlib.suppress(errors.FileError):  # another file that failed
    saver.close()
  again = _open(disk)
  found = again.find()
  assert found.step == kept[0]
  np.testing.assert_array_equal(again.restore(found, state)['a'], state['a'])


def test_a_disk_without_inodes_is_told_before_training(small_disk):
  disk = small_disk('size=8m,nr_inodes=1')
  with pytest.raises(errors.FileError, match='cannot make the folder .*space'):
    _open(disk).prepare(0)


def test_a_disk_to_read_from_only_is_told_before_training(small_disk):
  disk = small_disk('size=8m')
  subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
  with pytest.raises(errors.FileError, match='cannot make the .*Read-only'):
    _open(disk).prepare(0)


def test_a_file_in_the_way_is_told_before_training(tmp_path):
  (tmp_path / 'checkpoints').touch()
  with pytest.raises(errors.FileError, match='cannot make the folder .*check'):
    _open(tmp_path).prepare(0)
