"""Trains by `experiments.main` in two processes, of which one may die."""

import io
import json
import pathlib
import subprocess
import sys

from experiments import cluster
import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
STEPS = 8

# experiments.main, in which process VICTIM gets SIGNAL before its step STEP.
_PROGRAM = f"""
import os, runpy, signal, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
import jax
jax.config.update('jax_platforms', 'cpu')
from experiments.hosts import placement

plain, calls = placement.Placement.batch, []

def batch(self, rows):
  calls.append(1)
  if (jax.process_index(), len(calls)) == (VICTIM, STEP):
    time.sleep(2)  # until the checkpoint is written
    os.kill(os.getpid(), signal.SIGNAL)
    time.sleep(1)  # until the thread that listens has heard it
  return plain(self, rows)

placement.Placement.batch = batch
sys.argv[0] = 'main.py'
runpy.run_module('experiments.main', run_name='__main__', alter_sys=True)
"""

_FLAGS = (
  f'--config={REPOSITORY}/configs/default.py',
  '--config.model.name=mlp',
  f'--config.train.steps={STEPS}',
  '--config.train.log_every=2',
  '--config.train.eval_every=0',
  '--config.train.checkpoint_every=3',
  '--config.parallel.runner=shard_map',
  '--config.parallel.num_workers=2',
  '--config.compression.name=dgc',
  '--config.compression.density=0.01',
  '--config.compression.min_size=0',
)


def command(folder, workdir, *flags, victim=-1, step=0, signal='SIGKILL'):
  """What a process runs."""
  path = folder / f'program{victim}.py'
  source = _PROGRAM.replace('VICTIM', str(victim)).replace('STEP', str(step))
  path.write_text(source.replace('SIGNAL', signal))
  return [sys.executable, str(path), f'--workdir={workdir}', *_FLAGS, *flags]


def run(folder, workdir, *flags, **killed):
  """(outcome, text) of two processes."""
  output = io.StringIO()
  result = cluster.run(
    command(folder, workdir, '--multihost', *flags, **killed),
    num_hosts=2,
    loopback=True,
    grace=60.0,
    timeout=200,
    output=output,
  )
  return result.outcome, output.getvalue()


def _params(workdir):
  with np.load(workdir / 'params.npz') as archive:
    return dict(archive)


def run_alone(folder, workdir, *flags):
  """The run of one process with two devices."""
  done = subprocess.run(
    command(folder, workdir, *flags),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stdout


def assert_same_run(workdir, alone):
  """Parameters, losses and bytes are those of another run, to the bit."""
  expected, found = _params(alone), _params(workdir)
  assert expected.keys() == found.keys()
  for name in expected:
    np.testing.assert_array_equal(expected[name], found[name])
  lines = [
    list(map(json.loads, (d / 'metrics.jsonl').read_text().splitlines()))
    for d in (alone, workdir)
  ]
  for expected, found in zip(*lines, strict=True):
    for name in ('step', 'train/loss', 'comm/sent_bytes_total'):
      assert expected[name] == found[name]
