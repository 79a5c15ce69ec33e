"""Bytes that really crossed: the counters of the hosts' network interfaces.

The kernel counts whole frames, with the headers of Ethernet, IP and TCP, and
acknowledgements too. What leaves in one piece and is cut into packets later
(segmentation offload) is counted with one header, so that the headers on a
real cable, 66 bytes in 1,514, are not all in here.
"""

from collections.abc import Sequence
import json
import os
import pathlib

from experiments.cluster import environment
from experiments.cluster import network
import pandas as pd


def sent_here() -> int | None:
  """Returns the bytes that this host has sent since it is there.

  None where the hosts have no interfaces of their own (loopback).
  """
  interface = os.environ.get(environment.INTERFACE)
  if not interface:
    return None
  folder = pathlib.Path(f'/sys/class/net/{interface}/statistics')
  return int((folder / 'tx_bytes').read_text())


def count(hosts: Sequence[network.Host]) -> pd.DataFrame:
  """Reads the counters of all hosts from outside; a row a host."""
  counts = {}
  for host in hosts:
    text = network.run(
      f'ip -n {host.namespace} -s -j link show dev {network.INTERFACE}'
    )
    stats = json.loads(text)[0]['stats64']
    counts[host.name] = {
      f'{way}_{unit}': stats[way][unit]
      for unit in ('bytes', 'packets')
      for way in ('tx', 'rx')
    }
  return pd.DataFrame(counts).T


def crossed(
  quiet: pd.DataFrame,
  before: pd.DataFrame,
  after: pd.DataFrame,
  idle_seconds: float,
  seconds: float,
) -> pd.DataFrame:
  """Returns what crossed in a run, a row a host.

  Args:
    quiet: counters so many `idle_seconds` before the run, in which nothing ran.
    before: counters at its start.
    after: counters at its end.
    idle_seconds: see `quiet`.
    seconds: how long the run took.

  Returns:
    `count`'s columns, with `idle_tx_bytes`, what a host would have sent in the
    time of the run, had it been idle, and `seconds`.
  """
  idle = (before - quiet)['tx_bytes'] * seconds / idle_seconds
  return (after - before).assign(
    idle_tx_bytes=idle.round().astype(int), seconds=round(seconds, 3)
  )
