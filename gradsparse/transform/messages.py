"""The messages of a step: packed by one worker, exchanged by all.

Between the two may lie anything: a message can be exchanged one step after it
was packed (`tests/sockets/late_exchange_test.py`).
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
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Memory
from gradsparse.sockets import Message
from gradsparse.sockets import Sent
from gradsparse.sockets import Signal
from gradsparse.sockets import Sparse
from gradsparse.sockets import returned
from gradsparse.traffic import counting
from gradsparse.transform import layout as layouts
from gradsparse.transform import planning
from gradsparse.transform.buckets import Buckets
from gradsparse.transform.layout import Group
import jax
import jax.numpy as jnp


class Scheme(NamedTuple):
  """What `compressed_mean` was made of; its arguments."""

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
    """Whether the scheme only adds up leaves as they are, in their own type."""
    code = self.compressor.code
    whole = code.takes is Leaves and code.is_exact
    return whole and self.exchange.adds and not self.memory.floats


class Outgoing(NamedTuple):
  """What a worker has before it sends.

  Attributes:
    buckets: the leaves, as the memory sees them.
    kept: the memory's state, after accumulating.
    ok: bool scalar: this worker can keep what comes of its gradient.
    values: what is to be delivered of each bucket.
    signals: the signals of each compressed leaf, by number.
    owed: the exchange's state by the numbers of leaves; empty if it has none.
    contexts: the context of each group's message, without a size.
    pre_reduced_bytes: for each group, the bytes that this worker has reduced
      with the others before it selects (`PreReduce`).
    messages: of each group, and how many elements found no room in it; none
      before `pack`. None for a group whose leaves all stay dense.
  """

  buckets: Buckets
  kept: Any
  ok: jax.Array
  values: list[jax.Array]
  signals: Mapping[int, Signal]
  owed: dict[int, jax.Array]
  contexts: Sequence[Context]
  pre_reduced_bytes: list[int]
  messages: Sequence[tuple[Message, jax.Array] | None] = ()


class Received(NamedTuple):
  """What came back of one group's message.

  Attributes:
    group: the leaves.
    ctx: the context of the message.
    exchanged: what the exchange returned.
    overflow: int32, how many elements found no room.
    own: what this worker sent; None where it sent nothing, or where that is
      not needed any more.
  """

  group: Group
  ctx: Context
  exchanged: Exchanged
  overflow: jax.Array
  own: Sent | None = None


def pack(
  scheme: Scheme, comm: Comm, outgoing: Outgoing, contexts: Sequence[Context]
) -> Outgoing:
  """Makes this worker's messages; nothing is sent yet.

  A worker that is not ok has messages too: the others wait for them, and they
  say that nobody may take anything.

  Args:
    scheme: the sockets.
    comm: the workers.
    outgoing: what this worker has.
    contexts: of the messages, each with a size.
  """
  groups = outgoing.buckets.groups
  return outgoing._replace(
    contexts=contexts,
    messages=[
      # Other groups carry the verdict where all leaves stay dense.
      None
      if group.dense and not group.compressed
      else _message(scheme, comm, outgoing, group, ctx)
      for group, ctx in zip(groups, contexts, strict=True)
    ],
  )


def exchange(scheme: Scheme, comm: Comm, outgoing: Outgoing) -> list[Received]:
  """Sends the messages that `pack` made.

  Args:
    scheme: the sockets.
    comm: the workers.
    outgoing: with messages, of this step or of an earlier one.
  """
  if comm.recorder is not None:
    comm.recorder.message = []
  return [
    _exchange(scheme, comm.within(group.axes), outgoing, group, ctx, own, n)
    for group, ctx, own, n in zip(
      outgoing.buckets.groups,
      outgoing.contexts,
      outgoing.messages,
      outgoing.pre_reduced_bytes,
      strict=True,
    )
  ]


def _message(
  scheme: Scheme, comm: Comm, outgoing: Outgoing, group: Group, ctx: Context
) -> tuple[Message, jax.Array]:
  """The message of a group, and how many elements found no room in it."""
  compressor, code = scheme.compressor, scheme.compressor.code
  selected: Any = compressor.select(
    [outgoing.signals[i] for i in group.compressed], ctx
  )
  if not isinstance(selected, code.takes):
    takes = code.takes if isinstance(code.takes, tuple) else (code.takes,)
    raise TypeError(
      f'{compressor.name} selects {type(selected).__name__}, and its code '
      f'takes {" or ".join(t.__name__ for t in takes)}'
    )
  returned.selected(selected)
  rounded: Any = code.round(
    scheme.exchange.arrange(selected, code, comm.size), ctx
  )
  own = code.decode(rounded, ctx, 1)
  returned.decoded(own)
  words = code.pack(rounded, ctx)
  if code.combines != 'sums':  # arrays of any type can be added up
    returned.packed(words)
  ok, overflow = outgoing.ok, jnp.int32(0)
  if isinstance(own, Sparse | Marked):
    ok &= health.can_send(own.values, comm.size)
  if code.dropped is not None:
    overflow = code.dropped(selected, rounded)
  if compressor.ladder is not None and compressor.ladder.overflow is not None:
    overflow += compressor.ladder.overflow(ctx)
  message = Message(
    words,
    rounded,
    own,
    code,
    ctx,
    _dense(outgoing, group),
    ok,
    [outgoing.owed[i] for i in group.compressed] if outgoing.owed else (),
  )
  return message, overflow


def _exchange(
  scheme: Scheme,
  comm: Comm,
  outgoing: Outgoing,
  group: Group,
  ctx: Context,
  message: tuple[Message, jax.Array] | None,
  pre_reduced_bytes: int,
) -> Received:
  """Sends the message of one group."""
  buckets = outgoing.buckets
  overflow, own = jnp.int32(0), None
  if message is not None:
    own, overflow = message[0].own, message[1]
    back = scheme.exchange.run(message[0], comm)
    nbytes = back.extras.message_bytes
    if isinstance(nbytes, int):
      nbytes += pre_reduced_bytes
    elif pre_reduced_bytes:
      nbytes = counting.total([nbytes, pre_reduced_bytes])
    # Every worker could send its own entries, so their sum is finite.
    judged = back.extras.judged or isinstance(own, Sparse | Marked)
    extras = back.extras._replace(message_bytes=nbytes, judged=judged)
    back = back._replace(extras=extras)
  else:
    # The word for this worker's verdict travels with the other groups.
    totals = common.sum_dense(_dense(outgoing, group), comm)
    back = Exchanged(
      [], totals, 1, jnp.bool_(True), Leaves([]), Extras(0, 'dense')
    )
  if comm.recorder is not None:
    comm.recorder.message += planning.message_rows(
      scheme.compressor,
      scheme.axis_name,
      buckets.layout,
      group,
      own,
      back.extras,
      buckets.dtypes,
    )
  return Received(group, ctx, back, overflow, own)


def _dense(outgoing: Outgoing, group: Group) -> list[jax.Array]:
  """What is to be delivered of the leaves of a group that stay dense."""
  return [outgoing.values[n] for n in outgoing.buckets.of_leaves(group.dense)]
