"""What surrounds a message: the signals it is made of, and its context."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from gradsparse.sockets.space import Shape
import jax

# How a leaf is divided between the devices of one worker: for each of its
# dimensions, from the first on, the mesh axes. () if the leaf is whole.
Cut = tuple[tuple[str, ...], ...]


class Signal(NamedTuple):
  """What a compressor may look at, for one leaf (float32, leaf-shaped).

  Attributes:
    value: what is to be delivered (memory and gradient together).
    gradient: this step's gradient alone (AdaComp looks at it).
    moment: the accumulated second moment, or None (variance criterion).
  """

  value: jax.Array
  gradient: jax.Array
  moment: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class MessageLeaves:
  """The leaves of one message, as this device has them. Static.

  Attributes:
    shapes: shapes of the leaves.
    cuts: how each leaf is divided between the devices of this worker; () if
      all leaves are whole.
    buckets: how many leaves each bucket has; () if each leaf is a bucket by
      itself. The memory stores a bucket as one array, so a mean may come back
      by leaves (`shapes`) or by buckets (`Space.merged`).
    shards: the devices of this worker (`collectives.Shards`), if there are
      several.
  """

  shapes: tuple[Shape, ...]
  cuts: tuple[Cut, ...] = ()
  buckets: tuple[int, ...] = ()
  shards: Any = None


class Context(NamedTuple):
  """What surrounds one message.

  Attributes:
    leaves: the leaves of the message.
    workers: P, the number of workers.
    step: int32 scalar, updates done so far.
    key: PRNG key, different for each worker and step.
    shared_key: PRNG key, different for each step, the same on all workers.
    state: the compressor's own state (`Learning`).
    prepared: what was computed before the selection: what the workers settled
      (`Agreement`), or what the ladder saw (`Ladder.look`). None if neither.
    rung: the size in force, an element of `Ladder.rungs(shapes)`, or None.
  """

  leaves: MessageLeaves
  workers: int
  step: jax.Array
  key: jax.Array
  shared_key: jax.Array
  state: Any = ()
  prepared: Any = None
  rung: Any = None

  @property
  def shapes(self) -> tuple[Shape, ...]:
    """Shapes of the leaves, as this device has them."""
    return self.leaves.shapes
