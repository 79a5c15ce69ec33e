"""The way of one message: encode, exchange, update, release.

What comes before it (accumulating, agreeing, choosing a size) is the same at
every size of the message, and is done once, in compressed_mean.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import health
from gradsparse import layout as layouts
from gradsparse import planning
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.delivery import Delivered
from gradsparse.delivery import Full
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Compressor
from gradsparse.interfaces import Context
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Memory
from gradsparse.state import Stats
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
  """What is known before the size of the message is."""

  layout: layouts.Layout
  prepared: Any
  dense: list[jax.Array]
  kept: Any
  shared: Any
  healthy: jax.Array
  owed: Any
  dtypes: list[Any]


class After(NamedTuple):
  """What one rung makes of it; all rungs return the same shapes."""

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
  """Encode, exchange and release at one size of the message."""
  compressor, layout = scheme.compressor, before.layout
  # A worker that is not healthy sends too: the others wait for its message,
  # which tells them to take nothing from anybody.
  payload = compressor.encode(before.prepared, before.shared, ctx)
  crowded_out = jnp.int32(0)
  if isinstance(payload, Sparse) and compressor.codec is not None:
    selected = payload
    payload = compressor.codec.quantise(selected, ctx.key)
    if compressor.codec.bounded:
      crowded_out = jnp.sum(selected.valid) - jnp.sum(payload.valid)
  healthy = before.healthy
  sparse = isinstance(payload, Sparse)
  if sparse:
    healthy &= health.can_send(payload.values, comm.size)
  back = scheme.exchange.run(
    Encoded(
      payload,
      compressor,
      before.shared,
      ctx,
      before.dense,
      healthy,
      before.owed,
    ),
    comm,
  )
  if comm.recorder is not None:
    comm.recorder.message = planning.message_rows(
      compressor, scheme.axis_name, layout, payload, back
    )
  means = layout.join(back.mean, back.dense)
  updates = scheme.memory.update(before.kept, means, layout.whole())
  # The momentum of dense leaves is kept in this worker's memory, and so typed
  # as its own, but it is made of means alone.
  flat = layout.treedef.flatten_up_to(updates)
  for i in layout.dense:
    flat[i] = comm.replicated(flat[i])
  flat = [u.astype(dtype) for u, dtype in zip(flat, before.dtypes, strict=True)]
  # Updates are equal on all workers, and so is what they show. Sums of sparse
  # messages are finite, because those could be sent.
  unsure = [
    u
    for i, u in enumerate(flat)
    if not sparse or i in layout.dense or health.is_narrow(u.dtype)
  ]
  accepted = back.healthy & health.all_finite(unsure)

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
  memory = scheme.memory.release(before.kept, means, released, accepted)
  learnt = compressor.learn(ctx.state, back.total, before.shared, ctx)
  overflow = crowded_out.astype(jnp.int32)
  if compressor.overflow is not None:
    overflow += compressor.overflow(before.prepared, before.shared, ctx)
  stats = Stats(
    payload_bytes=jnp.float32(
      back.message_bytes + sum(4 * x.size for x in before.dense)
    ),
    sent_bytes=jnp.float32(0),  # the caller knows
    sent_elements=jnp.where(accepted, _sent_elements(back.delivered), 0),
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
    memory=comm.local(memory),
    compressor=moved(learnt, ctx.state),
    stats=comm.local(stats),
    exchange=comm.local(layout.spread(moved(back.owed, before.owed))),
    accepted=accepted,
  )


def _sent_elements(delivered) -> jax.Array:
  """Coordinates of the compressed leaves that something was delivered of."""
  counts = [
    d.values.size if isinstance(d, Full) else d.count() for d in delivered
  ]
  return jnp.asarray(sum(counts), jnp.int32)
