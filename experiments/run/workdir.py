"""One run at a time in a working directory: a lock that dies with its run."""

import errno
import fcntl
import json
import os
import pathlib
import socket
from typing import Any, TextIO

from absl import logging
from experiments.program import errors
from experiments.program import files

LOCK = 'run.lock'

# A file system without locks: some network mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
  """Keeps other runs out of a working directory.

  The kernel holds the lock, on the open file: it ends with the process, however
  that ends. The file itself stays and says who has had it last.
  """

  def __init__(self, workdir: pathlib.Path):
    """Takes no lock yet."""
    self._path = workdir / LOCK
    self._file: TextIO | None = None

  def take(self) -> None:
    """Makes the working directory, and locks it.

    Raises:
      FileError: it cannot be made or written.
      ResumeError: a live run has it.
    """
    files.make_folder(self._path.parent)
    with files.explained('write', self._path):
      self._file = self._path.open('a+')
      try:
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise errors.ResumeError(
          f'{self._path.parent} is in use by a run that is alive'
          f'{_owner(self._path)}; wait for its end, or take another --workdir. '
          'Where a launcher has started both: with --multihost they are one run'
        ) from None
      except OSError as error:
        if error.errno not in _NO_LOCKS:
          raise
        logging.warning(
          '%s lies on a file system without locks: nothing keeps a second run '
          'out',
          self._path.parent,
        )
      self._file.truncate(0)
      json.dump({'pid': os.getpid(), 'host': socket.gethostname()}, self._file)
      self._file.flush()

  def release(self) -> None:
    """Lets others in."""
    if self._file is not None:
      self._file.close()


def _owner(path: pathlib.Path) -> str:
  """Who has a lock; the file may be just being written."""
  try:
    owner: Any = json.loads(path.read_text())
    return f', process {owner["pid"]} on {owner["host"]}'
  except (OSError, ValueError, TypeError, KeyError):
    return ''
