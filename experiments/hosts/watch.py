"""Notices that a process of the run is gone or silent, and ends all others.

  with multihost.session(place, host_timeout=60): ...     # starts a watch

A thread in every process holds a connection to process 0, and both say now and
then that they are there. Where a connection breaks (the process died) or
nothing comes for `timeout` seconds (it hangs, its host is off, a cable is out),
process 0 tells the others whom the run has lost; where it is process 0 itself,
each notices alone. Every process then says one line and ends: nobody waits in a
collective for one that never comes, and the first that failed is named, not
those that failed because of it.

A message is a line of JSON: hello, service, beat, over, bye.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import json
import os
import selectors
import socket
import sys
import threading
import time
from typing import Any

from experiments.program import command_line
from experiments.program import errors

# Beats in the time that may pass in silence.
_BEATS = 6
_MOST_SECONDS = 5.0  # between two beats
# How long others get to read why this process ends, and one that is told to end
# gets to say why by itself: several may have met the same mistake.
_FAREWELL_SECONDS = 2.0
_RETRY_SECONDS = 0.1

# Exit status of a process that ends because another one is lost: EX_TEMPFAIL of
# sysexits.h, which asks whoever started it to try again.
EXIT_LOST = 75
_AGAIN = 'the same command goes on from the last checkpoint, if there is one'

End = Callable[[str, int], None]


@dataclasses.dataclass
class _Peer:
  """One connection.

  Attributes:
    connection: to a process.
    heard: when something came on it last.
    address: of its host.
    number: of the process; None: it has not said so yet.
    host: name of its host.
    unread: the beginning of a message.
  """

  connection: socket.socket
  heard: float
  address: str
  number: int | None = None
  host: str = ''
  unread: bytes = b''


class Watch:
  """What one process knows of the others: process 0 of all, they of it.

  Attributes:
    service: the port of process 0 on which JAX's coordinator listens.
  """

  def __init__(
    self,
    process: int,
    processes: int,
    coordinator: tuple[str, int],
    *,
    timeout: float,
    meeting: float,
    service: int = 0,
    end: End | None = None,
  ):
    """Meets process 0, or begins to wait for the others.

    Args:
      process: number of this process.
      processes: how many there are.
      coordinator: address and port on which process 0 listens.
      timeout: seconds of silence after which a process counts as lost.
      meeting: seconds in which all must come.
      service: what process 0 tells the others, see the attribute.
      end: called with the line to say and the exit status; ends the process.

    Raises:
      ConfigError: process 0 cannot listen, or is not there.
    """
    self.service = service
    self._process, self._processes = process, processes
    self._timeout, self._end = timeout, end or _end_process
    self._interval = min(timeout / _BEATS, _MOST_SECONDS)
    self._selector = selectors.DefaultSelector()
    self._peers: list[_Peer] = []
    self._missing = set(range(1, processes)) if process == 0 else set()
    self._deadline = time.monotonic() + meeting
    self._meeting = meeting
    self._closing = False  # the thread has no more to do
    self._left = threading.Event()  # the main thread wants to leave
    self._ear, self._mouth = socket.socketpair()
    self._selector.register(self._ear, selectors.EVENT_READ)
    self._server: socket.socket | None = None
    if process == 0:
      self._server = _listen(coordinator)
      self._selector.register(self._server, selectors.EVENT_READ)
    else:
      self._meet(coordinator, meeting)
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def wait(self) -> None:
    """Gives the watch the time to find out who is lost; it ends the process.

    Returns where nobody is.
    """
    self._thread.join(self._timeout + 2 * self._interval)

  def leave(self, text: str, status: int) -> None:
    """Tells the others that this process ends by a failure of its own.

    Args:
      text: why.
      status: its exit status.
    """
    self._stop()
    self._tell(
      {
        'kind': 'over',
        'text': f'{self._name(self._process)} ended with status {status}: '
        f'{text}',
        'status': status,
        'own': True,
      }
    )
    self._say_farewell()

  def close(self) -> None:
    """Ends the watch: the run is over, for all."""
    self._stop()
    self._tell({'kind': 'bye'})
    for peer in list(self._peers):
      self._drop(peer)

  # --- the thread ----------------------------------------------------------

  def _run(self) -> None:
    beat = 0.0
    while not self._closing:
      # Whoever was silent until here: if this thread itself gets no time from
      # now on, what comes meanwhile is read in the next round.
      now = time.monotonic()
      for key, _ in self._selector.select(self._interval):
        if key.fileobj is self._server:
          self._accept()
        elif key.data is not None:
          self._read(key.data)
      if time.monotonic() >= beat:
        self._tell({'kind': 'beat'})
        beat = time.monotonic() + self._interval
      self._look_for_silence(now)

  def _accept(self) -> None:
    assert self._server is not None
    connection, address = self._server.accept()
    self._add(connection, address[0].removeprefix('::ffff:'))

  def _read(self, peer: _Peer) -> None:
    try:
      part = peer.connection.recv(1 << 16)
    except BlockingIOError:
      return
    except OSError:
      part = b''
    if not part:
      self._drop(peer)
      if peer.number is not None:
        self._over(f'lost {self._who(peer)}: its connection broke; {_AGAIN}')
      return
    peer.heard = time.monotonic()
    *lines, peer.unread = (peer.unread + part).split(b'\n')
    for line in lines:
      try:
        self._hear(peer, json.loads(line))
      except (ValueError, KeyError, TypeError):  # somebody else's connection
        self._drop(peer)
        return

  def _hear(self, peer: _Peer, message: dict[str, Any]) -> None:
    kind = message['kind']
    if kind == 'hello':
      peer.number, peer.host = int(message['process']), str(message['host'])
      self._missing.discard(peer.number)
      answer = {
        'kind': 'service',
        'port': self.service,
        'host': socket.gethostname(),
      }
      _send(peer, answer)
    elif kind == 'over':
      self._over(message['text'], message['status'], own=message['own'])
    elif kind == 'bye':
      self._drop(peer)

  def _look_for_silence(self, now: float) -> None:
    for peer in list(self._peers):
      if now - peer.heard <= self._timeout:
        continue
      self._drop(peer)
      if peer.number is not None:
        self._over(
          f'lost {self._who(peer)}: nothing came from it for '
          f'{self._timeout:g} s; {_AGAIN}'
        )
    if self._missing and now > self._deadline:
      self._over(
        f'{self._name(min(self._missing))} did not come within '
        f'{self._meeting:g} s'
      )

  def _over(
    self,
    text: str,
    status: int = EXIT_LOST,
    *,
    own: bool = False,
  ) -> None:
    """Ends the run, here and in the processes that this one can tell.

    Args:
      text: the line to say.
      status: exit status.
      own: whether it is a failure of a process, which others may share.
    """
    if self._closing:
      return
    self._closing = True
    self._tell({'kind': 'over', 'text': text, 'status': status, 'own': own})
    if own and self._left.wait(_FAREWELL_SECONDS):
      return  # the main thread has said the same of this process
    self._say_farewell()
    self._end(text, status)

  # --- connections ---------------------------------------------------------

  def _meet(self, coordinator: tuple[str, int], seconds: float) -> None:
    """Says hello to process 0, and learns where JAX finds it."""
    me = f'process {self._process} of {self._processes}'
    deadline = time.monotonic() + seconds
    while True:
      try:
        connection = socket.create_connection(coordinator, 1)
        connection.settimeout(seconds)
        hello = {'process': self._process, 'host': socket.gethostname()}
        connection.sendall(_encode({'kind': 'hello', **hello}))
        answer = connection.makefile('rb', buffering=0).readline()
        if not answer:
          raise OSError('it closed the connection')
        break
      except OSError as error:
        if time.monotonic() > deadline:
          raise errors.ConfigError(
            f'{me} found no process 0 at {coordinator[0]}:{coordinator[1]} '
            f'within {seconds:g} s ({error})'
          ) from error
        time.sleep(_RETRY_SECONDS)
    told = json.loads(answer)
    self.service = told['port']
    peer = self._add(connection, coordinator[0])
    peer.number, peer.host = 0, told['host']

  def _add(self, connection: socket.socket, address: str) -> _Peer:
    connection.setblocking(False)
    peer = _Peer(connection, time.monotonic(), address)
    self._peers.append(peer)
    self._selector.register(connection, selectors.EVENT_READ, peer)
    return peer

  def _drop(self, peer: _Peer) -> None:
    if peer in self._peers:
      self._peers.remove(peer)
      self._selector.unregister(peer.connection)
      peer.connection.close()

  def _tell(self, message: dict[str, Any]) -> None:
    for peer in self._peers:
      if peer.number is not None:
        _send(peer, message)

  def _stop(self) -> None:
    self._closing = True
    self._left.set()
    self._mouth.send(b'.')
    # It may just have found that somebody is lost, and end the process.
    self._thread.join(3 * _FAREWELL_SECONDS)

  def _say_farewell(self) -> None:
    """Waits until the others have read what was told last."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    for peer in self._peers:
      try:
        peer.connection.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
          peer.connection.settimeout(left)
          if not peer.connection.recv(1 << 16):
            break
      except OSError:
        pass  # it is gone, or waits no less than we do

  # --- words ---------------------------------------------------------------

  def _name(self, process: int) -> str:
    return f'process {process} of {self._processes}'

  def _who(self, peer: _Peer) -> str:
    assert peer.number is not None
    return f'{self._name(peer.number)} ({peer.host}, {peer.address})'


def _listen(coordinator: tuple[str, int]) -> socket.socket:
  """On all addresses of this host, as JAX's coordinator does."""
  both = socket.has_dualstack_ipv6()
  try:
    return socket.create_server(
      ('', coordinator[1]),
      family=socket.AF_INET6 if both else socket.AF_INET,
      dualstack_ipv6=both,
      backlog=1024,
    )
  except OSError as error:
    raise errors.ConfigError(
      f'process 0 cannot listen on port {coordinator[1]} '
      f'({error.strerror}); name another port in the coordinator'
    ) from error


def _encode(message: dict[str, Any]) -> bytes:
  return json.dumps(message).encode() + b'\n'


def _send(peer: _Peer, message: dict[str, Any]) -> None:
  try:
    peer.connection.send(_encode(message))
  except OSError:
    pass  # reading tells


def _end_process(text: str, status: int) -> None:
  command_line.say(f'error: {text}')
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)
