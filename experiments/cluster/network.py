"""Hosts of one machine: network namespaces behind a bridge, shaped.

  host 0 ns   eth0 --veth-- port0 \
  host 1 ns   eth0 --veth-- port1  > br0     all in the namespace "switch"
  host 2 ns   eth0 --veth-- port2 /

Both ends of each veth pair are shaped: `eth0` limits what a host sends,
`portN` what it receives. The bridge has a namespace of its own because one in
the root namespace is subject to the machine's own packet filter. Nothing is
created in the root namespace, so nothing can collide there.

Gloo listens on the address that the machine's *hostname* resolves to; each
namespace gets an /etc/hosts that maps it to its own address (`ip netns exec`
mounts /etc/netns/NAME/hosts over it).

Names are `gradsparse-PID-START-NUMBER-...`, with the process that owns them
and its start time: whatever belongs to a process that is no longer there is a
leftover, and the next start removes it.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

from experiments.program import errors

PREFIX = 'gradsparse'
INTERFACE = 'eth0'
MAX_HOSTS = 250

_NAMESPACES = pathlib.Path('/run/netns')
_CONFIGURATION = pathlib.Path('/etc/netns')
_NAME = re.compile(rf'{PREFIX}-(\d+)-(\d+)-\d+-(?:switch|host\d+)$')
_RATE = re.compile(r'(\d+(?:\.\d+)?)([kmgt]?)bit$')
_DELAY = re.compile(r'\d+(\.\d+)?(us|ms|s)$')
_numbers = itertools.count()

# Bytes that may pass at once at 1 Gbit/s; in proportion at other rates, so
# that small messages are slowed down too, but never below a few packets.
_BURST_AT_1GBIT = 256 * 1024
_LEAST_BURST = 16 * 1024


class NotPermittedError(errors.UserError):
  """This machine or user cannot have network namespaces."""

  exit_status = 3


def bits_per_second(rate: str) -> float:
  """The number that a rate such as '100mbit' says.

  Raises:
    ConfigError: it is none.
  """
  match = _RATE.match(rate)
  if not match or not float(match[1]):
    raise errors.ConfigError(
      "the rate must be like '1gbit' or '100mbit', or 'unlimited'; got "
      f'{rate!r}'
    )
  power = ('', 'k', 'm', 'g', 't').index(match[2])
  return float(match[1]) * 1000**power


@dataclasses.dataclass(frozen=True)
class Shape:
  """How a link behaves.

  Attributes:
    rate: such as '1gbit' or '100mbit'; 'unlimited' for what the kernel gives.
    delay: of a packet from host to host, such as '1ms'; None for none.
  """

  rate: str = '1gbit'
  delay: str | None = None

  def __post_init__(self):
    if self.rate != 'unlimited':
      bits_per_second(self.rate)
    if self.delay is not None and not _DELAY.match(self.delay):
      raise errors.ConfigError(
        f"the delay must be like '1ms' or '200us', got {self.delay!r}"
      )

  @property
  def burst(self) -> int:
    """Bytes that pass without waiting."""
    share = bits_per_second(self.rate) / 1e9
    return max(_LEAST_BURST, round(_BURST_AT_1GBIT * share))

  def commands(self, namespace: str, device: str, *, host: bool) -> list[str]:
    """Returns the tc commands that shape one end of a link."""
    out, parent = [], 'root'
    if self.rate != 'unlimited':
      out.append(
        f'tc -n {namespace} qdisc add dev {device} root handle 1: tbf '
        f'rate {self.rate} burst {self.burst} latency 100ms'
      )
      parent = 'parent 1:1'
    if self.delay is not None and host:  # once on the way
      out.append(
        f'tc -n {namespace} qdisc add dev {device} {parent} handle 10: netem '
        f'delay {self.delay} limit 100000'
      )
    return out


@dataclasses.dataclass(frozen=True)
class Host:
  """One host.

  Attributes:
    number: from 0.
    address: its own, IPv4.
    namespace: name of its network namespace, or None on loopback.
  """

  number: int
  address: str
  namespace: str | None

  @property
  def name(self) -> str:
    return f'host{self.number}'

  def command(self, command: list[str]) -> list[str]:
    """Returns the command that runs `command` on this host."""
    if self.namespace is None:
      return command
    return ['ip', 'netns', 'exec', self.namespace, *command]


class Network(contextlib.AbstractContextManager):
  """Hosts for the time of a `with` block.

  Args:
    num_hosts: how many, 1 to 250.
    shape: of every link.

  Raises:
    ConfigError: too many hosts, or a delay on a kernel without netem.
    NotPermittedError: namespaces are not to be had; says why.
  """

  def __init__(self, num_hosts: int, shape: Shape):
    if not 1 <= num_hosts <= MAX_HOSTS:
      raise errors.ConfigError(
        f'the number of hosts must be in 1..{MAX_HOSTS}, got {num_hosts}'
      )
    self._shape = shape
    owner = f'{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}'
    self.switch = f'{owner}-switch'
    self.hosts = [
      Host(i, f'10.77.0.{i + 1}', f'{owner}-host{i}') for i in range(num_hosts)
    ]

  def __enter__(self) -> 'Network':
    for tool in ('ip', 'tc'):
      if shutil.which(tool) is None:
        raise NotPermittedError(
          f'no network namespaces: the command {tool!r} (package iproute2) is '
          'missing'
        )
    try:
      self._create()
    except subprocess.CalledProcessError as error:
      self.remove()
      failed = f'`{" ".join(error.cmd)}` failed: {error.stderr.strip()}'
      if 'netem' in error.cmd:
        raise errors.ConfigError(
          f'this kernel cannot delay packets, leave --delay out: {failed}'
        ) from error
      raise NotPermittedError(f'no network namespaces: {failed}') from error
    except BaseException:
      self.remove()
      raise
    return self

  def __exit__(self, *exception) -> None:
    self.remove()

  def remove(self) -> None:
    """Removes whatever there is of it; may be called again."""
    for name in (*(str(host.namespace) for host in self.hosts), self.switch):
      _remove(name)

  def _create(self) -> None:
    run(f'ip netns add {self.switch}')
    run(f'ip -n {self.switch} link add br0 type bridge')
    run(f'ip -n {self.switch} link set br0 addrgenmode none up')
    for host in self.hosts:
      port = port_of(host)
      run(f'ip netns add {host.namespace}')
      self._write_hosts(host)
      run(
        f'ip link add {INTERFACE} netns {host.namespace} type veth '
        f'peer name {port} netns {self.switch}'
      )
      for namespace, device in (
        (str(host.namespace), INTERFACE),
        (self.switch, port),
      ):
        # No IPv6 address: its neighbour discovery would be idle traffic.
        run(f'ip -n {namespace} link set {device} addrgenmode none')
        for command in self._shape.commands(
          namespace, device, host=device == INTERFACE
        ):
          run(command)
      run(f'ip -n {host.namespace} link set lo up')
      self.plug(host)

  def plug(self, host: Host) -> None:
    """Takes both ends of a host's link into use."""
    run(f'ip -n {self.switch} link set {port_of(host)} master br0 up')
    run(f'ip -n {host.namespace} addr add {host.address}/24 dev {INTERFACE}')
    run(f'ip -n {host.namespace} link set {INTERFACE} up')

  def _write_hosts(self, host: Host) -> None:
    folder = _CONFIGURATION / str(host.namespace)
    folder.mkdir(parents=True)
    lines = ['127.0.0.1 localhost', f'{host.address} {socket.gethostname()}']
    lines += [f'{other.address} {other.name}' for other in self.hosts]
    (folder / 'hosts').write_text('\n'.join(lines) + '\n')


