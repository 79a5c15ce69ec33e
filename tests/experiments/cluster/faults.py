"""What can go wrong in a network, for the time of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import pathlib
import subprocess
import sys

from experiments.cluster import network

_WIRE = pathlib.Path(__file__).with_name('wire.py')

# A classic BPF program for tc: a random number below {0} drops the packet.
_DROP = '4,32 0 0 4294963256,53 1 0 {0},6 0 0 2,6 0 0 0'


@contextlib.contextmanager
def unplugged(net: network.Network, host: network.Host) -> Iterator[None]:
  """The cable of a host is out."""
  port = f'ip -n {net.switch} link set {network.port_of(host)}'
  network.run(f'{port} down')
  try:
    yield
  finally:
    network.run(f'{port} up')


@contextlib.contextmanager
def loss(net: network.Network, percent: float) -> Iterator[None]:
  """What any host sends is lost by chance before it reaches the switch.

  Dropped is what the kernel hands over at once. That is a packet, or several of
  one connection in one piece (segmentation offload).
  """
  program = _DROP.format(round(percent / 100 * (2**32 - 1)))
  ports = [network.port_of(host) for host in net.hosts]
  try:
    for port in ports:
      network.run(f'tc -n {net.switch} qdisc add dev {port} clsact')
      # One word: the program has blanks in it.
      words = (
        f'tc -n {net.switch} filter add dev {port} ingress bpf da bytecode'
      )
      subprocess.run([*words.split(), program], check=True, capture_output=True)
    yield
  finally:
    for port in ports:
      with contextlib.suppress(subprocess.CalledProcessError):
        network.run(f'tc -n {net.switch} qdisc del dev {port} clsact')


@contextlib.contextmanager
def delay(
  net: network.Network, milliseconds: float, jitter: float
) -> Iterator[None]:
  """What a host sends or receives is late, on long wires; rates are not kept.

  Before anything runs on the hosts: each gets another interface.

  Args:
    net: whose hosts.
    milliseconds: on the wire of each host, so half of the way between two.
    jitter: by which it is more or less, at most.
  """
  wires: list[subprocess.Popen] = []
  try:
    for host in net.hosts:
      wires.append(_lengthen(net, host, milliseconds, jitter))
    yield
  finally:
    for wire in wires:
      wire.kill()
      wire.communicate()


def _lengthen(
  net: network.Network, host: network.Host, milliseconds: float, jitter: float
) -> subprocess.Popen:
  """Replaces the wire of a host by one that takes its time."""
  port, far = network.port_of(host), f'far{host.number}'
  network.run(f'ip -n {host.namespace} link delete {network.INTERFACE}')
  command = [sys.executable, str(_WIRE), port, far, milliseconds, jitter]
  wire = subprocess.Popen(
    ['ip', 'netns', 'exec', net.switch, *map(str, command)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert wire.stdout is not None
  if wire.stdout.readline() != 'ready\n':
    _, said = wire.communicate()
    raise network.NotPermittedError(
      f'cannot make network interfaces (TAP): {said.strip().splitlines()[-1]}'
    )
  network.run(
    f'ip -n {net.switch} link set {far} netns {host.namespace} '
    f'name {network.INTERFACE}'
  )
  net.plug(host)
  return wire
