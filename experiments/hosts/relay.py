"""Stands between JAX and its coordinator, so that JAX does not see it die.

JAX's client is C++: where its connection to the coordinator breaks, it aborts
the process at once, with a stack trace that names no host. So JAX gets a
connection to its own process, which does not break, and this module passes on
what comes. `experiments.hosts.watch` says that the coordinator is gone.
"""

import contextlib
import socket

from experiments.hosts import watch

_PART = 1 << 16


def start(address: str, port: int) -> int:
  """Returns a port of this process that leads to another one.

  Args:
    address: of the host to reach.
    port: there.
  """
  server = socket.create_server(('127.0.0.1', 0))

  def serve() -> None:
    while True:
      near, _ = server.accept()
      watch.in_thread(join, near)

  def join(near: socket.socket) -> None:
    try:
      far = socket.create_connection((address, port))
    except OSError:  # it does not listen yet: JAX tries again
      near.close()
      return
    for end in (near, far):
      end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The near end is not closed when the far one is: see above.
    watch.in_thread(_pass_on, far, near)
    _pass_on(near, far)
    far.close()

  watch.in_thread(serve)
  return server.getsockname()[1]


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
  """Passes bytes on until a socket is closed or broken."""
  with contextlib.suppress(OSError):
    while part := source.recv(_PART):
      sink.sendall(part)
