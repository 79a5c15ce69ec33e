"""The cluster's program: its flags, its messages, and what it leaves behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from experiments import cluster
from experiments.cluster import network
import pytest
from tests.experiments.cluster import leftovers

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def _start(*arguments: str) -> subprocess.Popen:
  """The command line in a process of its own; returns when hosts run."""
  program = subprocess.Popen(
    [sys.executable, '-m', 'experiments.cluster', *arguments],
    cwd=REPOSITORY,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert program.stdout.readline().startswith('host')
  return program


def _alive(marker: str) -> bool:
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
      if marker.encode() in path.read_bytes():
        return True
    except OSError:  # it has just ended
      continue
  return False


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cleans_up(namespaces, number):
  marker = f'echo ready; sleep 61.{os.getpid() + int(number)}'
  program = _start('--hosts=2', '--', 'sh', '-c', marker)
  assert leftovers.names(program.pid)
  program.send_signal(number)
  _, text = program.communicate(timeout=30)
  assert program.returncode == 128 + number
  assert 'cleaned up' in text
  assert not leftovers.names(program.pid)
  assert not _alive(marker)


def test_the_next_start_removes_what_a_killed_one_left(namespaces):
  marker = f'echo ready; sleep 62.{os.getpid()}'
  program = _start('--hosts=2', '--', 'sh', '-c', marker)
  program.kill()
  program.communicate()
  assert leftovers.names(program.pid)
  with network.Network(1, cluster.Shape()) as living:
    removed = cluster.remove_leftovers()
    assert os.path.exists(f'/run/netns/{living.hosts[0].namespace}')
  assert [name for name in removed if f'-{program.pid}-' in name]
  assert not leftovers.names(program.pid)
  deadline = time.monotonic() + 5
  while _alive(marker) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert not _alive(marker)


@pytest.fixture
def started(program):
  """Returns a function that runs the program."""
  return lambda *arguments, **variables: program(
    'cluster', *arguments, **variables
  )


def test_offers_loopback_where_not_permitted(tmp_path, started):
  for tool in ('ip', 'tc'):
    path = tmp_path / tool
    path.write_text('#!/bin/sh\necho Operation not permitted >&2\nexit 255\n')
    path.chmod(0o755)
  found = f'{tmp_path}:{os.environ["PATH"]}'
  done = started('--hosts=2', '--', 'true', PATH=found)
  assert done.returncode == 3
  assert 'Operation not permitted' in done.stderr
  assert '--loopback' in done.stderr
  done = started('--hosts=2', '--loopback', '--', 'true', PATH=found)
  assert done.returncode == 0 and 'without shaping' in done.stderr


def test_offers_loopback_without_iproute2(tmp_path, started):
  done = started('--', 'true', PATH=str(tmp_path))
  assert done.returncode == 3
  assert 'iproute2' in done.stderr and '--loopback' in done.stderr


def test_record_and_exit_statuses(tmp_path, started):
  path = tmp_path / 'new' / 'table.json'
  done = started(
    '--hosts=2', '--loopback', f'--json={path}', '--', 'echo', '--help'
  )
  assert done.returncode == 0 and 'host1 | Usage: echo' in done.stdout
  record = json.loads(path.read_text())
  assert record['statuses'] == [0, 0] and record['hosts'] == 2
  assert record['command'] == ['echo', '--help']
  done = started('--loopback', '--grace=0', '--', 'sh', '-c', 'exit 5')
  assert done.returncode == 1 and 'host0' in done.stderr
  done = started('--loopback', '--timeout=0.5', '--', 'sleep', '60')
  assert done.returncode == 124
  done = started('--loopback')
  assert done.returncode == 2 and '-- COMMAND... is missing' in done.stderr


@pytest.mark.parametrize(
  'argument',
  ['--rate=fast', '--rate=0mbit', '--delay=2', '--hosts=0', '--hosts=251'],
)
def test_refuses_what_makes_no_sense(argument, started):
  done = started(argument, '--', 'true')
  assert done.returncode == 2 and 'must be' in done.stderr
