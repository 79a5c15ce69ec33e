"""The third socket: how the messages of all workers become one mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from gradsparse.sockets.compressor import Code
from gradsparse.sockets.compressor import Compressor
from gradsparse.sockets.context import Context
from gradsparse.sockets.space import Shape
from gradsparse.sockets.values import Sent
import jax


class Message(NamedTuple):
  """What one worker hands to the exchange.

  Attributes:
    words: what `Code.pack` returned.
    rounded: what it was packed from.
    own: what that stands for, decoded.
    code: how to read the others'.
    ctx: the context.
    dense: leaves that stay dense and ride along, float32.
    healthy: bool scalar: this worker can keep what comes of its gradient.
    owed: the exchange's own state, see `Exchange.init`.
  """

  words: Any
  rounded: Any
  own: Any
  code: Code
  ctx: Context
  dense: list[jax.Array]
  healthy: jax.Array
  owed: Sequence[jax.Array] = ()

  @property
  def dense_bytes(self) -> int:
    """Size of what it is a message of, as float32."""
    return 4 * sum(map(math.prod, self.ctx.shapes))


class Exchanged(NamedTuple):
  """What comes back. Over all workers, `delivered` adds up to P times `mean`.

  Attributes:
    mean: float32 leaves of the group, bit-identical on all workers: a list,
      `Joined`, or `SparseSum`.
    delivered: what of this worker's is in the mean, if the step is accepted.
    dense: means of the leaves that stayed dense.
    healthy: bool scalar, the same everywhere: all workers were healthy.
      Otherwise the step is rejected, and the rest of this is not used.
    message_bytes: size of one worker's message; a uint32 scalar where it
      depends on the data, and the largest while a plan is made.
    transport: how it went, for tables; None where the run time chose it.
    total: the sum of all roundings, where words were added up, else None.
    released: what the memory lets go of, if that is not
      `delivered`. An exchange that rounds the mean once more counts the change
      as delivered by the worker that rounded, but that worker's memory held
      only its own message. None: the same as `delivered`.
    owed: the exchange's new state, if the step is accepted.
    judged: `healthy` says also that the mean of what was compressed is finite.
  """

  mean: Sequence[jax.Array]
  delivered: Sent
  dense: list[jax.Array]
  healthy: jax.Array
  message_bytes: int | jax.Array
  transport: str | None
  total: Any = None
  released: Sent | None = None
  owed: Sequence[jax.Array] = ()
  judged: bool = False


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
    adds: it adds words up, so that a compressor can learn from the sum.
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
