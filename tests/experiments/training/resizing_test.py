"""A run goes on with other workers, where it is told to, and says what it does.

The number of processes that a run has is that of its workers' homes: three of
one worker each go on as two.
"""

import io
import json
import logging
import pathlib
import sys

from experiments import cluster
from experiments import models
from experiments.hosts.placement import make_placement
from experiments.program import errors
from experiments.run import checkpoints
from experiments.training import experiment
from experiments.training import resuming
from experiments.training import train
from gradsparse.state import inspection
import jax
import numpy as np
import pytest
from tests.experiments.training.normalised import Normalised

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
DGC = {'density': 0.01}
STEP = 3


@pytest.fixture
def config_of(tiny_config):
  def make(scheme, num_workers, *, resize=True, **fields):
    config = tiny_config(scheme, **fields)
    config.train.checkpoint_every = STEP
    config.parallel.num_workers = num_workers
    config.parallel.resize = resize
    return config

  return make


def built(config):
  parallel = config.parallel
  placement = make_placement(
    parallel.runner, parallel.num_workers, parallel.devices_per_node
  )
  made = experiment.Experiment(config, placement)
  return made, made.init_state()


def numbered(state):
  """The same state with numbers in it, where it is still zero."""
  rng = np.random.default_rng(0)

  def draw(x):
    if not np.issubdtype(x.dtype, np.floating):
      return x
    drawn = np.asarray(rng.normal(size=x.shape), x.dtype)
    return jax.device_put(drawn, x.sharding)

  return jax.tree.map(draw, state)


def saved(config, folder):
  """A checkpoint of a run that never was."""
  made, state = built(config)
  state = numbered(state)
  saver = checkpoints.Checkpoints(folder, 1, made.placement)
  saver.prepare(0)
  about = {
    'config': config.to_dict(),
    'position': made.sampler.position(STEP)._asdict(),
  }
  saver.save(STEP, state, about)
  saver.close()
  return jax.device_get(state)


def restored(config, folder):
  made, state = built(config)
  saver = checkpoints.Checkpoints(folder, 1, made.placement)
  try:
    return resuming.restore(made, state, saver, saver.find()), state
  finally:
    saver.close()


def mean(tree):
  return jax.tree.map(lambda x: np.mean(np.float64(x), axis=0), tree)


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  'old, new, runner',
  [
    (4, 2, 'shard_map'),
    pytest.param(1, 8, 'simulate', marks=pytest.mark.slow),
    pytest.param(4, 6, 'pmap', marks=pytest.mark.slow),
  ],
)
def test_what_is_pending_goes_to_other_workers(
  old, new, runner, config_of, tmp_path
):
  before = saved(config_of('dgc', old, runner=runner, **DGC), tmp_path)
  after, like = restored(config_of('dgc', new, runner=runner, **DGC), tmp_path)
  for name in ('momentum', 'velocity'):
    found, wanted = (
      mean(getattr(inspection.find(s.opt_state).memory, name))
      for s in (after, before)
    )
    jax.tree.map(close, found, wanted)
  jax.tree.map(np.testing.assert_array_equal, after.params, before.params)

  def same_place(x, y):
    assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)

  jax.tree.map(same_place, after, like)


@pytest.mark.slow
def test_parameters_that_differ_become_their_mean(config_of, tmp_path):
  def config(num_workers):
    made = config_of('gradient_dropping', num_workers, density=0.01)
    made.compression.local_gradient = 'sum'
    return made

  before = saved(config(3), tmp_path)
  after, _ = restored(config(2), tmp_path)

  def check(new, old):
    close(new, np.stack([np.mean(np.float64(old), axis=0)] * 2))

  jax.tree.map(check, after.params, before.params)


