"""Stands between JAX and its coordinator, so that JAX does not see it die.

JAX's client is C++: where its connection to the coordinator breaks, it aborts
the process at once, with a stack trace that names no host. So it gets a
connection that does not break, to this process, and what comes on it is passed
on. `experiments.hosts.watch` notices, and says, that the coordinator is gone.
"""

import socket
import threading
import time

_RETRY_SECONDS = 0.05
_PART = 1 << 16


def start(address: str, port: int, seconds: float) -> int:
  """Returns a port of this process that leads to another one.

  Args:
    address: of the host to reach.
    port: there.
    seconds: to try to reach it; it may not be listening yet.
  """
  server = socket.create_server(('127.0.0.1', 0))

  def serve() -> None:
    while True:
      near, _ = server.accept()
      _in_thread(join, near)

  def join(near: socket.socket) -> None:
    far = _reach(address, port, seconds)
    if far is None:
      near.close()
      return
    for end in (near, far):
      end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The near end is not closed when the far one is: see above.
    _in_thread(_pass_on, far, near)
    _pass_on(near, far)
    far.close()

  _in_thread(serve)
  return server.getsockname()[1]


def _reach(address: str, port: int, seconds: float) -> socket.socket | None:
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    try:
      far = socket.create_connection((address, port), 1)
      far.settimeout(None)
      return far
    except OSError:
      time.sleep(_RETRY_SECONDS)
  return None


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
  """Until one of them is closed, or broken."""
  try:
    while part := source.recv(_PART):
      sink.sendall(part)
  except OSError:
    pass


def _in_thread(function, *args) -> None:
  threading.Thread(target=function, args=args, daemon=True).start()
