"""The loop: every config runs, runs resume bit for bit, trouble is loud."""

import json
import math

from configs import cifar10_resnet20
from configs import default
from configs import fashion_mnist
from configs import gtopk_table5
from experiments.config import settings
from experiments.program import errors
from experiments.program import files
from experiments.run import records
from experiments.run import writers
from experiments.training import train
import gradsparse as gs
import jax
import numpy as np
import pytest

_RUNNERS = ('simulate', 'pmap', 'shard_map')
_SCHEMES = {
  'dgc': {'density': 0.01},
  'qsgd': {'levels': 7},
}


class _Killed(Exception):
  """Stands for the end of a process between two steps."""


def _params(workdir):
  with np.load(workdir / 'params.npz') as archive:
    return dict(archive)


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _one_step(config, workdir):
  config.train.steps = 1
  config.train.batch_size = 4
  config.train.checkpoint_every = 1
  config.parallel.num_workers = 2
  settings.check(config.to_dict())
  return train.train_and_evaluate(config, workdir)


def test_default_config_writes_what_the_contract_says(tmp_path):
  summary = _one_step(default.get_config(), tmp_path)
  assert summary == files.read_json(tmp_path / 'summary.json')
  assert summary['scheme'] == 'dense' and summary['steps'] == 1
  assert 0 <= summary['final']['test_accuracy'] <= 1
  comm = summary['comm']
  assert comm['dense_bytes_per_step'] == 4 * 283_786
  assert comm['payload_bytes_per_step'] == comm['dense_bytes_per_step']
  # A ring of two sends the whole once, in two halves of whole elements.
  assert 0 <= comm['sent_bytes_per_step'] - 4 * 283_786 <= 8
  assert comm['ratio'] == comm['run_average_ratio'] == 1
  assert comm['element_ratio'] == comm['run_average_element_ratio'] == 1
  assert summary['final']['test_top5_accuracy'] >= 0.4
  (line,) = _lines(tmp_path)
  assert line['step'] == 1 and line['comm/payload_bytes'] == 4 * 283_786
  assert {'train/loss', 'test/accuracy', 'time/seconds'} <= set(line)
  params = _params(tmp_path)
  assert params['Dense_0/kernel'].shape == (1024, 256)
  assert sum(array.size for array in params.values()) == 283_786
  assert files.read_json(tmp_path / 'config.json')['train']['steps'] == 1
  assert 'Conv_0' in (tmp_path / 'plan.txt').read_text()


@pytest.mark.slow
def test_fashion_mnist_config(tmp_path, idx_folder):
  config = fashion_mnist.get_config('dense')
  config.data.dir = str(idx_folder)
  assert _one_step(config, tmp_path / 'run')['steps'] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  ('module', 'row'),
  [
    (cifar10_resnet20, 'dense'),
    (cifar10_resnet20, 'dgc'),
    (gtopk_table5, 'resnet20_gtopk'),
  ],
)
def test_cifar10_config(module, row, tmp_path, cifar_folder):
  config = module.get_config(row)
  config.data.dir = str(cifar_folder)
  summary = _one_step(config, tmp_path / 'run')
  assert summary['parameters'] == 269_722
  assert summary['comm']['dense_bytes_per_step'] == 4 * 269_722
  assert math.isfinite(summary['final']['test_loss'])


