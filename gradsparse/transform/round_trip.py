"""The path of the messages: select, round, pack, exchange.

What comes before (accumulating, agreeing, choosing a size) is the same for
every size of the messages, and so is what comes after: one_step.py and
finishing.py do it, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradsparse import health
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Joined
from gradsparse.sockets import Ladder
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Memory
from gradsparse.sockets import Message
from gradsparse.sockets import Sent
from gradsparse.sockets import Signal
from gradsparse.sockets import Sparse
from gradsparse.traffic import counting
from gradsparse.transform import layout as layouts
from gradsparse.transform import planning
from gradsparse.transform.nodes import Nodes
import jax
import jax.numpy as jnp


class Scheme(NamedTuple):
  """What `compressed_mean` was made of."""

  memory: Memory
  compressor: Compressor
  exchange: Exchange
  axis_name: AxisName | None
  min_size: int | None
  dense_paths: layouts.DensePaths
  seed: int
  param_specs: Any
  verify: bool

  @property
  def adds_leaves(self) -> bool:
    """Whether it only adds up leaves as they are, in their own type."""
    code = self.compressor.code
    whole = code.takes is Leaves and code.exact
    return whole and self.exchange.adds and not self.memory.floats


class Part(NamedTuple):
  """A group of leaves that travel together.

  Attributes:
    group: which leaves.
    ctx: of their message.
    comm: the workers, and the devices of each over which they are divided.
    proposed_bytes: of what this worker proposed to agree upon.
  """

  group: layouts.Group
  ctx: Context
  comm: Comm
  proposed_bytes: int = 0


class Before(NamedTuple):
  """What is known before the size of the messages is.

  Attributes:
    nodes: the leaves, as the memory sees them.
    signals: of each compressed leaf, by number.
    values: of each node: what of it is to be delivered.
    kept: the memory's state, after accumulating.
    healthy: bool scalar: this worker can keep what comes of its gradient.
    owed: the exchange's state by the numbers of leaves; empty if it has none.
    dtypes: of the gradients.
  """

  nodes: Nodes
  signals: Mapping[int, Signal]
  values: list[jax.Array]
  kept: Any
  healthy: jax.Array
  owed: dict[int, jax.Array]
  dtypes: list[Any]


class Back(NamedTuple):
  """What came back of one part.

  Attributes:
    part: of which it is.
    own: what this worker sent, None where that is not needed any more.
    exchanged: what the exchange returned.
    judged: whether sums of what was sent are finite, since every worker could
      send its own.
    overflow: int32, how many elements found no room.
    rows: of a plan, while one is made.
  """

  part: Part
  own: Sent | None
  exchanged: Exchanged
  judged: bool
  overflow: jax.Array
  rows: list[counting.Row]


def send(
  scheme: Scheme, comm: Comm, before: Before, parts: Sequence[Part]
) -> list[Back]:
  """Sends the messages.

  Args:
    scheme: the sockets.
    comm: the workers.
    before: what does not depend on the size of the messages.
    parts: what travels together, with the size of each message.
  """
  # A worker that is not healthy sends too: the others wait for its message,
  # which tells them to take nothing from anybody.
  backs = [_exchange(scheme, before, part) for part in parts]
  if comm.recorder is not None:
    comm.recorder.message = [row for back in backs for row in back.rows]
  return backs


def of_any_size(
  ladder: Ladder, comm: Comm, backs: Sequence[Back]
) -> list[tuple[Exchanged, jax.Array]]:
  """What came back, in arrays whose shapes the size of a message leaves alone.

  With what each part's overflow is. The rest of a `Back` is not of arrays. What
  was delivered is None where that is known without a message.
  """

  def delivered(back):
    whole = back.part.group.compressed and back.exchanged.delivered is back.own
    if whole and ladder.delivered is not None:
      return None
    return of_one_size(back.exchanged.delivered)

  def of_one_size(sent):
    if isinstance(sent, Sparse | Marked):
      sent = sent.joined()
    return comm.local(sent)

  def joined(part, mean):
    if part.group.compressed and not isinstance(mean, Joined):
      mean = Joined(Leaves(list(mean)).joined(), part.ctx.shapes)
    return mean

  return [
    (
      back.exchanged._replace(
        mean=joined(back.part, back.exchanged.mean),
        delivered=delivered(back),
        released=of_one_size(back.exchanged.released),
        owed=comm.local(back.exchanged.owed),
        message_bytes=counting.total([back.exchanged.message_bytes]),
        transport=None,
      ),
      comm.local(back.overflow),
    )
    for back in backs
  ]


def from_any_size(
  ladder: Ladder, part: Part, exchanged: Exchanged, overflow: jax.Array
) -> Back:
  """With what was known of `of_any_size` before."""
  judged = isinstance(exchanged.delivered, Sparse | Marked)
  if exchanged.delivered is None:
    assert ladder.delivered is not None
    exchanged = exchanged._replace(delivered=ladder.delivered(part.ctx))
    judged = True
  return Back(part, None, exchanged, judged, overflow, [])


def _exchange(scheme: Scheme, before: Before, part: Part) -> Back:
  """Sends the message of one part."""
  nodes, group, comm = before.nodes, part.group, part.comm
  dense = [before.values[n] for n in nodes.numbers(group.dense)]
  overflow, own = jnp.int32(0), None
  if group.compressed or not group.dense:
    message, overflow = _message(scheme, before, part, dense)
    own = message.own
    back = scheme.exchange.run(message, comm)
    nbytes = back.message_bytes
    if isinstance(nbytes, int):
      nbytes += part.proposed_bytes
    elif part.proposed_bytes:
      nbytes = counting.total([nbytes, part.proposed_bytes])
    back = back._replace(message_bytes=nbytes)
  else:
    means = common.reduce_dense(dense, comm)
    # The word for this worker's health travels with the other parts.
    back = Exchanged([], Leaves([]), means, jnp.bool_(True), 0, 'dense')
  rows = []
  if comm.recorder is not None:
    rows = planning.message_rows(
      scheme.compressor,
      scheme.axis_name,
      nodes.layout,
      group,
      own,
      back,
      before.dtypes,
    )
  judged = isinstance(own, Sparse | Marked) or back.judged
  return Back(part, own, back, judged, overflow, rows)


def _message(
  scheme: Scheme, before: Before, part: Part, dense: list[jax.Array]
) -> tuple[Message, jax.Array]:
  """This worker's message, and how many entries found no slot in it."""
  code, ctx = scheme.compressor.code, part.ctx
  signals = [before.signals[i] for i in part.group.compressed]
  selected: Any = scheme.compressor.select(signals, ctx)
  fits = isinstance(selected, (code.takes, *code.marked))
  if not fits:
    raise TypeError(
      f'{scheme.compressor.name} selects {type(selected).__name__}, and its '
      f'code takes {code.takes.__name__}'
    )
  arranged = scheme.exchange.arrange(selected, code, part.comm.size)
  rounded = code.round(arranged, ctx)
  own = code.decode(rounded, ctx, 1)
  healthy, overflow = before.healthy, jnp.int32(0)
  if isinstance(own, Sparse | Marked):
    healthy &= health.can_send(own.values, part.comm.size)
  if code.crowds:
    overflow = jnp.int32(selected.count() - rounded.count())
  ladder = scheme.compressor.ladder
  if ladder is not None and ladder.overflow is not None:
    overflow += ladder.overflow(ctx)
  message = Message(
    code.pack(rounded, ctx),
    rounded,
    own,
    code,
    ctx,
    dense,
    healthy,
    [before.owed[i] for i in part.group.compressed] if before.owed else (),
  )
  return message, overflow
