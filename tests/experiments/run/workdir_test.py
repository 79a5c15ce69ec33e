"""A working directory has one live run, and a dead one leaves no lock."""

import os
import socket
import subprocess
import sys

from experiments.program import errors
from experiments.run import records
import pytest

_HOLDER = """
import pathlib, sys, time
from experiments.run import records
lock = records.lock(pathlib.Path(sys.argv[1]))
print('locked', flush=True)
time.sleep(1000)
"""


def test_a_live_run_keeps_others_out_and_a_dead_one_does_not(tmp_path):
  folder = tmp_path / 'new' / 'run'
  holder = subprocess.Popen(
    [sys.executable, '-c', _HOLDER, str(folder)],
    cwd=os.getcwd(),
    stdout=subprocess.PIPE,
  )
  try:
    assert holder.stdout.readline() == b'locked\n'
    with pytest.raises(errors.ResumeError) as caught:
      records.lock(folder)
    who = f'process {holder.pid} on {socket.gethostname()}'
    assert who in str(caught.value) and str(folder) in str(caught.value)
    assert 'with --multihost they are one run' in str(caught.value)
  finally:
    holder.kill()
    holder.wait()
    holder.stdout.close()
  lock = records.lock(folder)
  with pytest.raises(errors.ResumeError, match=f'process {os.getpid()} on'):
    records.lock(folder)
  lock.close()
  records.lock(folder).close()


def test_a_file_in_the_way_is_told(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(errors.FileError, match='cannot make the folder .*file'):
    records.lock(tmp_path / 'file' / 'run')
  (tmp_path / records.LOCK).mkdir()
  with pytest.raises(errors.FileError, match='cannot write .*directory'):
    records.lock(tmp_path)