@pytest.mark.parametrize(
  ('scheme', 'runner', 'inner_workers'),
  [
    pytest.param('dgc', 'shard_map', 2, marks=pytest.mark.slow),
    pytest.param('qsgd', 'simulate', 2, marks=pytest.mark.slow),
    *(
      pytest.param(scheme, runner, 1, marks=pytest.mark.slow)
      for scheme in _SCHEMES
      for runner in _RUNNERS
    ),
  ],
)
def test_resumed_run_ends_bit_identical(
  scheme, runner, inner_workers, tiny_config, tmp_path
):
  def config():
    made = tiny_config(scheme, runner=runner, steps=8, **_SCHEMES[scheme])
    made.train.checkpoint_every = 3
    made.train.learning_rate = 0.2
    made.parallel.devices_per_node = inner_workers
    made.optimizer.schedule = 'cosine'
    return made

  def kill(step, steps, line):
    del steps, line
    if step == 7:
      raise _Killed

  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  train.train_and_evaluate(config(), whole)
  with pytest.raises(_Killed):
    train.train_and_evaluate(config(), broken, progress=kill)
  assert not (broken / 'summary.json').exists()
  with (broken / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 8, "train/lo')  # torn by a crash
  # What Orbax leaves when the process dies before the final rename.
  partial = broken / 'checkpoints' / '7.orbax-checkpoint-tmp'
  (partial / 'state').mkdir(parents=True)
  (partial / 'state' / 'manifest.ocdbt').write_bytes(b'half')
  train.train_and_evaluate(config(), broken)

  expected, found = _params(whole), _params(broken)
  assert expected.keys() == found.keys()
  for name in expected:
    np.testing.assert_array_equal(expected[name], found[name])
  assert [line['step'] for line in _lines(broken)] == [2, 4, 6, 8]
  for name in ('train/loss', 'comm/residual_norm', 'comm/sent_bytes_total'):
    assert [line[name] for line in _lines(broken)] == [
      line[name] for line in _lines(whole)
    ]


@pytest.mark.slow
def test_another_number_of_inner_workers_is_no_resumption(
  tiny_config, tmp_path
):
  config = tiny_config(steps=1)
  config.parallel.devices_per_node = 2
  summary = train.train_and_evaluate(config, tmp_path)
  assert summary['num_workers'] == summary['inner_workers'] == 2
  # A dense mean is a ring of two on both levels; inside, one flag goes with it.
  comm = summary['comm']
  assert (
    0 <= comm['inner_sent_bytes_per_step'] - comm['sent_bytes_per_step'] < 8
  )
  assert _lines(tmp_path)[-1]['comm/inner_sent_bytes'] > 0
  assert '2 inner workers' in (tmp_path / 'plan.txt').read_text()
  config.parallel.devices_per_node = 4
  with pytest.raises(errors.ResumeError, match='per_node: was 2, now 4'):
    train.train_and_evaluate(config, tmp_path)


@pytest.mark.slow
def test_a_finished_run_returns_its_result_again(tiny_config, tmp_path):
  config = tiny_config(steps=2)
  config.train.checkpoint_every = 2
  first = train.train_and_evaluate(config, tmp_path)
  lines = _lines(tmp_path)
  again = train.train_and_evaluate(config, tmp_path)
  assert again['final'] == first['final']
  assert _lines(tmp_path) == lines
  config.train.steps = 1
  with pytest.raises(
    errors.ResumeError, match='checkpoints/2 is of a longer run: .*is 1'
  ):
    train.train_and_evaluate(config, tmp_path)


@pytest.mark.slow
def test_warmup_changes_the_bytes_from_stage_to_stage(tiny_config, tmp_path):
  config = tiny_config('dgc', density=0.001, steps=4)
  config.compression.warmup_steps = 2
  config.optimizer.warmup_factor = 0.5
  config.train.log_every = 1
  summary = train.train_and_evaluate(config, tmp_path)
  lines = _lines(tmp_path)
  densities = [line['comm/density'] for line in lines]
  assert densities == [0.0625, 0.004, 0.001, 0.001]
  rates = [line['train/learning_rate'] for line in lines]
  assert rates == pytest.approx([0.025, 0.025, 0.05, 0.05])
  planned = (tmp_path / 'plan.txt').read_text()
  assert 'from step 0, density 0.0625:' in planned
  assert 'from step 2, density 0.001:' in planned
  totals = np.diff([0] + [line['comm/sent_bytes_total'] for line in lines])
  assert totals.tolist() == [line['comm/sent_bytes'] for line in lines]
  assert summary['comm']['run_average_ratio'] < summary['comm']['ratio']


@pytest.mark.slow
def test_accumulated_steps_send_once(tiny_config, tmp_path):
  config = tiny_config('dgc', density=0.01, steps=6)
  config.optimizer.accumulate = 3
  config.optimizer.schedule = 'cosine'
  config.train.log_every = 1
  settings.check(config.to_dict())
  summary = train.train_and_evaluate(config, tmp_path)
  lines, comm = _lines(tmp_path), summary['comm']
  sent = [line['comm/sent_bytes'] for line in lines]
  assert np.flatnonzero(sent).tolist() == [2, 5]
  assert comm['sent_bytes_total'] == sum(sent)
  assert comm['sent_bytes_per_step'] == sent[2] / 3
  payload = lines[2]['comm/payload_bytes']
  assert comm['ratio'] == comm['dense_bytes_per_step'] / (payload / 3)
  assert comm['run_average_ratio'] == pytest.approx(comm['ratio'])
  rates = [line['train/learning_rate'] for line in lines]
  assert rates == pytest.approx([0.05] * 3 + [0.025] * 3)
  assert 'in one of 3 updates' in (tmp_path / 'plan.txt').read_text()


@pytest.mark.slow
def test_steps_that_average_parameters_send_them_too(tiny_config, tmp_path):
  config = tiny_config('gradient_dropping', density=0.01, steps=4)
  config.compression.update(local_gradient='partial', param_sync_every=3)
  config.train.log_every = 1
  settings.check(config.to_dict())
  summary = train.train_and_evaluate(config, tmp_path)
  sent = [line['comm/sent_bytes'] for line in _lines(tmp_path)]
  # Parameters and momentum. Each of two workers sends each float32 once.
  average = 2 * 4 * sum(x.size for x in _params(tmp_path).values())
  assert np.diff(sent).tolist() == [0, average, -average]
  comm = summary['comm']
  assert comm['sent_bytes_total'] == sum(sent)
  assert comm['sent_bytes_per_step'] == sum(sent) / 4
  assert comm['run_average_ratio'] < 3
  assert 'in one of 3 updates' in (tmp_path / 'plan.txt').read_text()


@pytest.mark.slow
def test_a_model_of_one_worker_is_tested_where_they_differ(
  tiny_config, compiled_once, tmp_path
):
  config = tiny_config('gradient_dropping', density=0.1, steps=2)
  config.compression.update(local_gradient='partial', param_sync_every=2)
  config.train.checkpoint_every = 2
  config.data.update(test_split='validation', final_split='test')
  alike = train.train_and_evaluate(config, tmp_path)
  assert alike['one_worker'] == {
    name: alike[name] for name in ('final', 'final_split')
  }
  config.train.steps = 3
  other = train.train_and_evaluate(config, tmp_path)
  own, split = (other['one_worker'][n] for n in ('final', 'final_split'))
  assert own != other['final'] and split != other['final_split']
  assert split['split'] == 'test'
  # A finished run is tested again, and says the same.
  again = train.train_and_evaluate(config, tmp_path)
  assert again['one_worker'] == other['one_worker']


@pytest.mark.slow
def test_a_density_that_falls_each_step(tiny_config, tmp_path):
  config = tiny_config('gradient_dropping', density=0.01, steps=6)
  config.compression.update(warmup='linear_drop_ratio', warmup_steps=4)
  config.optimizer.warmup_factor = 0.5
  config.train.log_every = 1
  settings.check(config.to_dict())
  summary = train.train_and_evaluate(config, tmp_path)
  lines = _lines(tmp_path)
  densities = [line['comm/density'] for line in lines]
  assert densities == pytest.approx([1, 0.7525, 0.505, 0.2575, 0.01, 0.01])
  rates = [line['train/learning_rate'] for line in lines]
  assert rates == pytest.approx([0.025] * 4 + [0.05] * 2)
  # A step sends what one of that density would, or the next larger message.
  shapes = {
    name: jax.ShapeDtypeStruct(array.shape, array.dtype)
    for name, array in _params(tmp_path).items()
  }
  for line in lines:
    density = min(1.0, line['comm/density'])
    scheme = gs.gradient_dropping(density, min_size=0, axis_name='workers')
    plan = gs.plan(scheme, shapes, num_workers=2)
    assert line['comm/payload_bytes'] >= plan.payload_bytes
    if line['step'] in (1, 5, 6):
      assert line['comm/payload_bytes'] == plan.payload_bytes
      assert line['comm/sent_bytes'] == plan.sent_bytes
  comm = summary['comm']
  payloads = [line['comm/payload_bytes'] for line in lines]
  assert comm['payload_bytes_per_step'] == payloads[-1]
  assert comm['run_average_payload_bytes_per_step'] == np.mean(payloads)
  sent = [line['comm/sent_bytes'] for line in lines]
  assert comm['sent_bytes_total'] == sum(sent)
  planned = (tmp_path / 'plan.txt').read_text()
  assert 'from step 0, density 1:' in planned


def test_a_loss_that_is_no_number_stops_the_run(tiny_config, tmp_path):
  config = tiny_config(steps=30)
  config.train.learning_rate = 1e38
  config.train.checkpoint_every = 1
  with pytest.raises(errors.DivergedError, match='finite|loss is nan'):
    train.train_and_evaluate(config, tmp_path)
  assert not (tmp_path / 'summary.json').exists()
  assert not list((tmp_path / 'checkpoints').glob('[2-9]*'))
  assert all(math.isfinite(line['train/loss']) for line in _lines(tmp_path))


def test_no_leaf_to_compress_is_a_config_error(tiny_config, tmp_path):
  config = tiny_config('qsgd', levels=7, min_size=10**9)
  with pytest.raises(errors.ConfigError, match='min_size'):
    train.train_and_evaluate(config, tmp_path)


def test_too_few_devices_say_what_to_do(tiny_config, tmp_path):
  config = tiny_config(runner='shard_map')
  config.parallel.num_workers = 1000
  jax.devices()  # in use: no more can be had
  with pytest.raises(errors.ConfigError, match='runner=simulate'):
    train.train_and_evaluate(config, tmp_path)
  config.parallel.devices_per_node = 3
  with pytest.raises(
    errors.ConfigError,
    match='num_workers 1000 of .*per_node 3 need 3000 devices',
  ):
    train.train_and_evaluate(config, tmp_path)


def test_the_log_is_one_step_late_and_complete(tmp_path):
  config = default.get_config()
  config.train.update(log_every=2, steps=5)
  log = records.RunLog(
    tmp_path / 'metrics.jsonl',
    config.train,
    resume_step=0,
    seconds_before=10.0,
    describe=lambda step, metrics: {'comm/ratio': step + metrics['a']},
    writers=writers.Writers({}, {}, tmp_path, 0),
  )
  for step in range(1, 6):
    measured = {'train/loss': 0.5, 'comm/rejected_steps_in_a_row': 0, 'a': 1}
    log.put(step, {name: np.float32(x) for name, x in measured.items()})
    if step == 3:
      log.add({'test/accuracy': 0.25})
    assert log.latest.get('step', 0) < step
  log.flush()
  log.close()
  lines = _lines(tmp_path)
  assert [line['step'] for line in lines] == [2, 3, 4, 5]
  assert lines[1]['test/accuracy'] == 0.25 and lines[2]['comm/ratio'] == 5
  assert lines[0]['time/seconds'] >= 10
