"""The exchange socket: how the messages of all workers become one mean."""

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
  """The message of one worker, the input of the exchange.

  Attributes:
    words: the result of `Code.pack`.
    rounded: the result of `Code.round`, of which `words` are packed.
    own: the decoded values of `rounded`.
    code: the code of all messages.
    ctx: the context.
    dense: leaves that stay dense and are summed with the message, float32.
    ok: bool scalar: whether this worker accepts the step.
    server_residual: the exchange's own state, see `Exchange.init`.
  """

  words: Any
  rounded: Any
  own: Any
  code: Code
  ctx: Context
  dense: list[jax.Array]
  ok: jax.Array
  server_residual: Sequence[jax.Array] = ()

  @property
  def dense_bytes(self) -> int:
    """Size of the leaves of this message, as float32."""
    return 4 * sum(map(math.prod, self.ctx.shapes))


class Extras(NamedTuple):
  """Further results of an exchange: measurements, and fields of few exchanges.

  Attributes:
    message_bytes: size of one worker's message; a uint32 scalar if the size
      depends on the data, or the largest size while a plan is made.
    transport: the collective, for tables; None where the run time chose.
    removed: what the memory subtracts, if that is not `Exchanged.delivered`. A
      reduce-scatter credits the second rounding error to the owner of the part,
      but the owner's memory subtracts its own message only.
    server_residual: the exchange's new state, if the step is accepted.
    roundings: the sum of all workers' roundings, for `CompressorState.update`;
      None where words were not summed.
    judged: whether `Exchanged.ok` also says that the compressed total is
      finite.
    overflow: int32, how many elements of this worker found no room in its
      message; `transform/messages.py` fills it in.
    lossless: whether this worker delivered all that it selected, unrounded;
      `transform/messages.py` fills it in.
  """

  message_bytes: int | jax.Array
  transport: str | None = None
  removed: Sent | None = None
  server_residual: Sequence[jax.Array] = ()
  roundings: Any = None
  judged: bool = False
  overflow: Any = 0
  lossless: bool = False


class Exchanged(NamedTuple):
  """The result of an exchange.

  The mean is `total / weight`; only `transform/receive.py` divides. The sum of
  `delivered` over all P workers is P means.

  Attributes:
    total: float32, bit-identical on all workers: a vector of the message's
      leaves, a list of them, or a list of their buckets.
    dense: totals of the leaves that stayed dense.
    weight: the divisor of `total`: the number of workers in it, or 1 if the
      exchange itself computed a mean.
    ok: bool scalar, equal everywhere: whether all workers are ok. Otherwise the
      step is rejected, and no other field is used.
    delivered: this worker's values in the mean, if the step is accepted.
    extras: further results.
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
    name: the name in tables and messages.
    run: (message, comm) -> Exchanged.
    refuses: compressor -> why it cannot be exchanged this way, or None.
    arrange: (selected, code, workers) -> the input of `Code.round`, if it is
      not `selected` (a reduce-scatter cuts leaves into parts).
    init: (shapes, code) -> the exchange's own state, the server residual: the
      errors of the exchange's own rounding, a float32 array for each leaf, in
      the units of a memory's `pending`; () if there is none.
    adds: whether the exchange sums words, which `CompressorState` needs.
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
