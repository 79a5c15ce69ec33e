"""Notices that a process of the run is gone or silent, and ends all others.

  with multihost.session(place, host_timeout=60): ...     # starts a watch

Every process holds a connection to process 0, on which a thread listens, and
both ends say now and then that they are there. Where a connection breaks (the
process died) or nothing comes for `timeout` seconds (it hangs, its host is off,
a cable is out), process 0 tells the others whom the run has lost; where it is
process 0 itself, each notices alone. Every process then says one line and ends:
nobody waits in a collective for one that never comes, and the first that failed
is named, not those that failed because of it.

A message is a line of JSON: hello, service, beat, over, bye.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
from typing import Any

from experiments.cluster import environment
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


@dataclasses.dataclass(eq=False)
class _Peer:
  """One connection.

  Attributes:
    connection: to a process.
    where: name and address of its host.
    number: of the process; None: it has not said so yet.
  """

  connection: socket.socket
  where: str
  number: int | None = None

  def send(self, **message: Any) -> None:
    """Says something; whoever listens notices where that is not possible."""
    with contextlib.suppress(OSError):
      self.connection.sendall(json.dumps(message).encode() + b'\n')


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
    end: Callable[[str, int], None] | None = None,
  ):
    """Meets process 0, or begins to wait for the others.

    Args:
      process: number of this process.
      processes: how many there are.
      coordinator: address and port on which process 0 listens.
      timeout: seconds of silence after which a process counts as lost.
      meeting: seconds in which all must come.
      end: called with the line to say and the exit status; ends the process.

    Raises:
      ConfigError: process 0 cannot listen, or is not there.
    """
    self._process, self._processes = process, processes
    self._timeout, self._end = timeout, end or end_process
    self._interval = min(timeout / _BEATS, _MOST_SECONDS)
    self._meeting = meeting
    self._peers: list[_Peer] = []  # that have said who they are
    self._missing = set(range(1, processes)) if process == 0 else set()
    self._lock = threading.Lock()  # of the peers, and of the next two
    self._closing = threading.Event()  # there is nothing more to notice
    self._ender: threading.Thread | None = None  # that ends the process
    self._left = threading.Event()  # the main thread wants to leave
    self._server: socket.socket | None = None
    if process == 0:
      self.service = environment.free_port()
      self._server = _listen(coordinator)
      in_thread(self._accept, self._server)
    else:
      self._meet(coordinator)
    in_thread(self._beat)

  def wait(self) -> None:
    """Gives the watch the time to find out who is lost; it ends the process.

    Returns where nobody is.
    """
    if self._closing.wait(self._timeout + 2 * self._interval) and self._ender:
      self._ender.join()

  def leave(self, text: str, status: int) -> None:
    """Tells the others that this process ends by a failure of its own.

    Args:
      text: why.
      status: its exit status.
    """
    self._stop()
    who = self._name(self._process)
    text = f'{who} ended with status {status}: {text}'
    self._tell(kind='over', text=text, status=status, own=True)
    time.sleep(_FAREWELL_SECONDS)

  def close(self) -> None:
    """Ends the watch: the run is over, for all."""
    self._stop()
    self._tell(kind='bye')
    for peer in self._peers:
      _hang_up(peer.connection)
    if self._server is not None:
      _hang_up(self._server)

  def _stop(self) -> None:
    self._left.set()
    with self._lock:
      self._closing.set()
    if self._ender:
      # It has just found that somebody is lost, and may end the process.
      self._ender.join(3 * _FAREWELL_SECONDS)

  # --- the threads ---------------------------------------------------------

  def _beat(self) -> None:
    deadline = time.monotonic() + self._meeting
    while not self._closing.wait(self._interval):
      self._tell(kind='beat')
      if self._missing and time.monotonic() > deadline:
        who = self._name(min(self._missing))
        self._over(f'{who} did not come within {self._meeting:g} s')

  def _accept(self, server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # until it is closed
      while True:
        connection, address = server.accept()
        connection.settimeout(self._timeout)
        peer = _Peer(connection, address[0].removeprefix('::ffff:'))
        in_thread(self._listen_to, peer, connection.makefile('rb'))

  def _listen_to(self, peer: _Peer, lines: Any) -> None:
    """Listens to a peer until it is gone, is silent, or says that it leaves."""
    how = 'its connection broke'
    try:
      for line in lines:
        message = json.loads(line)
        if message['kind'] == 'bye':
          return
        self._hear(peer, message)
    except TimeoutError:
      how = f'nothing came from it for {self._timeout:g} s'
    except OSError:
      pass
    except (ValueError, KeyError, TypeError):  # somebody else's connection
      return
    finally:
      _hang_up(peer.connection)
    if peer.number is not None:
      who = f'{self._name(peer.number)} ({peer.where})'
      self._over(f'lost {who}: {how}; {_AGAIN}')

  def _hear(self, peer: _Peer, message: dict[str, Any]) -> None:
    if message['kind'] == 'hello':
      peer.number = int(message['process'])
      peer.where = f'{message["host"]}, {peer.where}'
      # Who has been answered is told whatever comes after the answer.
      with self._lock:
        peer.send(kind='service', port=self.service, host=socket.gethostname())
        self._peers.append(peer)
      self._missing.discard(peer.number)
    elif message['kind'] == 'over':
      self._over(message['text'], message['status'], own=message['own'])

  def _over(
    self, text: str, status: int = EXIT_LOST, *, own: bool = False
  ) -> None:
    """Ends the run, here and in the processes that this one can tell.

    Args:
      text: the line to say.
      status: exit status.
      own: whether it is a failure of a process, which others may share.
    """
    with self._lock:
      if self._closing.is_set():
        return
      self._ender = threading.current_thread()
      self._closing.set()
    self._tell(kind='over', text=text, status=status, own=own)
    if not own:
      time.sleep(_FAREWELL_SECONDS)
    elif self._left.wait(_FAREWELL_SECONDS):
      return  # the main thread has said the same of this process
    self._end(f'error: {text}', status)

  # --- connections ---------------------------------------------------------

  def _meet(self, coordinator: tuple[str, int]) -> None:
    """Says hello to process 0, and learns where JAX finds it."""
    deadline = time.monotonic() + self._meeting
    while True:
      try:
        connection = socket.create_connection(coordinator, 1)
        connection.settimeout(self._meeting)
        peer = _Peer(connection, coordinator[0], 0)
        host = socket.gethostname()
        peer.send(kind='hello', process=self._process, host=host)
        lines = connection.makefile('rb')
        answer = lines.readline()
        if not answer:
          raise OSError('it closed the connection')
        break
      except OSError as error:
        if time.monotonic() > deadline:
          raise errors.ConfigError(
            f'{self._name(self._process)} found no process 0 at '
            f'{coordinator[0]}:{coordinator[1]} within {self._meeting:g} s '
            f'({error})'
          ) from error
        time.sleep(_RETRY_SECONDS)
    connection.settimeout(self._timeout)
    told = json.loads(answer)
    self.service = told['port']
    peer.where = f'{told["host"]}, {peer.where}'
    self._peers.append(peer)
    in_thread(self._listen_to, peer, lines)

  def _tell(self, **message: Any) -> None:
    with self._lock:
      peers = tuple(self._peers)
    for peer in peers:
      peer.send(**message)

  def _name(self, process: int) -> str:
    return f'process {process} of {self._processes}'


def in_thread(function: Callable[..., None], *args: Any) -> None:
  """Calls a function in a thread that ends with the process."""
  threading.Thread(target=function, args=args, daemon=True).start()


def _hang_up(connection: socket.socket) -> None:
  """Closes a socket, also for a thread that waits for something on it."""
  with contextlib.suppress(OSError):  # the other end may have
    connection.shutdown(socket.SHUT_RDWR)
  connection.close()


def _listen(coordinator: tuple[str, int]) -> socket.socket:
  """Listens on all addresses of this host, as JAX's coordinator does."""
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


def end_process(text: str, status: int) -> None:
  """Says a line, and ends this process at once."""
  command_line.say(text)
  sys.stdout.flush()
  os._exit(status)
