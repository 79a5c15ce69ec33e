"""gTop-k as printed: a tree, an all-gather, and a put-back by the final mask.

Topologies, in addition to `exchanges.gtopk`'s butterfly:

  `tree`        algorithm 3: merges towards rank 0, then a broadcast. The
                result is the butterfly's, at twice the cost.
  `all_gather`  algorithm 2: the exact top k of the sum of all messages, which
                differs from the tree's result.

`put_back` (algorithm 4, line 10) returns to a worker its entries outside the
final mask. An entry that an inner merge drops is lost if its index enters the
final mask through another subtree: it is neither applied nor put back.

References:
  Shi et al., arXiv 1901.04359, algorithms 2 to 4.
"""

from __future__ import annotations

from gradsparse.exchanges.gtopk import Held
from gradsparse.exchanges.gtopk import Reduced
from gradsparse.exchanges.gtopk import Wire
from gradsparse.exchanges.gtopk import hand_down
from gradsparse.exchanges.gtopk import largest
from gradsparse.exchanges.gtopk import member
from gradsparse.exchanges.gtopk import merge_held
from gradsparse.exchanges.gtopk import receive
from gradsparse.exchanges.gtopk import select
from gradsparse.sockets import Sparse
import jax
import jax.numpy as jnp


def put_back(own: Sparse, final: Sparse) -> jax.Array:
  """bool[k]: which of a worker's entries are in the final mask."""
  return member(own.indices, final.indices)


def tree(mine: Held, wire: Wire, limit, tracked: bool) -> Reduced:
  """Merges towards rank 0, and hands the result down.

  Args:
    mine: this worker's k entries.
    wire: the format of the hops.
    limit: int32[], how many entries a merge keeps; None is k.
    tracked: whether masks of k bits are handed down with the result.

  Returns:
    The result, and which of this worker's entries no merge dropped: bool[k],
    without meaning unless `tracked`.
  """
  comm = wire.comm
  workers, rank = comm.size, comm.index()
  rounds = (workers - 1).bit_length()
  held, history = mine, []
  for j in range(rounds):
    half, pair = 1 << j, 2 << j
    perm = [(r, r - half) for r in range(half, workers, pair)]
    guest = receive(held, perm, wire)
    hosts = (rank % pair == 0) & (rank + half < workers)
    both = select(hosts, merge_held(held, guest, wire, limit), held)
    history.append((held.entries, guest.entries, both.entries, hosts))
    held = both
  # Rank 0 hands the result down the same tree. Each parent tells its child
  # which of the child's entries survived to the end.
  mask = held.entries.valid
  for j in reversed(range(rounds)):
    half, pair = 1 << j, 2 << j
    before, child, merged, hosts = history[j]
    perm = [(r - half, r) for r in range(half, workers, pair)]
    receives = rank % pair == half
    if tracked:
      told = _survives(child.indices, merged, mask)
      got, below = hand_down(held, told, perm, wire)
      kept = _survives(before.indices, merged, mask)
      mask = jnp.where(hosts, kept, jnp.where(receives, below, mask))
    else:
      got = receive(held, perm, wire)
    held = select(receives, got, held)
  return held, mask & mine.entries.valid


def _survives(indices: jax.Array, merged: Sparse, mask: jax.Array) -> jax.Array:
  """Which indices occur in `merged` at a place where mask is True."""
  at = jnp.searchsorted(merged.indices, indices)
  same = merged.indices.at[at].get(mode='fill', fill_value=-1) == indices
  return same & mask.at[at].get(mode='fill', fill_value=False)


def all_gather(mine: Held, wire: Wire, limit, tracked: bool) -> Reduced:
  """Every worker receives all messages and keeps the largest of their sum.

  Args:
    mine: this worker's k entries.
    wire: the format of the messages.
    limit: int32[], how many entries are kept; None is k.
    tracked: ignored, as there are no inner merges.

  Returns:
    The result, and which of this worker's entries are in it: bool[k].
  """
  del tracked
  messages = wire.comm.gather(wire.words(mine))
  all_, ok = jax.vmap(wire.read)(messages)
  indices, values = jax.lax.sort(
    (all_.indices.reshape(-1), all_.values.reshape(-1)), num_keys=1
  )
  entries = largest(
    indices, values, wire.comm.size, wire.like.space, wire.slots, limit
  )
  final = Held(entries, jnp.all(ok))
  return final, member(mine.entries.indices, entries.indices)
