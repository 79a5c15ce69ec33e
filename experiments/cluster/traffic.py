"""Bytes that really crossed: the counters of the hosts' network interfaces.

The kernel counts whole frames, with the headers of Ethernet, IP and TCP, and
acknowledgements too. What leaves in one piece and is cut into packets later
(segmentation offload) is counted with one header, so that the headers on a
real cable, 66 bytes in 1,514, are not all in here.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib

from experiments.cluster import environment
from experiments.cluster import network
from experiments.program import tables


@dataclasses.dataclass(frozen=True)
class Count:
  """What an interface has sent and received.

  Attributes:
    tx_bytes: sent.
    rx_bytes: received.
    tx_packets: sent.
    rx_packets: received.
  """

  tx_bytes: int = 0
  rx_bytes: int = 0
  tx_packets: int = 0
  rx_packets: int = 0

  def __sub__(self, other: Count) -> Count:
    return Count(
      *(
        getattr(self, field.name) - getattr(other, field.name)
        for field in dataclasses.fields(self)
      )
    )


_STATISTICS = '/sys/class/net/{}/statistics'


def count_here(interface: str | None = None) -> Count | None:
  """Reads the counters from inside a host.

  Args:
    interface: name; that of the cluster's environment if None.

  Returns:
    None where the hosts have no interfaces of their own (loopback).
  """
  interface = interface or os.environ.get(environment.INTERFACE)
  if not interface:
    return None
  folder = pathlib.Path(_STATISTICS.format(interface))
  return Count(
    *(
      int((folder / field.name).read_text())
      for field in dataclasses.fields(Count)
    )
  )


def count(hosts: Sequence[network.Host]) -> list[Count]:
  """Reads the counters of all hosts from outside."""
  counts = []
  for host in hosts:
    text = network.run(
      f'ip -n {host.namespace} -s -j link show dev {network.INTERFACE}'
    )
    stats = json.loads(text)[0]['stats64']
    counts.append(
      Count(
        stats['tx']['bytes'],
        stats['rx']['bytes'],
        stats['tx']['packets'],
        stats['rx']['packets'],
      )
    )
  return counts


@dataclasses.dataclass(frozen=True)
class Traffic:
  """What crossed in a run.

  Attributes:
    hosts: of each host, from the first process's start to the last's end.
    idle: of each host, in the time before, when nothing ran.
    seconds: how long the run took.
    idle_seconds: how long nothing ran.
  """

  hosts: tuple[Count, ...]
  idle: tuple[Count, ...]
  seconds: float
  idle_seconds: float

  def idle_bytes(self, host: int) -> int:
    """Sent by a host in the time of the run, had it been idle."""
    if not self.idle_seconds:
      return 0
    return round(self.idle[host].tx_bytes * self.seconds / self.idle_seconds)

  def rows(self) -> list[dict[str, float | str]]:
    """Returns a record for each host."""
    return [
      {
        'host': f'host{number}',
        **dataclasses.asdict(sent),
        'idle_tx_bytes': self.idle_bytes(number),
        'seconds': round(self.seconds, 3),
      }
      for number, sent in enumerate(self.hosts)
    ]

  def __str__(self) -> str:
    counts = ('tx_bytes', 'rx_bytes', 'tx_packets', 'rx_packets')
    table = tables.make(
      ('host', 'sent B', 'received B', 'sent pkt', 'received pkt', 'idle B'),
      [
        (
          str(row['host']),
          *(f'{row[name]:,}' for name in (*counts, 'idle_tx_bytes')),
        )
        for row in self.rows()
      ],
    )
    return f'{tables.text(table)}\nin {self.seconds:.1f} s'
