"""The path of one message: select, round, pack, exchange, and back.

What comes before (accumulating, agreeing, choosing a size) is the same for
every size of the message. compressed_mean.py does it, once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import health
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Delivered
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Full
from gradsparse.sockets import Memory
from gradsparse.sockets import Message
from gradsparse.sockets import Signal
from gradsparse.sockets import Sparse
from gradsparse.sockets import ownership
from gradsparse.state.scheme import Stats
from gradsparse.transform import layout as layouts
from gradsparse.transform import planning
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


class Before(NamedTuple):
  """What is known before the size of the message is.

  Attributes:
    layout: of the leaves.
    signals: of the leaves that are compressed.
    dense: the leaves that stay dense, float32.
    kept: the memory's state, after accumulating.
    healthy: bool scalar: this worker can keep what comes of its gradient.
    owed: the exchange's state, leaf by leaf.
    dtypes: of the gradients.
  """

  layout: layouts.Layout
  signals: list[Signal]
  dense: list[jax.Array]
  kept: Any
  healthy: jax.Array
  owed: Any
  dtypes: list[Any]


class After(NamedTuple):
  """What comes of a message; the same shapes at every rung.

  Attributes:
    updates: the tree for the optimizer, NaN if the step was rejected.
    delivered: float32 tree, this worker's part of the mean; None if nobody
      asked.
    memory: new state.
    compressor: new state.
    stats: of the step.
    exchange: new state.
    accepted: bool scalar, the same everywhere.
  """

  updates: Any
  delivered: Any
  memory: Any
  compressor: Any
  stats: Stats
  exchange: Any
  accepted: jax.Array


def finish(
  scheme: Scheme, comm: Comm, before: Before, ctx: Context, tell: bool
) -> After:
  """Sends one message, and brings update and state up to date.

  Args:
    scheme: the sockets.
    comm: the workers.
    before: what does not depend on the size of the message.
    ctx: of the message, with its size.
    tell: whether to return what was delivered.
  """
  layout = before.layout
  message, crowded_out = _message(scheme, comm, before, ctx)
  # A worker that is not healthy sends too: the others wait for its message,
  # which tells them to take nothing from anybody.
  back = scheme.exchange.run(message, comm)
  if comm.recorder is not None:
    comm.recorder.message = planning.message_rows(
      scheme.compressor, scheme.axis_name, layout, message.own, back
    )
  means = layout.join(back.mean, back.dense)
  flat, accepted = _updates(scheme, comm, before, message, back, means)

  def only_accepted(delivered):
    whole = [Full(x, whole=True) for x in before.dense]
    return jax.tree.map(
      lambda d: d.only_if(accepted),
      layout.join(delivered, whole),
      is_leaf=lambda x: isinstance(x, Delivered),
    )

  def moved(new, old):
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  delivered = only_accepted(back.delivered)
  released = delivered
  if back.released is not None:
    released = only_accepted(back.released)
  memory = scheme.memory.sent(before.kept, released)
  memory = scheme.memory.arrived(memory, means, layout.whole(), accepted)
  learnt = ctx.state
  if scheme.compressor.learning is not None:
    learnt = moved(scheme.compressor.learning.learn(back.total, ctx), ctx.state)
  ladder = scheme.compressor.ladder
  overflow = crowded_out
  if ladder is not None and ladder.overflow is not None:
    overflow += ladder.overflow(ctx)
  stats = Stats(
    payload_bytes=jnp.float32(
      back.message_bytes + sum(4 * x.size for x in before.dense)
    ),
    sent_bytes=jnp.float32(0),  # the caller knows
    sent_elements=jnp.where(
      accepted, jnp.int32(sum(d.count() for d in back.delivered)), 0
    ),
    overflow_elements=jnp.where(accepted, overflow, 0),
    rejected_steps=jnp.int32(0),
  )
  told = None
  if tell:
    arrived = layout.treedef.flatten_up_to(delivered)
    pairs = zip(arrived, layout.shapes, strict=True)
    told = jax.tree.unflatten(
      layout.treedef, [comm.local(d.dense(shape)) for d, shape in pairs]
    )
  return After(
    updates=jax.tree.unflatten(
      layout.treedef, [jnp.where(accepted, u, jnp.nan) for u in flat]
    ),
    delivered=told,
    memory=_typed(memory, comm, local=True),
    compressor=_typed(learnt, comm, local=False),
    stats=comm.local(stats),
    exchange=comm.local(layout.spread(moved(back.owed, before.owed))),
    accepted=accepted,
  )


def _typed(state: Any, comm: Comm, local: bool) -> Any:
  """A state, what is a worker's own in it typed so.

  Args:
    state: of a memory or a compressor.
    comm: the workers.
    local: what it is, unless it says otherwise.
  """
  return jax.tree.map(
    lambda x, own: comm.local(x) if own else x,
    state,
    ownership.is_local(state, default=local),
  )


def _message(
  scheme: Scheme, comm: Comm, before: Before, ctx: Context
) -> tuple[Message, jax.Array]:
  """This worker's message, and how many entries found no slot in it."""
  code = scheme.compressor.code
  selected = scheme.compressor.select(before.signals, ctx)
  if not isinstance(selected, code.takes):
    raise TypeError(
      f'{scheme.compressor.name} selects {type(selected).__name__}, and its '
      f'code takes {code.takes.__name__}'
    )
  arranged = scheme.exchange.arrange(selected, code, comm.size)
  rounded = code.round(arranged, ctx)
  own = code.decode(rounded, ctx, 1)
  healthy, crowded_out = before.healthy, jnp.int32(0)
  if isinstance(own, Sparse):  # few numbers: looked at before they are sent
    healthy &= health.can_send(own.values, comm.size)
  if code.crowds:
    crowded_out = jnp.sum(selected.valid, dtype=jnp.int32)
    crowded_out -= jnp.sum(rounded.valid, dtype=jnp.int32)
  message = Message(
    code.pack(rounded, ctx),
    rounded,
    own,
    code,
    ctx,
    before.dense,
    healthy,
    before.owed,
  )
  return message, crowded_out


def _updates(
  scheme: Scheme,
  comm: Comm,
  before: Before,
  message: Message,
  back: Exchanged,
  means: Any,
) -> tuple[list[jax.Array], jax.Array]:
  """The update's leaves, and whether all workers accept the step."""
  layout = before.layout
  updates = scheme.memory.update(before.kept, means, layout.whole())
  # The momentum of dense leaves is kept in this worker's memory, and so typed
  # as its own, but it is made of means alone.
  flat = layout.treedef.flatten_up_to(updates)
  for i in layout.dense:
    flat[i] = comm.replicated(flat[i])
  flat = [u.astype(dtype) for u, dtype in zip(flat, before.dtypes, strict=True)]
  # Updates are equal on all workers, so all judge them alike. Sums of sparse
  # messages are finite, because every worker could send its own. What the
  # shared fields of a memory add to them need not be.
  adds = bool(ownership.shared_fields(before.kept))
  sums = isinstance(message.own, Sparse) and not adds
  unsure = [
    u
    for i, u in enumerate(flat)
    if not sums or i in layout.dense or health.is_narrow(u.dtype)
  ]
  return flat, back.healthy & health.all_finite(unsure)
