"""The third socket: how the messages of all workers become one mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from gradsparse.sockets.compressor import Code
from gradsparse.sockets.compressor import Compressor
from gradsparse.sockets.compressor import Context
from gradsparse.sockets.space import Shape
from gradsparse.sockets.values import Sent
import jax


class Message(NamedTuple):
  """What one worker hands to the exchange.

  Attributes:
    words: what `Code.pack` returned.
    rounded: what `words` was packed from.
    own: what `rounded` stands for, decoded.
    code: how to read the messages of others.
    ctx: the context.
    dense: leaves that stay dense and ride along, float32.
    ok: bool scalar: this worker can keep what comes of its gradient.
    owed: the exchange's own state, see `Exchange.init`.
    overflow: int32, how many elements found no room in the message.
  """

  words: Any
  rounded: Any
  own: Any
  code: Code
  ctx: Context
  dense: list[jax.Array]
  ok: jax.Array
  owed: Sequence[jax.Array] = ()
  overflow: Any = 0

  @property
  def dense_bytes(self) -> int:
    """Size of the leaves of this message, as float32."""
    return 4 * sum(map(math.prod, self.ctx.shapes))


class Extras(NamedTuple):
  """What comes back beside the total: bookkeeping, and what few exchanges know.

  Attributes:
    message_bytes: size of one worker's message; a uint32 scalar where the size
      depends on the data, and the largest size while a plan is made.
    transport: how the message went, for tables; None where the run time chose.
    removed: what the memory lets go of, if that is not what was delivered. An
      exchange that rounds the mean once more counts the change as delivered by
      the worker that rounded, but that worker's memory held only its own
      message. None: the same as `Exchanged.delivered`.
    owed: the exchange's new state, if the step is accepted.
    roundings: the sum of all workers' roundings, for a compressor that learns
      from it; None where words were not added up.
    judged: `Exchanged.ok` says also that the total of what was compressed is
      finite.
    overflow: that of this worker's message; `compressed_mean` fills it in.
  """

  message_bytes: int | jax.Array
  transport: str | None = None
  removed: Sent | None = None
  owed: Sequence[jax.Array] = ()
  roundings: Any = None
  judged: bool = False
  overflow: Any = 0


class Exchanged(NamedTuple):
  """What comes back. Over all P workers, `delivered` adds up to P means.

  The mean is `total / weight`. `compressed_mean` divides, nobody else.

  Attributes:
    total: float32, bit-identical on all workers: a vector of the leaves of the
      message, a list of them, or a list of the buckets that they are in.
    dense: totals of the leaves that stayed dense.
    weight: by what `total` is divided: the number of workers whose messages
      are in it, or 1 where the exchange itself decided on a mean.
    ok: bool scalar, the same everywhere: all workers were ok. Otherwise the
      step is rejected, and nothing else of this is used.
    delivered: what of this worker's is in the mean, if the step is accepted.
    extras: bookkeeping, and what few exchanges know.
  """

  total: jax.Array | list[jax.Array]
  dense: list[jax.Array]
  weight: int
  ok: jax.Array
  delivered: Sent
  extras: Extras


class Exchange(NamedTuple):
  """How the messages of P workers become one mean.

  Attributes:
    name: for tables and messages.
    run: (message, comm) -> Exchanged.
    refuses: compressor -> why it cannot be exchanged this way, or None.
    arrange: (selected, code, workers) -> what is rounded and packed, if that
      is not what was selected (a reduce-scatter cuts it into parts).
    init: (shapes, code) -> the exchange's own state: what this worker owes
      because the exchange rounded, a float32 array for each leaf, in the units
      of a memory's `pending`; () if it owes nothing.
    adds: the exchange adds words up, so that a compressor can learn from the
      sum.
  """

  name: str
  run: Callable[[Message, Any], Exchanged]
  refuses: Callable[[Compressor], str | None] = lambda compressor: None
  arrange: Callable[[Any, Code, int], Any] = lambda selected, code, workers: (
    selected
  )
  init: Callable[[Sequence[Shape], Code], Sequence[jax.Array]] = (
    lambda shapes, code: ()
  )
  adds: bool = False
