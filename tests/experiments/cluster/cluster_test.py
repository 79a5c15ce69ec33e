"""The cluster on one machine: hosts, links, bytes, and how it all ends."""

import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

from experiments import cluster
from experiments.cluster import environment
from experiments.cluster import network
from experiments.cluster import traffic
from experiments.program import errors
import pytest
from tests.experiments.cluster import leftovers

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def _python(tmp_path: pathlib.Path, source: str) -> list[str]:
  path = tmp_path / 'program.py'
  path.write_text(source)
  return [sys.executable, str(path)]


def _run(command, **options):
  """(result, lines that the processes printed, seconds)."""
  output, start = io.StringIO(), time.monotonic()
  result = cluster.run(command, output=output, **options)
  lines = output.getvalue().splitlines()
  return result, lines, time.monotonic() - start


_SEND = f"""
import os, socket, time
number = int(os.environ['{environment.PROCESS_ID}'])
address = os.environ['{environment.COORDINATOR}'].split(':')[0]
if number == 0:
  server = socket.create_server((address, 1234))
  connection, _ = server.accept()
  got = 0
  while part := connection.recv(1 << 20):
    got += len(part)
  print('got', got)
elif number == 1:
  for _ in range(100):
    try:
      connection = socket.create_connection((address, 1234))
      break
    except OSError:
      time.sleep(0.05)
  start = time.monotonic()
  connection.sendall(bytes(NUMBER))
  connection.shutdown(socket.SHUT_WR)
  connection.recv(1)  # ends when the other side has read all
  print('seconds', time.monotonic() - start)
"""


@pytest.mark.slow
def test_counts_what_crosses(namespaces, tmp_path):
  command = _python(tmp_path, _SEND.replace('NUMBER', '1_000_000'))
  result, lines, _ = _run(command, num_hosts=3, timeout=60)
  assert result.outcome.statuses == (0, 0, 0)
  assert 'host0 | got 1000000' in lines
  receiver, sender, idle = result.traffic.itertuples()
  assert 1_000_000 < sender.tx_bytes < 1_060_000
  # An address lookup of the third host may pass by.
  assert 0 <= receiver.rx_bytes - sender.tx_bytes < 1000
  assert receiver.tx_bytes < 60_000  # acknowledgements
  assert idle.tx_bytes < 1_000
  assert sender.Index == 'host1' and sender.idle_tx_bytes < 1_000
  assert not leftovers.names(os.getpid())


@pytest.mark.slow
def test_links_are_slow(namespaces, tmp_path):
  command = _python(tmp_path, _SEND.replace('NUMBER', '2_500_000'))
  shape = cluster.Shape('100mbit')
  _, lines, _ = _run(command, num_hosts=2, shape=shape, timeout=60)
  (line,) = [line for line in lines if 'seconds' in line]
  # 0.2 s at 100 Mbit/s; the burst passes at once, at either end.
  assert float(line.split()[-1]) > 0.17


def test_delay_works_or_is_refused(namespaces, tmp_path):
  command = _python(tmp_path, _SEND.replace('NUMBER', '10'))
  shape = cluster.Shape('1gbit', '50ms')
  try:
    _, lines, _ = _run(command, num_hosts=2, shape=shape, timeout=60)
  except errors.ConfigError as error:
    assert 'leave --delay out' in str(error)
    return
  (line,) = [line for line in lines if 'seconds' in line]
  assert float(line.split()[-1]) >= 0.1


@pytest.mark.slow
def test_a_host_knows_its_own_address(namespaces):
  command = ['sh', '-c', 'getent hosts $(hostname) && cat /etc/hosts']
  _, lines, _ = _run(command, num_hosts=2)
  name = socket.gethostname()
  assert f'host0 | 10.77.0.1 {name}' in lines
  assert f'host1 | 10.77.0.2 {name}' in lines
  assert 'host1 | 10.77.0.1 host0' in lines


def test_counters_are_read_inside_a_host(namespaces, tmp_path):
  source = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from experiments.cluster import traffic