def port_of(host: Host) -> str:
  """Returns the name of the switch's end of a host's link."""
  return f'port{host.number}'


def run(command: str, *words: str) -> str:
  """Runs a command of iproute2 and returns what it prints.

  Args:
    command: its words, with blanks between them.
    *words: those after them; may have blanks in them.

  Raises:
    subprocess.CalledProcessError: it failed.
  """
  words = (*command.split(), *words)
  how = {'check': True, 'capture_output': True, 'text': True, 'timeout': 60}
  return subprocess.run(words, **how).stdout


def remove_leftovers() -> list[str]:
  """Removes the namespaces of clusters whose owner is no longer there.

  Without the command `ip` nothing can be removed, and nothing is.

  Returns:
    Their names.
  """
  if shutil.which('ip') is None:
    return []
  names = set()
  for folder in (_NAMESPACES, _CONFIGURATION):
    if folder.is_dir():
      names |= {path.name for path in folder.iterdir()}
  removed = []
  for name in sorted(names):
    match = _NAME.match(name)
    if match and _started(int(match[1])) != int(match[2]):
      _remove(name)
      removed.append(name)
  return removed


def _started(pid: int) -> int | None:
  """When a process was started, in clock ticks since boot; None: no such.

  Together with its number it names a process for good: numbers are used anew.
  """
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return None
  state, *fields = text.rpartition(')')[2].split()
  return None if state in 'ZX' else int(fields[18])


def _remove(name: str) -> None:
  """Removes one namespace, the processes in it and its /etc/netns folder."""
  if (_NAMESPACES / name).exists():
    found = subprocess.run(
      ['ip', 'netns', 'pids', name], capture_output=True, text=True
    )
    for pid in found.stdout.split():
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)
    subprocess.run(['ip', 'netns', 'delete', name], capture_output=True)
  if (_CONFIGURATION / name).is_dir():
    shutil.rmtree(_CONFIGURATION / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # others are using it
      _CONFIGURATION.rmdir()
