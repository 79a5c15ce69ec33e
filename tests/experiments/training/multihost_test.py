"""One run of several processes: the same result, resumed, and refused."""

import json
import re

import pytest
from tests.experiments.run import writers_test
from tests.experiments.training import processes


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """The run of one process with two devices."""
  folder = tmp_path_factory.mktemp('alone')
  processes.run_alone(folder, folder / 'run')
  return folder / 'run'


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_two_processes_are_one_run_also_after_a_death(tmp_path, victim, alone):
  workdir = tmp_path / 'run'
  outcome, text = processes.run(tmp_path, workdir, victim=victim, step=6)
  assert outcome.statuses[victim] == -9
  assert outcome.statuses[1 - victim] not in (0, None, -9), text
  assert not (workdir / 'summary.json').exists()
  outcome, text = processes.run(tmp_path, workdir)
  assert outcome.statuses == (0, 0), text
  assert f'resuming after step 3 of {processes.STEPS}' in text
  assert text.count(f'see {workdir}') == 1  # process 0 says it, once
  processes.assert_same_run(workdir, alone)
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['environment']['processes'] == 2


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(tmp_path, alone):
  workdir = tmp_path / 'run'
  outcome, text = processes.run(
    tmp_path, workdir, victim=1, step=6, signal='SIGTERM'
  )
  assert outcome.statuses == (143, 143), text
  saved = workdir / 'checkpoints' / '7'
  assert (
    text.count(f'stopped by SIGTERM after step 7 of {processes.STEPS}: saved')
    == 2
  )
  assert 'Traceback' not in text
  # What one of them cannot use none of them does.
  data = next(path for path in saved.rglob('d/*') if path.is_file())
  data.write_bytes(data.read_bytes()[:-1])
  outcome, text = processes.run(tmp_path, workdir)
  assert outcome.statuses == (0, 0), text
  assert f'resuming after step 6 of {processes.STEPS}' in text
  assert text.count('is now called 7.damaged') == 1 and data.name in text
  processes.assert_same_run(workdir, alone)


@pytest.mark.slow
def test_a_workdir_that_cannot_be_locked_is_told_by_all(tmp_path):
  (tmp_path / 'run' / 'run.lock').mkdir(parents=True)
  outcome, text = processes.run(tmp_path, tmp_path / 'run')
  assert set(outcome.statuses) <= {1, -6} and 1 in outcome.statuses
  assert 'error: cannot write' in text and 'Traceback' not in text


@pytest.mark.slow
def test_two_processes_without_a_death(tmp_path, alone):
  own = f'--writer={writers_test.__name__}:Own'
  outcome, text = processes.run(tmp_path, tmp_path / 'run', own)
  assert outcome.statuses == (0, 0), text
  processes.assert_same_run(tmp_path / 'run', alone)
  said = (tmp_path / 'run' / 'own.txt').read_text()
  assert said.count('begins') == said.count('closed') == 1  # in process 0


# Parameters that differ between processes; messages swapped between them,
# which processes on CPUs do otherwise than devices of one.
_OTHERS = {
  'sum': ('gradient_dropping', '--config.compression.local_gradient=sum'),
  'partial': (
    'gradient_dropping',
    '--config.compression.local_gradient=partial',
  ),
  'two levels': ('dgc', '--config.parallel.devices_per_node=2'),
  'butterfly': ('gtopk', '--config.optimizer.momentum=0.5'),
}


@pytest.mark.slow
@pytest.mark.parametrize('scheme, flag', _OTHERS.values(), ids=_OTHERS)
def test_other_schemes_between_processes(tmp_path, scheme, flag):
  flags = (f'--config.compression.name={scheme}', flag)
  one, two = tmp_path / 'one', tmp_path / 'two'
  processes.run_alone(tmp_path, one, *flags)
  outcome, text = processes.run(tmp_path, two, *flags)
  assert outcome.statuses == (0, 0), text
  processes.assert_same_run(two, one)


@pytest.mark.slow
@pytest.mark.parametrize(
  'flag, message',
  [
    ('--config.parallel.num_workers=3', 'need 3 devices with .* cpu has 2'),
    ('--config.parallel.runner=simulate', 'need parallel.runner shard_map'),
  ],
)
def test_refuses_what_cannot_be(tmp_path, flag, message):
  outcome, text = processes.run(tmp_path, tmp_path / 'run', flag)
  # One may hear of the other's end (and abort) before it has said the same.
  assert set(outcome.statuses) <= {2, 1, -6} and 2 in outcome.statuses
  assert re.search(message, text)
  assert 'Traceback' not in text


@pytest.mark.slow
def test_hidden_states_of_both_processes_go_on_after_a_death(tmp_path):
  text = ''.join(f' {" ".join("abcde")} <unk> \n' for _ in range(80))
  for part in ('train', 'valid', 'test'):
    (tmp_path / f'ptb.{part}.txt').write_text(text)
  flags = (
    '--config.data.name=ptb',
    f'--config.data.dir={tmp_path}',
    '--config.model.name=lstm_200',
    '--config.train.batch_size=3',
    '--config.train.bptt_length=7',
  )
  processes.run_alone(tmp_path, tmp_path / 'one', *flags)
  workdir = tmp_path / 'two'
  outcome, _ = processes.run(tmp_path, workdir, *flags, victim=1, step=6)
  assert outcome.statuses[1] == -9
  outcome, text = processes.run(tmp_path, workdir, *flags)
  assert outcome.statuses == (0, 0), text
  assert f'resuming after step 3 of {processes.STEPS}' in text
  processes.assert_same_run(workdir, tmp_path / 'one')
