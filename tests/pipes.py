"""Programs whose output nobody reads, as those before `| head`."""

import os
import pathlib
import subprocess
import sys


def unread(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
  """Runs Python with a standard output whose reader has gone.

  Args:
    *arguments: of Python.
    **variables: of the environment.
  """
  read, write = os.pipe()
  os.close(read)
  try:
    return subprocess.run(
      [sys.executable, *arguments],
      cwd=pathlib.Path(__file__).parents[1],
      env={**os.environ, 'JAX_PLATFORMS': 'cpu', **variables},
      stdout=write,
      stderr=subprocess.PIPE,
      text=True,
    )
  finally:
    os.close(write)
