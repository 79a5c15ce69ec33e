"""Sends the messages of a step: select, round, pack, exchange.

A message may have several sizes. Then `_send` is compiled once for each size;
what a worker does before (step.py) and after (receive.py) is compiled once.
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
from gradsparse.sockets import Joined
from gradsparse.sockets import Ladder
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
  """

  buckets: Buckets
  kept: Any
  ok: jax.Array
  values: list[jax.Array]
  signals: Mapping[int, Signal]
  owed: dict[int, jax.Array]
  contexts: list[Context]
  pre_reduced_bytes: list[int]


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


def send(scheme: Scheme, comm: Comm, outgoing: Outgoing) -> list[Received]:
  """Chooses the size of the messages, and sends them.

  Args:
    scheme: the sockets.
    comm: the workers.
    outgoing: what this worker has.
  """
  ladder, groups = scheme.compressor.ladder, outgoing.buckets.groups
  if ladder is None:
    return _recorded(comm, _send(scheme, comm, outgoing, outgoing.contexts))
  # All groups take the rung of the same number, or their last one.
  seen, rungs = [], []
  for group, ctx in zip(groups, outgoing.contexts, strict=True):
    signals = [outgoing.signals[i] for i in group.compressed]
    rungs.append(ladder.rungs(ctx.shapes) if signals else (None,))
    if signals and ladder.look is not None:
      ctx = ctx._replace(prepared=ladder.look(signals, ctx))
    seen.append(ctx)
  longest = max(rungs, key=len)

  def at_rung(number):
    contexts = [
      ctx._replace(rung=own[min(number, len(own) - 1)])
      for ctx, own in zip(seen, rungs, strict=True)
    ]
    return _send(scheme, comm, outgoing, contexts)

  if len(longest) == 1:
    return _recorded(comm, at_rung(0))
  if comm.recorder is not None:
    if not ladder.agreed:
      comm.agree(jnp.int32(0))  # workers agree on the rung, as below
    return planning.count_rungs(
      at_rung, longest, ladder, scheme.axis_name, comm.recorder
    )
  # Only what depends on the size of the messages is written out for each.
  wanted = [
    ladder.choose(ctx)
    for group, ctx in zip(groups, seen, strict=True)
    if group.compressed
  ]
  number = wanted[0]
  for other in wanted[1:]:
    number = jnp.maximum(number, other)
  if not ladder.agreed:
    number = comm.agree(number)
  # (weight, judged) of each message: not arrays, and the same at every size.
  known: list[tuple[int, bool]] = []

  def branch(n):
    received = at_rung(n)
    known[:] = [
      (r.exchanged.weight, r.exchanged.extras.judged) for r in received
    ]
    return [_of_any_size(ladder, comm, r) for r in received]

  out = comm.switch(
    number, [lambda n=n: branch(n) for n in range(len(longest))]
  )
  return [
    Received(group, ctx, *_from_any_size(ladder, ctx, facts, *own))
    for group, ctx, facts, own in zip(groups, seen, known, out, strict=True)
  ]


def _of_any_size(ladder: Ladder, comm: Comm, received: Received) -> Any:
  """What came back, as arrays whose shapes do not depend on the size.

  Returns:
    (total, dense, ok, delivered, message_bytes, removed, owed, roundings,
    overflow). What was delivered is None where that is known without a message.
  """
  group, ctx, back, overflow, own = received
  total: Any = back.total
  if group.compressed and not isinstance(total, Joined):
    total = Joined(Leaves(list(total)).joined(), ctx.shapes)

  def of_one_size(sent):
    if isinstance(sent, Sparse | Marked):
      sent = sent.joined()
    return comm.local(sent)

  # The exchange may have delivered something else.
  all_of_it = group.compressed and back.delivered is own
  by_ladder = all_of_it and ladder.delivered is not None
  extras = back.extras
  return (
    total,
    back.dense,
    back.ok,
    None if by_ladder else of_one_size(back.delivered),
    counting.total([extras.message_bytes]),
    of_one_size(extras.removed),
    comm.local(extras.owed),
    extras.roundings,
    comm.local(overflow),
  )


def _from_any_size(
  ladder: Ladder, ctx: Context, known: tuple[int, bool], *arrays: Any
) -> tuple[Exchanged, jax.Array]:
  """The inverse of `_of_any_size`, with what was known before it."""
  total, dense, ok, delivered, nbytes, removed, owed, roundings, overflow = (
    arrays
  )
  if delivered is None:
    assert ladder.delivered is not None
    delivered = ladder.delivered(ctx)
  weight, judged = known
  extras = Extras(nbytes, None, removed, owed, roundings, judged)
  return Exchanged(total, dense, weight, ok, delivered, extras), overflow


def _send(
  scheme: Scheme, comm: Comm, outgoing: Outgoing, contexts: Sequence[Context]
) -> list[Received]:
  """Sends messages of one size each.

  A worker that is not ok sends too: the others wait for its message, which
  tells them to take nothing from anybody.
  """
  if comm.recorder is not None:
    comm.recorder.message = []
  return [
    _exchange(scheme, comm.within(group.axes), outgoing, group, ctx, nbytes)
    for group, ctx, nbytes in zip(
      outgoing.buckets.groups, contexts, outgoing.pre_reduced_bytes, strict=True
    )
  ]


def _recorded(comm: Comm, received: list[Received]) -> list[Received]:
  """Adds the rows of the messages that were just sent to the plan, if any."""
  if comm.recorder is not None:
    comm.recorder.rows.extend(comm.recorder.message)
  return received


def _exchange(
  scheme: Scheme,
  comm: Comm,
  outgoing: Outgoing,
  group: Group,
  ctx: Context,
  pre_reduced_bytes: int,
) -> Received:
  """Sends the message of one group."""
  buckets = outgoing.buckets
  dense = [outgoing.values[n] for n in buckets.of_leaves(group.dense)]
  overflow, own = jnp.int32(0), None
  if group.compressed or not group.dense:
    message, overflow = _message(scheme, comm, outgoing, group, ctx, dense)
    own, back = message.own, scheme.exchange.run(message, comm)
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
    totals = common.sum_dense(dense, comm)
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


def _message(
  scheme: Scheme,
  comm: Comm,
  outgoing: Outgoing,
  group: Group,
  ctx: Context,
  dense: list[jax.Array],
) -> tuple[Message, jax.Array]:
  """This worker's message, and how many entries found no slot in it."""
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
  if code.may_drop:
    overflow = jnp.int32(selected.count() - rounded.count())
  if compressor.ladder is not None and compressor.ladder.overflow is not None:
    overflow += compressor.ladder.overflow(ctx)
  message = Message(
    words,
    rounded,
    own,
    code,
    ctx,
    dense,
    ok,
    [outgoing.owed[i] for i in group.compressed] if outgoing.owed else (),
  )
  return message, overflow