@pytest.mark.slow
@pytest.mark.parametrize('inner, new_inner', [(1, 1), (2, 1)])
def test_all_workers_go_on_with_the_mean_of_the_running_averages(
  inner, new_inner, config_of, tmp_path, monkeypatch
):
  monkeypatch.setattr(
    models, 'create', lambda name, classes, kind: Normalised(classes)
  )

  def config(num_workers, inner_workers):
    made = config_of('dense', num_workers)
    made.parallel.devices_per_node = inner_workers
    return made

  before = saved(config(3, inner), tmp_path).statistics
  after = restored(config(2, new_inner), tmp_path)[0].statistics

  def check(new, old):
    old = old.reshape(3 * inner, *new.shape[1:])
    close(new, np.stack([np.mean(np.float64(old), axis=0)] * 2))

  assert jax.tree.leaves(after)
  jax.tree.map(check, after, before)


def test_what_cannot_be_carried_over_is_said(config_of, tmp_path, caplog):
  scatter = dict(levels=7, exchange='reduce_scatter')
  saved(config_of('qsgd', 4, **scatter), tmp_path)
  with caplog.at_level(logging.WARNING):
    restored(config_of('qsgd', 2, **scatter), tmp_path)
  assert 'of workers: the rounding error of the last mean' in caplog.text
  assert '2 workers go on where 4 were' in caplog.text


@pytest.mark.slow
def test_a_run_goes_on_with_other_workers(config_of, tmp_path, caplog):
  def config(num_workers, steps, **fields):
    return config_of('dgc', num_workers, steps=steps, **DGC, **fields)

  train.train_and_evaluate(config(4, STEP), tmp_path)
  with pytest.raises(
    errors.ResumeError,
    match='num_workers: was 4, now 2.*parallel.resize=True lets '
    'parallel.num_workers change',
  ):
    train.train_and_evaluate(config(2, 6, resize=False), tmp_path)

  class Killed(Exception):
    pass

  def kill(step, steps, line):
    raise Killed

  with pytest.raises(Killed):
    train.train_and_evaluate(config(2, 6), tmp_path, progress=kill)
  # The fields that count are those of the checkpoint, not of the last try.
  with pytest.raises(errors.ResumeError, match='num_workers: was 4, now 2'):
    train.train_and_evaluate(config(2, 6, resize=False), tmp_path)
  with caplog.at_level(logging.WARNING):
    summary = train.train_and_evaluate(config(2, 6), tmp_path)
  assert '2 workers go on where 4 were' in caplog.text
  assert 'not carried' not in caplog.text
  assert summary['num_workers'] == 2 and summary['steps'] == 6
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  steps = [json.loads(line)['step'] for line in lines]
  assert steps == sorted(set(steps)) and steps[-1] == 6
  # From here on it is a run of two, whether the flag is there or not.
  caplog.clear()
  train.train_and_evaluate(config(2, 6, resize=False), tmp_path)
  assert 'workers go on' not in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('old, new', [(3, 2), (1, 2)])
def test_other_numbers_of_processes(old, new, tmp_path):
  def run(processes, *flags):
    output = io.StringIO()
    result = cluster.run(
      [
        sys.executable,
        '-m',
        'experiments.main',
        f'--config={REPOSITORY}/configs/default.py',
        f'--workdir={tmp_path / "run"}',
        '--multihost',
        '--config.model.name=mlp',
        '--config.train.eval_every=0',
        f'--config.train.checkpoint_every={STEP}',
        '--config.parallel.runner=shard_map',
        f'--config.parallel.num_workers={processes}',
        '--config.compression.name=dgc',
        '--config.compression.density=0.01',
        *flags,
      ],
      num_hosts=processes,
      loopback=True,
      grace=60.0,
      timeout=250,
      output=output,
    )
    return result.outcome.statuses, output.getvalue()

  statuses, text = run(old, f'--config.train.steps={STEP}')
  assert statuses == (0,) * old, text
  statuses, text = run(
    new, '--config.train.steps=6', '--config.parallel.resize=True'
  )
  assert statuses == (0,) * new, text
  assert f'{new} workers go on where {old} were' in text