print(traffic.sent_here())
"""
  _, lines, _ = _run(_python(tmp_path, source), num_hosts=1)
  assert int(lines[0].removeprefix('host0 | ')) >= 0


@pytest.mark.slow
@pytest.mark.parametrize('loopback', [True, False])
def test_every_process_knows_its_place(loopback, request):
  if not loopback:
    request.getfixturevalue('namespaces')
  result, lines, _ = _run(['env'], num_hosts=2, loopback=loopback)
  assert (result.traffic is None) == loopback
  for number in range(2):
    head = f'host{number} | '
    seen = [line[len(head) :] for line in lines if line.startswith(head)]
    assert f'{environment.PROCESS_ID}={number}' in seen
    assert f'{environment.NUM_PROCESSES}=2' in seen
    assert any(x.startswith(f'{environment.COORDINATOR}=') for x in seen)
    assert (f'{environment.INTERFACE}=eth0' in seen) == (not loopback)


def test_no_counters_on_loopback(monkeypatch):
  monkeypatch.delenv(environment.INTERFACE, raising=False)
  assert traffic.sent_here() is None


def _on(number: int, action: str, otherwise: str) -> list[str]:
  script = f'if [ ${environment.PROCESS_ID} = {number} ]; then {action}; fi; '
  return ['sh', '-c', script + otherwise]


def test_one_failure_ends_all():
  command = _on(1, 'exit 7', 'sleep 60')
  result, _, seconds = _run(command, num_hosts=3, loopback=True, grace=0.5)
  assert result.outcome.first_failed == 1
  assert result.outcome.statuses == (-signal.SIGTERM, 7, -signal.SIGTERM)
  assert 'host1' in str(result.outcome) and 'status 7' in str(result.outcome)
  assert seconds < 5


def test_the_others_may_finish_first():
  command = _on(1, 'exit 7', 'sleep 0.5; echo done')
  result, lines, _ = _run(command, num_hosts=2, loopback=True, grace=30)
  assert result.outcome.statuses == (0, 7)
  assert 'host0 | done' in lines


@pytest.mark.slow
def test_a_process_that_ignores_sigterm_is_killed():
  # As JAX's preemption service makes every process do.
  command = _on(1, 'exit 7', 'trap "" TERM; sleep 60 & wait; sleep 60')
  result, _, seconds = _run(command, num_hosts=2, loopback=True, grace=0.5)
  assert result.outcome.statuses == (-signal.SIGKILL, 7)
  assert seconds < 10


def test_a_killed_process_is_named():
  command = _on(0, 'kill -9 $$', 'true')
  result, _, _ = _run(command, num_hosts=2, loopback=True)
  assert result.outcome.first_failed == 0
  assert 'host0' in str(result.outcome) and 'SIGKILL' in str(result.outcome)


def test_a_signal_between_two_threads_is_told(monkeypatch):
  starts, real = [], threading.Thread.start

  def start(thread):
    starts.append(thread)
    if len(starts) == 2:  # each host has one
      raise errors.StoppedError('stopped', signal.SIGTERM)
    real(thread)

  monkeypatch.setattr(threading.Thread, 'start', start)
  with pytest.raises(errors.StoppedError):
    _run(['sleep', '60'], num_hosts=2, loopback=True)


def test_an_error_in_between_cleans_up(namespaces):
  with pytest.raises(ZeroDivisionError):
    with network.Network(2, cluster.Shape()):
      raise ZeroDivisionError
  assert not leftovers.names(os.getpid())


def test_a_half_made_network_is_removed(namespaces, monkeypatch):
  real = network.run

  def fails_late(command):
    if 'port1' in command and 'master' in command:
      raise subprocess.CalledProcessError(1, command.split(), stderr='no')
    return real(command)

  monkeypatch.setattr(network, 'run', fails_late)
  with pytest.raises(cluster.NotPermittedError):
    with network.Network(2, cluster.Shape()):
      pass
  assert not leftovers.names(os.getpid())


@pytest.mark.parametrize(
  'rate, bits, burst',
  [
    ('1gbit', 1e9, 256 * 1024),
    ('10gbit', 1e10, 10 * 256 * 1024),
    ('100mbit', 1e8, 26214),
    ('1.5mbit', 1.5e6, 16 * 1024),
    ('800bit', 800, 16 * 1024),
  ],
)
def test_rates(rate, bits, burst):
  assert network.bits_per_second(rate) == bits
  assert cluster.Shape(rate).burst == burst
