"""What surrounds a message: the signals it is made of, and its context."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse.sockets.space import Shape
import jax

# How a leaf is divided between the devices of one worker: for each of its
# dimensions, from the first on, the mesh axes. () if it is whole.
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


class Context(NamedTuple):
  """What surrounds one message.

  Attributes:
    shapes: shapes of the leaves in the group.
    workers: P.
    step: int32 scalar, updates done so far.
    key: PRNG key, different for each worker and step.
    shared_key: PRNG key, different for each step, the same on all workers.
    state: the compressor's own state (`Learning`).
    agreed: what was settled (`Agreement`), or None.
    seen: what the ladder saw (`Ladder.look`), or None.
    rung: the size in force, an element of `Ladder.rungs(shapes)`, or None.
    cuts: how each leaf is divided between the devices of this worker, of which
      this is one; () if all are whole. `shapes` are those of its own parts.
    shards: the devices of this worker (`collectives.Shards`), if there are
      several.
    runs: how many leaves each of the parts has in which their mean is read and
      what was sent leaves the memory; () if each leaf is such a part. A mean
      may have either, `shapes` or `Space.merged`.
  """

  shapes: tuple[Shape, ...]
  workers: int
  step: jax.Array
  key: jax.Array
  shared_key: jax.Array
  state: Any = ()
  agreed: Any = None
  seen: Any = None
  rung: Any = None
  cuts: tuple[Cut, ...] = ()
  shards: Any = None
  runs: tuple[int, ...] = ()
