"""A long wire: frames arrive late, not evenly, and in their order.

  python tests/experiments/cluster/wire.py NEAR FAR MILLISECONDS JITTER

makes two interfaces in the network namespace in which it runs, says `ready`,
and carries frames from each to the other, until it is killed. A frame takes
MILLISECONDS, more or less by at most JITTER, each way. For kernels without
netem; `delay` of faults.py runs it.
"""

import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

_DEVICE = '/dev/net/tun'
_SET_INTERFACE = 0x400454CA  # TUNSETIFF of <linux/if_tun.h>
_TAP, _BARE = 0x0002, 0x1000  # IFF_TAP, IFF_NO_PI
_FRAME = 1 << 16


def _open(name: str) -> int:
  """Makes an interface; what is read and written are its frames."""
  interface = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
  request = struct.pack('16sH22x', name.encode(), _TAP | _BARE)
  fcntl.ioctl(interface, _SET_INTERFACE, request)
  return interface


def _carry(ends: tuple[int, int], delay: float, jitter: float) -> None:
  """Carries frames; in seconds."""
  other = dict(zip(ends, reversed(ends), strict=True))
  on_the_way: dict[int, collections.deque[tuple[float, bytes]]] = {
    end: collections.deque() for end in ends
  }
  while True:
    due = [frames[0][0] for frames in on_the_way.values() if frames]
    wait = max(0.0, min(due) - time.monotonic()) if due else None
    readable, _, _ = select.select(ends, [], [], wait)
    for end in readable:
      try:
        frame = os.read(end, _FRAME)
      except OSError:  # the interface is down
        continue
      frames = on_the_way[other[end]]
      arrives = time.monotonic() + delay + random.uniform(-jitter, jitter)
      if frames:
        arrives = max(arrives, frames[-1][0])
      frames.append((arrives, frame))
    now = time.monotonic()
    for end, frames in on_the_way.items():
      while frames and frames[0][0] <= now:
        try:
          os.write(end, frames.popleft()[1])
        except OSError:  # lost, as on any wire that is not plugged in
          pass


if __name__ == '__main__':
  near, far, milliseconds, spread = sys.argv[1:]
  taps = _open(near), _open(far)
  print('ready', flush=True)
  _carry(taps, float(milliseconds) / 1e3, float(spread) / 1e3)
