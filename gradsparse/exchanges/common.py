"""What the exchanges share: words, health, and the dense leaves."""

from __future__ import annotations

import math
from typing import Any

from gradsparse.collectives import Comm
from gradsparse.delivery import Delivered
from gradsparse.delivery import Full
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Encoded
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


def to_words(tree: Any) -> jax.Array:
  """A tree of uint32, int32 and float32 arrays as one uint32 vector."""
  parts = [
    jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    for x in jax.tree.leaves(tree)
  ]
  return jnp.concatenate(parts) if parts else jnp.zeros(0, jnp.uint32)


def from_words(words: jax.Array, like: Any) -> Any:
  """Inverse of `to_words`; `like` gives shapes and dtypes."""
  leaves, treedef = jax.tree.flatten(like)
  out, start = [], 0
  for leaf in leaves:
    stop = start + math.prod(leaf.shape)
    part = jax.lax.bitcast_convert_type(words[start:stop], leaf.dtype)
    out.append(part.reshape(leaf.shape))
    start = stop
  return jax.tree.unflatten(treedef, out)


def pack_bits(bits: jax.Array) -> jax.Array:
  """bool[n] as words, one bit each."""
  return fixed_width.pack(bits.astype(jnp.uint32), 1)


def gather(
  words: jax.Array, healthy: jax.Array, comm: Comm
) -> tuple[jax.Array, jax.Array, int]:
  """All workers' messages, whether all are healthy, size of one in bytes.

  One word in front of the message says whether its sender is.
  """
  message = jnp.concatenate([healthy.astype(jnp.uint32)[None], words])
  gathered = comm.gather(message)
  return gathered[:, 1:], jnp.all(gathered[:, 0] == 1), message.nbytes


def scatter(
  rows: jax.Array, healthy: jax.Array, comm: Comm
) -> tuple[jax.Array, jax.Array, int]:
  """Row d of a message to worker d; health travels as in `gather`.

  Args:
    rows: uint32[P, words].
    healthy: bool scalar.
    comm: the workers.

  Returns:
    (uint32[P, words]: row s came from worker s; whether all workers are
    healthy, the same everywhere; size of a message in bytes).
  """
  health = jnp.full((comm.size, 1), healthy, jnp.uint32)
  message = jnp.concatenate([health, rows], axis=1)
  received = comm.all_to_all(message)
  # Every worker hears of everybody, so all come to the same result.
  healthy = comm.replicated(jnp.all(received[:, 0] == 1))
  return received[:, 1:], healthy, message.nbytes


def reduce_dense(leaves: list[jax.Array], comm: Comm) -> list[jax.Array]:
  """Means of the leaves that stay dense."""
  return comm.mean(leaves) if leaves else []


def count_unhealthy(healthy: jax.Array) -> jax.Array:
  return 1.0 - healthy.astype(jnp.float32)


def own_delivery(encoded: Encoded) -> list[Delivered]:
  """What this worker's message stands for, which arrives as a whole."""
  decoded = encoded.payload
  if not isinstance(decoded, Sparse):
    decoded = encoded.compressor.decode(decoded, encoded.shared, encoded.ctx, 1)
  if isinstance(decoded, Sparse):
    return list(decoded.windows())
  return [Full(x) for x in decoded]
