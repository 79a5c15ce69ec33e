"""The watch names who is gone, silent or missing, not who leaves in order."""

import contextlib
import ctypes
import json
import queue
import socket
import subprocess
import sys
import threading
import time

from experiments.cluster import environment
from experiments.hosts import relay
from experiments.hosts import watch
from experiments.program import errors
import pytest

_SECONDS = 20  # for what must happen


class _Ends(queue.Queue):
  """What a watch would have ended its process with."""

  def __call__(self, text: str, status: int) -> None:
    self.put((text.removeprefix('error: '), status))

  def the(self) -> tuple[str, int]:
    return self.get(timeout=_SECONDS)


@pytest.fixture
def port():
  return environment.free_port()


@pytest.fixture
def started(port):
  """Returns a function that starts the watch of a process: (watch, ends)."""
  watches = []

  def start(process, processes=3, **options):
    ends = _Ends()
    options = {'timeout': 60, 'meeting': 60, **options}
    address = ('127.0.0.1', port)
    watches.append(
      watch.Watch(process, processes, address, end=ends, **options)
    )
    return watches[-1], ends

  yield start
  for each in reversed(watches):
    each.close()


def _say(connection, **message):
  connection.sendall(json.dumps(message).encode() + b'\n')


@pytest.mark.slow
def _come(port, process):
  """A process that says hello and no more."""
  connection = socket.create_connection(('127.0.0.1', port))
  _say(connection, kind='hello', process=process, host='far')
  assert json.loads(connection.makefile().readline())['kind'] == 'service'
  return connection


@pytest.mark.slow
def test_a_broken_connection_is_named_to_all(started, port):
  first, chief = started(0)
  member, other = started(1)
  assert member.service == first.service
  _come(port, 2).close()
  for text, status in (chief.the(), other.the()):
    assert text.startswith('lost process 2 of 3 (far, 127.0.0.1): its conn')
    assert '\n' not in text and status == watch.EXIT_LOST == 75


@pytest.mark.slow
def test_silence_is_noticed_and_not_of_those_who_beat(started, port):
  _, chief = started(0, timeout=1.0)
  _, other = started(1, timeout=1.0)
  with _come(port, 2):
    for ends in (chief, other):
      text, _ = ends.the()
      assert 'lost process 2 of 3' in text and 'nothing came' in text
      assert 'for 1 s' in text


_BEATING = """
import json, socket, sys, time
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for message in ({'kind': 'hello', 'process': 1, 'host': 'far'},
                *[{'kind': 'beat'}] * 100):
  connection.sendall(json.dumps(message).encode() + b'\\n')
  time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_watch_that_gets_no_time_itself_calls_nobody_silent(started, port):
  _, ends = started(0, 2, timeout=0.5)
  other = subprocess.Popen([sys.executable, '-c', _BEATING, str(port)])
  try:
    time.sleep(0.5)
    ctypes.PyDLL(None).usleep(1_500_000)  # no thread of this process runs
    with pytest.raises(queue.Empty):
      ends.get(timeout=1)
  finally:
    other.kill()
    other.wait()
  assert 'lost process 1 of 2 (far' in ends.the()[0]


@pytest.mark.slow
def test_process_0_is_noticed_too(started, port):
  with socket.create_server(('127.0.0.1', port)) as server:
    server.listen()
    with contextlib.ExitStack() as stack:

      def answer():
        connection, _ = server.accept()
        _say(connection, kind='service', port=7, host='near')
        return stack.enter_context(connection)

      thread = threading.Thread(target=answer)
      thread.start()
      _, ends = started(2, timeout=0.5)
      thread.join()
      text, status = ends.the()
  assert text.startswith('lost process 0 of 3 (near, 127.0.0.1): nothing came')
  assert status == watch.EXIT_LOST


@pytest.mark.slow
def test_who_does_not_come_is_named(started, port):
  _, ends = started(0, meeting=0.2, timeout=0.5)
  assert ends.the()[0] == 'process 1 of 3 did not come within 0.2 s'


@pytest.mark.slow
def test_a_failure_of_its_own_is_told_with_its_status(started, monkeypatch):
  """To those too who have just been answered."""
  send = watch._Peer.send

  def slowly(peer, **message):
    send(peer, **message)
    if message['kind'] == 'service':
      time.sleep(0.3)

  monkeypatch.setattr(watch._Peer, 'send', slowly)
  _, chief = started(0)
  member, _ = started(1)
  _, other = started(2)
  member.leave('no such file', 2)
  said = ('process 1 of 3 ended with status 2: no such file', 2)
  assert chief.the() == other.the() == said


@pytest.mark.slow
def test_who_fails_too_says_so_by_itself(started):
  chief, chief_ends = started(0, 2)
  member, _ = started(1, 2)
  thread = threading.Thread(target=member.leave, args=('no such field', 2))
  thread.start()
  chief.leave('no such field', 2)  # before it would be ended
  thread.join()
  assert chief_ends.empty()


def test_an_orderly_end_is_no_loss(started):
  chief, chief_ends = started(0, 2, timeout=0.5)
  member, member_ends = started(1, 2, timeout=0.5)
  member.close()
  chief.wait()
  assert chief_ends.empty() and member_ends.empty()


def test_strangers_are_not_heard(started, port):
  _, ends = started(0, 2, timeout=0.5)
  _, other = started(1, 2, timeout=0.5)
  for words in (b'', b'GET / HTTP/1.1\r\n\r\n', b'{"kind": "hello"}\n', b'7\n'):
    with socket.create_connection(('127.0.0.1', port)) as stranger:
      stranger.sendall(words)
  with pytest.raises(queue.Empty):
    ends.get(timeout=1)
  assert other.empty()


def test_what_cannot_be_is_told(started, port):
  with pytest.raises(errors.ConfigError, match='found no process 0 at 127'):
    started(1, meeting=0.2)
  with socket.create_server(('', port)):
    with pytest.raises(errors.ConfigError, match='cannot listen on port'):
      started(0)


def test_the_near_end_of_a_relay_outlives_the_far_one():
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = relay.start('127.0.0.1', server.getsockname()[1])
    with socket.create_connection(('127.0.0.1', port), _SECONDS) as near:
      far, _ = server.accept()
      near.sendall(b'ping')
      assert far.recv(4) == b'ping'
      far.sendall(b'pong')
      assert near.recv(4) == b'pong'
      far.close()
      near.settimeout(0.5)
      with pytest.raises(TimeoutError):
        near.recv(1)
