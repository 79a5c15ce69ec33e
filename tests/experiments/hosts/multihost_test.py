"""Joining other processes, and what happens when one of them dies."""

import io
import pathlib
import sys
import time

from experiments import cluster
from experiments.cluster import environment
from experiments.hosts import multihost
from experiments.hosts import watch
from experiments.program import errors
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]

# Two processes that exchange numbers ten times a second. ACTION is what the
# process VICTIM does after the third.
_EXCHANGE = f"""
import os, signal, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
import jax
jax.config.update('jax_platforms', 'cpu')
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from experiments.hosts import multihost
from experiments.hosts import placement
from experiments.program import errors

with multihost.session(
    initialization_timeout=30, host_timeout=5, collective_timeout=20
) as (process, count):
  mesh = Mesh(np.asarray(jax.devices()), ('w',), axis_types=(AxisType.Auto,))
  total = jax.jit(jax.shard_map(
      lambda x: jax.lax.psum(x, 'w'), mesh=mesh, in_specs=P('w'), out_specs=P()
  ))
  mine = jax.make_array_from_process_local_data(
      NamedSharding(mesh, P('w')), np.ones((1, 8), np.float32)
  )
  counted = placement.total(np.asarray([2.0**40 + process, 0.5]))
  assert counted.tolist() == [2.0**41 + 1, 1.0], counted
  for step in range(STEPS):
    assert float(total(mine)[0, 0]) == count
    if process == 0:
      print('step', step, flush=True)
    if step == 2 and process == VICTIM:
      ACTION
    time.sleep(0.1)
print('process', process, 'is done', flush=True)
"""


def _run(tmp_path, *, victim=-1, action='pass', steps=600, grace=90.0):
  """(outcome, what was printed, seconds from the last step to the end)."""
  source = _EXCHANGE.replace('VICTIM', str(victim)).replace('ACTION', action)
  path = tmp_path / 'program.py'
  path.write_text(source.replace('STEPS', str(steps)))
  # The grace is longer than it may take: the others must end by themselves.
  output = _Timed()
  result = cluster.run(
    [sys.executable, str(path)],
    num_hosts=2,
    loopback=True,
    grace=grace,
    timeout=150,
    output=output,
  )
  return result.outcome, output.getvalue(), time.monotonic() - output.last


class _Timed(io.StringIO):
  """Notes when the last step is printed.

  Of the step in which a process dies the other may not come to print.
  """

  last = 0.0

  def write(self, text: str) -> int:
    if '| step ' in text:
      self.last = time.monotonic()
    return super().write(text)


@pytest.mark.slow
def test_two_processes_exchange(tmp_path):
  outcome, text, _ = _run(tmp_path, steps=3)
  assert outcome.statuses == (0, 0), text
  assert 'process 0 is done' in text and 'process 1 is done' in text


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_a_killed_process_ends_the_other(tmp_path, victim):
  outcome, text, seconds = _run(
    tmp_path, victim=victim, action='os.kill(os.getpid(), signal.SIGKILL)'
  )
  survivor = outcome.statuses[1 - victim]
  assert not outcome.timed_out and survivor not in (0, None), text
  # By the broken connection: Gloo's or, of the chief, the coordinator's.
  assert seconds < 30
  _assert_one_line_names(text, victim, 1 - victim)
  assert survivor == watch.EXIT_LOST


def _assert_one_line_names(text, victim, survivor):
  """The last line of a survivor names the lost process; no stack trace.

  But for one step: its thread may print that while the watch's ends the
  process.
  """
  said = f'host{survivor} | '
  lines = [line for line in text.splitlines() if said in line]
  if f'{said}step ' in lines[-1]:
    lines.pop()
  assert f'error: lost process {victim} of 2 (' in lines[-1], text
  assert 'Traceback' not in text and 'stack trace' not in text, text


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_other(tmp_path):
  outcome, text, seconds = _run(
    tmp_path,
    victim=1,
    # When the other has come out of the third step, and waits in the fourth.
    action='time.sleep(1); os.kill(os.getpid(), signal.SIGSTOP)',
    grace=1.0,
  )
  assert outcome.statuses[0] == watch.EXIT_LOST, text
  _assert_one_line_names(text, victim=1, survivor=0)
  assert 5 <= seconds < 30  # host_timeout, and the end of the one that hangs


@pytest.mark.slow
def test_an_exception_ends_both(tmp_path):
  outcome, text, seconds = _run(
    tmp_path, victim=1, action='raise ValueError("the disk is full")'
  )
  assert outcome.statuses[1] == 1 and outcome.statuses[0] != 0, text
  assert 'ValueError: the disk is full' in text
  assert 'process 1 of 2 ends with status 1' in text
  # JAX alone would wait for the other at exit, which waits for this one.
  assert seconds < 30


@pytest.mark.slow
def test_a_mistake_of_the_user_is_told_without_traceback(tmp_path):
  action = 'raise errors.UserError("no such file")'
  outcome, text, _ = _run(tmp_path, victim=0, action=action)
  assert outcome.statuses[0] == 1
  assert 'error: no such file' in text


@pytest.mark.slow
def test_a_stuck_process_ends_the_run(tmp_path):
  outcome, text, seconds = _run(
    tmp_path, victim=1, action='time.sleep(1000)', grace=5.0
  )
  assert outcome.statuses[0] != 0 and not outcome.timed_out, text
  assert 20 <= seconds < 60  # the timeout of a collective, and the grace


@pytest.mark.slow
def test_sigterm_ends_a_process(tmp_path):
  # JAX's preemption service would swallow it.
  action = 'os.kill(os.getpid(), signal.SIGTERM); time.sleep(1000)'
  outcome, _, _ = _run(tmp_path, victim=1, action=action)
  assert outcome.statuses[1] == -15


def test_place_from_arguments_or_environment():
  variables = environment.describe('10.77.0.1:47700', 4, 2, 'eth0')
  assert multihost.find_place(variables={}) is None
  found = multihost.find_place(variables=variables)
  assert found == multihost.Place('10.77.0.1:47700', 4, 2)
  assert str(found) == 'process 2 of 4'
  other = multihost.find_place('host:1', 2, 0, variables)
  assert other == multihost.Place('host:1', 2, 0)
  assert multihost.find_place(process_id=3, variables=variables).process_id == 3


@pytest.mark.parametrize(
  'arguments',
  [
    ('host:1', 2, None),
    (None, 2, 0),
    ('host:1', 2, 2),
    ('host:1', 2, -1),
    ('host', 2, 0),
    ('host:port', 2, 0),
    ('host:1', 'four', 0),
  ],
)
def test_refuses_half_a_place(arguments):
  with pytest.raises(errors.ConfigError, match='go together, got'):
    multihost.find_place(*arguments, variables={})


def test_the_users_own_xla_flag_stays(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_a=1')
  multihost._add_xla_flag('xla_b', 2)
  multihost._add_xla_flag('xla_b', 3)
  assert multihost.os.environ['XLA_FLAGS'] == '--xla_a=1 --xla_b=2'
