"""Faults of the network are what they say, and end with their block."""

import subprocess
import sys

from experiments import cluster
from experiments.cluster import network
import pytest
from tests.experiments.cluster import faults

_PACKETS = 200  # fit into the buffer of a socket
# Host 1 sends numbered packets to host 0, which echoes them; how many come
# back, and the shortest time that one took, in ms.
_ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('', 999))
print('ready', flush=True)
while True:
  server.sendto(*server.recvfrom(100))
"""
_ASK = f"""
import socket, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sent, times = {{}}, []
client.settimeout(0.3)
for _ in range(5):  # until the hosts know each other
  try:
    client.sendto(b'-1', ('10.77.0.1', 999))
    client.recv(100)
    break
  except OSError:
    pass
client.settimeout(1)
try:
  for number in range({_PACKETS}):
    sent[number] = time.monotonic()
    client.sendto(str(number).encode(), ('10.77.0.1', 999))
  while len(times) < {_PACKETS}:
    number = int(client.recv(100))
    if number >= 0:
      times.append(time.monotonic() - sent[number])
except OSError:
  pass
print(len(times), 1e3 * min(times, default=0))
"""


@pytest.fixture
def net(namespaces):
  with network.Network(2, cluster.Shape('unlimited')) as net:
    yield net


def _start(host, source):
  return subprocess.Popen(
    host.command([sys.executable, '-c', source]),
    stdout=subprocess.PIPE,
    text=True,
  )


def _ask(net):
  """(packets that came back, shortest time in ms)."""
  echo = _start(net.hosts[0], _ECHO)
  try:
    assert echo.stdout.readline() == 'ready\n'
    said, _ = _start(net.hosts[1], _ASK).communicate(timeout=60)
  finally:
    echo.kill()
    echo.communicate()
  count, fastest = said.split()
  return int(count), float(fastest)


@pytest.mark.slow
def test_packets_are_lost_until_the_block_ends(net):
  with faults.loss(net, 20):
    count, _ = _ask(net)
  # There and back: 64 % come through, and six deviations around it.
  assert 0.42 * _PACKETS < count < 0.85 * _PACKETS
  with faults.loss(net, 0):
    assert _ask(net)[0] == _PACKETS
  assert _ask(net)[0] == _PACKETS


@pytest.mark.slow
def test_an_unplugged_host_hears_nothing(net):
  with faults.unplugged(net, net.hosts[1]):
    assert _ask(net)[0] == 0
  assert _ask(net)[0] == _PACKETS


def test_long_wires_take_their_time(net):
  with faults.delay(net, 25, 5):
    count, fastest = _ask(net)
  assert count == _PACKETS  # all of them, late
  assert 80 <= fastest < 500


def test_a_wire_that_cannot_be_is_told(net, monkeypatch, tmp_path):
  wire = tmp_path / 'wire.py'
  wire.write_text('raise OSError("no such device")')
  monkeypatch.setattr(faults, '_WIRE', wire)
  with pytest.raises(network.NotPermittedError, match='no such device'):
    with faults.delay(net, 25, 5):
      pass
