"""What clusters leave on a machine while they run."""

import os
import pathlib

from experiments.cluster import network


def names(pid: int) -> list[str]:
  """What there is of the clusters of a process."""
  return [
    path.name
    for folder in ('/run/netns', '/etc/netns')
    if os.path.isdir(folder)
    for path in pathlib.Path(folder).iterdir()
    if path.name.startswith(f'{network.PREFIX}-{pid}-')
  ]
