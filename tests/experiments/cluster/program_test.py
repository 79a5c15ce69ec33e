"""The cluster's program: its flags, its messages, and what it leaves behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from experiments import cluster
from experiments.cluster import network
import pytest
from tests import marks
from tests.bad_input import programs
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


@pytest.mark.slow
@pytest.mark.parametrize(
  'number', marks.few([signal.SIGINT, signal.SIGTERM], signal.SIGTERM)
)
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


@pytest.mark.slow
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


def test_what_is_left_stays_where_ip_is_missing(tmp_path, monkeypatch):
  left = tmp_path / 'netns' / f'{network.PREFIX}-{2**30}-1-1-host0'
  left.mkdir(parents=True)
  monkeypatch.setattr(network, '_NAMESPACES', left.parent)
  monkeypatch.setattr(network, '_CONFIGURATION', tmp_path / 'none')
  monkeypatch.setenv('PATH', str(tmp_path))
  assert not cluster.remove_leftovers()
  assert left.exists()


def test_offers_loopback_where_not_permitted(tmp_path, monkeypatch):
  for tool in ('ip', 'tc'):
    path = tmp_path / tool
    path.write_text('#!/bin/sh\necho Operation not permitted >&2\nexit 255\n')
    path.chmod(0o755)
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  status, said = programs.run('cluster', '--hosts=2', '--', 'true')
  assert status == 3
  assert 'Operation not permitted' in said
  assert '--loopback' in said
  status, said = programs.run(
    'cluster', '--hosts=2', '--loopback', '--', 'true'
  )
  assert status == 0 and 'without shaping' in said


def test_offers_loopback_without_iproute2(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  status, said = programs.run('cluster', '--', 'true')
  assert status == 3
  assert 'iproute2' in said and '--loopback' in said


def test_exit_statuses(program):
  done = program('cluster', '--hosts=2', '--loopback', '--', 'echo', '--help')
  assert done.returncode == 0 and 'host1 | Usage: echo' in done.stdout
  status, said = programs.run(
    'cluster', '--loopback', '--grace=0', '--', 'sh', '-c', 'exit 5'
  )
  assert status == 1 and 'host0' in said
  status, _ = programs.run(
    'cluster', '--loopback', '--timeout=0.5', '--', 'sleep', '60'
  )
  assert status == 124
  status, said = programs.run('cluster', '--loopback')
  assert status == 2 and '-- COMMAND... is missing' in said


@pytest.mark.parametrize(
  'argument',
  ['--rate=fast', '--rate=0mbit', '--delay=2', '--hosts=0', '--hosts=251'],
)
def test_refuses_what_makes_no_sense(argument):
  status, said = programs.run('cluster', argument, '--', 'true')
  assert status == 2 and 'must be' in said
