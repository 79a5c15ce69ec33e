"""One signal is heard, the second ends the process wherever it is."""

import os
import signal
import subprocess
import sys
import threading

from experiments.program import signals
import pytest

_STUCK = """
import ctypes, os, signal, time
from experiments.program import signals
with signals.listening():
  print('ready', flush=True)
  ctypes.CDLL(None).sleep(1000)  # the first signal ends this wait
  ctypes.CDLL(None).usleep(1_000_000_000)
"""


@pytest.mark.parametrize('number', signals.STOPPING)
def test_a_signal_is_heard_and_handlers_come_back(number, capfd):
  before = [signal.getsignal(each) for each in signals.STOPPING]
  with signals.listening() as listener:
    assert listener.asked == 0
    os.kill(os.getpid(), number)
    assert listener.asked == number
    assert 'stops after this step' in capfd.readouterr().err
  assert [signal.getsignal(each) for each in signals.STOPPING] == before


@pytest.mark.parametrize('number', signals.STOPPING)
def test_a_second_one_ends_a_process_that_is_stuck(number):
  process = subprocess.Popen(
    [sys.executable, '-c', _STUCK],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(number)
    assert 'a second one ends at once' in process.stderr.readline()
    process.send_signal(number)
    assert process.wait(timeout=20) == -number
    assert 'Traceback' not in process.stderr.read()
  finally:
    process.kill()
    process.communicate()


def test_outside_the_main_thread_nothing_is_changed():
  before = signal.getsignal(signal.SIGTERM)
  inside = []

  def work():
    with signals.listening() as listener:
      inside.append((signal.getsignal(signal.SIGTERM), listener.asked))

  thread = threading.Thread(target=work)
  thread.start()
  thread.join()
  assert inside == [(before, 0)]
