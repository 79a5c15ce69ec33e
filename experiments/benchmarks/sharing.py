"""Programs that process 0 compiles and the others load.

All hosts of a rehearsal share a few cores and a file system: one that compiles
for all is P times faster than P that compile the same. (JAX's own
`jax_share_binary_between_hosts` waits for ever on CPUs of version 0.10: each
process looks for another key.)

A compiled program is a pickle, of JAX's making, and who loads a pickle does
what it says. So the folder has to be one that only the benchmark's own
processes can write to, such as `tempfile` makes.
"""

from __future__ import annotations

from collections.abc import Callable
import itertools
import pathlib
import pickle
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.experimental import serialize_executable


class Programs:
  """Compiles for all processes.

  Every process makes the same calls in the same order. What is in the folder
  already, of an earlier run that made the same calls, is taken from there.

  Args:
    folder: that all processes see, and nobody else writes to.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._numbers = itertools.count()

  def compile(self, jitted: Any, *arguments: Any) -> Any:
    """Returns `jitted.lower(*arguments).compile()`, traced by process 0."""
    made = []

    def make() -> Any:
      made.append(jitted.lower(*arguments).compile())
      return serialize_executable.serialize(made[0])

    payload, in_tree, out_tree = self.share(make)
    if made:
      return made[0]
    return serialize_executable.deserialize_and_load(
      payload, in_tree, out_tree, execution_devices=jax.devices()
    )

  def share(self, make: Callable[[], Any]) -> Any:
    """Returns what `make` gives on process 0; must be picklable."""
    path = self._folder / f'shared-{next(self._numbers)}'
    value = None
    if not jax.process_index() and not path.exists():
      value = make()
      path.write_bytes(pickle.dumps(value))
    multihost_utils.sync_global_devices(path.name)
    if value is None:
      value = pickle.loads(path.read_bytes())  # noqa: S301 - only ours are there
    return value
