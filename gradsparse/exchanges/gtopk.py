"""gTop-k: pairs of workers merge their k entries and keep the k largest.

The merge  a T b = the k largest magnitudes of the sparse sum a + b  is
commutative and deterministic: ties keep the lower index. Three topologies:

  'butterfly'  in round j a worker exchanges with rank XOR 2^j. After log2 P
               rounds every worker has the tree's result. It took part in every
               merge that held its own contribution, so it knows what each
               dropped. P need not be a power of two: with m = 2^floor(log2 P),
               rank r >= m folds into r - m first and gets the result last.
  'tree'       as printed (algorithm 3): merges towards rank 0, then a
               broadcast; twice the butterfly's cost.
  'allgather'  algorithm 2: the exact top k of the sum of all messages. Not
               the same answer as the tree's.

No message is larger than the whole gradient: where k entries with their indices
would be, it has the gradient's N numbers, of which at most k are entries. (On
the way back a mask of k bits may come beside it.)

What a worker gets back, `put_back`: 'exact' is what some merge on the path of
its own contribution dropped. 'paper' (algorithm 4, line 10) is what the final
mask lacks: an index dropped at an inner merge but present in the final mask
through another subtree is neither applied nor put back, and is lost.

References:
  Shi et al., arXiv 1901.04359, algorithms 2 to 4.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from gradsparse import arguments
from gradsparse.backend import reductions
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.selection import thresholds
from gradsparse.sockets import Code
from gradsparse.sockets import Context
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Message
from gradsparse.sockets import Sparse
from gradsparse.wire import bitmap
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp
import numpy as np

TOPOLOGIES = ('butterfly', 'tree', 'allgather')
PUT_BACK = ('exact', 'paper')
# Fewer entries are sorted: only compiling takes time then.
_SMALL = 1 << 14
# What stands in a vector for no entry (-0.0), and for a contributor that is not
# ok (a NaN).
_NO_ENTRY = np.uint32(0x80000000)
_NOT_OK = np.uint32(0x7FC00000)


class _Held(NamedTuple):
  """A partial result: entries, and whether all its contributors are ok."""

  entries: Sparse
  ok: jax.Array


class _Wire(NamedTuple):
  """What a hop needs to know.

  Attributes:
    code: of entries.
    ctx: of the message.
    like: the entries of this worker.
    comm: the workers.
    spread: whether entries travel as the whole vector that they are of, because
      that takes no more words. -0.0 says that there is no entry, and a NaN in
      the first place that a contributor is not ok.
  """

  code: Code
  ctx: Context
  like: Sparse
  comm: Comm
  spread: bool

  @property
  def slots(self) -> int:
    return self.like.slots

  def words(self, held: _Held) -> jax.Array:
    """A partial result as it travels."""
    if not self.spread:
      head = held.ok.astype(jnp.uint32)[None]
      return jnp.concatenate([head, self.code.pack(held.entries, self.ctx)])
    entries = _unsigned_zeros(held.entries)
    bits = jax.lax.bitcast_convert_type(entries.values, jnp.uint32)
    whole = jnp.full(entries.space.size, _NO_ENTRY, jnp.uint32)
    whole = whole.at[entries.indices].set(bits, mode='drop')
    return whole.at[0].set(jnp.where(held.ok, whole[0], _NOT_OK))

  def read(self, words: jax.Array) -> _Held:
    """Inverse of `words`."""
    if not self.spread:
      entries = self.code.unpack(words[1:], self.like, self.ctx)
      return _Held(entries, words[0] == 1)
    size = self.like.space.size
    marks = bitmap.pack(words != _NO_ENTRY)
    indices = jnp.minimum(bitmap.positions(marks, self.slots), size)
    bits = words.at[indices].get(mode='fill', fill_value=0)
    values = jax.lax.bitcast_convert_type(bits, jnp.float32)
    entries = Sparse(values, indices, self.like.space)
    return _Held(entries, words[0] != _NOT_OK)


def _unsigned_zeros(entries: Sparse) -> Sparse:
  values = jnp.where(entries.values == 0, 0.0, entries.values)
  return dataclasses.replace(entries, values=values)


def gtopk(topology: str = 'butterfly', put_back: str = 'exact') -> Exchange:
  """Exchange of sparse messages that keeps k coordinates in all.

  Raises:
    TypeError: topology or put_back is not text.
    ValueError: an unknown topology or put_back.
  """
  arguments.one_of('topology', topology, TOPOLOGIES)
  arguments.one_of('put_back', put_back, PUT_BACK)
  reduce = {
    'butterfly': _butterfly,
    'tree': _tree,
    'allgather': _all_gather,
  }[topology]

  def run(message: Message, comm: Comm) -> Exchanged:
    own = message.rounded
    spread = own.space.size <= 1 + message.words.size
    if spread:
      own = _unsigned_zeros(own)
    wire = _Wire(message.code, message.ctx, own, comm, spread)
    # A worker may send fewer than its slots hold (a schedule inside the
    # program): merges keep to the wanted k, which is equal everywhere.
    limit = None
    if message.ctx.rung is not None:
      limit = comm.uniform(jnp.sum(own.valid))
    mine = _Held(own, message.ok)
    final, alive = reduce(mine, wire, limit, put_back)
    if put_back == 'paper':
      alive = _member(own.indices, final.entries.indices)
    ok = comm.replicated(final.ok)
    kept = comm.replicated(final.entries)
    return Exchanged(
      total=common.leaves_of(kept, message.ctx),
      dense=common.sum_dense(message.dense, comm),
      weight=comm.size,
      ok=ok,
      delivered=own.keep(alive),
      extras=Extras(wire.words(mine).nbytes, f'gTop-k {topology}'),
    )

  def refuses(compressor):
    if not compressor.joined or compressor.code.takes is not Sparse:
      return 'it merges sparse vectors that were selected globally'
    if compressor.ladder is not None and not compressor.ladder.agreed:
      return 'a merge keeps k entries, and its k depends on the data'
    if not compressor.code.exact:
      return 'its hops carry partial sums, which must not be rounded'
    return None

  return Exchange(f'gTop-k {topology}', run, refuses)


# --- the merge -------------------------------------------------------------


def merge(a: Sparse, b: Sparse, slots: int, limit=None) -> Sparse:
  """a T b: the largest `slots` magnitudes of a + b (`limit`, if fewer)."""
  indices, values = _in_order(a, b)
  return _largest(indices, values, 2, a.space, slots, limit)


def _in_order(a: Sparse, b: Sparse) -> tuple[jax.Array, jax.Array]:
  """(indices, values) of both, by index; where both have one, a's is first.

  Each is in order already, so nothing is sorted: before an entry of a come
  those of a that precede it, and those of b that a binary search counts. What
  is left between them is b.
  """
  indices = jnp.concatenate([a.indices, b.indices])
  values = jnp.concatenate([a.values, b.values])
  if indices.shape[0] < _SMALL:
    indices, values = jax.lax.sort((indices, values), num_keys=1)
    return indices, values
  own = jnp.arange(a.slots) + jnp.searchsorted(b.indices, a.indices)
  is_own = jnp.zeros(indices.shape, bool).at[own].set(True)
  before = jnp.cumsum(is_own)
  place = jnp.arange(indices.shape[0])
  source = jnp.where(is_own, before - 1, a.slots + place - before)
  return indices[source], values[source]


def _largest(indices, values, copies, space, slots, limit) -> Sparse:
  """Adds up entries of equal index (at most `copies`), keeps the largest.

  Sorted by index going in, so that ties keep the lower one; added in a fixed
  order, so that all workers get the same bits.
  """
  total = values
  for shift in range(1, copies):
    same = indices[shift:] == indices[:-shift]
    extra = jnp.where(same, values[shift:], 0.0)
    total = total.at[:-shift].add(extra)
  first = jnp.concatenate([jnp.ones(1, bool), indices[1:] != indices[:-1]]) & (
    indices < space.size
  )
  # An entry counts more than none, also where the sum is zero.
  ranks = jnp.where(first, 1 + thresholds.magnitudes(total), 0)
  places = _places(ranks, slots, slots if limit is None else limit)
  return Sparse(
    total.at[places].get(mode='fill', fill_value=0),
    indices.at[places].get(mode='fill', fill_value=space.size),
    space,
  )


def _places(ranks: jax.Array, slots: int, wanted) -> jax.Array:
  """Where the largest of int32[n] are, in order; n marks an empty slot.

  Args:
    ranks: not negative; what is zero is never taken. Ties keep the first.
    slots: how many places to return, at most n.
    wanted: how many of them to fill, if there are so many.
  """
  size = ranks.shape[0]
  if size < _SMALL:
    found, places = jax.lax.top_k(ranks, slots)
    taken = (found > 0) & (jnp.arange(slots) < wanted)
    return jnp.sort(jnp.where(taken, places, size))
  rows = reductions.in_rows(ranks)
  counts = jnp.asarray(wanted, jnp.int32)[None]
  marks = thresholds.largest(rows, [rows.shape[0]], counts) & (rows > 0)
  places = bitmap.positions(bitmap.pack(marks.reshape(-1)), slots)
  return jnp.minimum(places, size)


def _member(indices: jax.Array, among: jax.Array) -> jax.Array:
  """bool: which indices occur in the sorted `among`."""
  at = jnp.searchsorted(among, indices)
  return among.at[at].get(mode='fill', fill_value=-1) == indices


def _survives(indices: jax.Array, merged: Sparse, mask: jax.Array):
  """Which indices occur in `merged` at a place where mask is True."""
  at = jnp.searchsorted(merged.indices, indices)
  same = merged.indices.at[at].get(mode='fill', fill_value=-1) == indices
  return same & mask.at[at].get(mode='fill', fill_value=False)


def _select(where: jax.Array, a, b):
  return jax.tree.map(lambda x, y: jnp.where(where, x, y), a, b)


def _receive(held: _Held, perm, wire: _Wire) -> _Held:
  return wire.read(wire.comm.permute(wire.words(held), perm))


def _merge_held(a: _Held, b: _Held, wire: _Wire, limit) -> _Held:
  return _Held(merge(a.entries, b.entries, wire.slots, limit), a.ok & b.ok)


# --- topologies: (mine, wire, limit, put_back) -> (final, alive) -----------

_Reduced = tuple[_Held, jax.Array]


def _butterfly(mine: _Held, wire: _Wire, limit, put_back: str) -> _Reduced:
  del put_back  # every worker knows its own survivors anyway
  comm = wire.comm
  workers, rank = comm.size, comm.index()
  core = 1 << (workers.bit_length() - 1)
  extra = workers - core
  held, alive = mine, mine.entries.valid
  # Of the worker that folds into this one, if any.
  folded, folded_alive = mine.entries.indices, alive

  if extra:
    guest = _receive(held, [(core + r, r) for r in range(extra)], wire)
    hosts = rank < extra
    held = _select(hosts, _merge_held(held, guest, wire, limit), held)
    alive &= ~hosts | _member(mine.entries.indices, held.entries.indices)
    folded = guest.entries.indices
    folded_alive = _member(folded, held.entries.indices)
  for j in range(core.bit_length() - 1):
    perm = [(r, r ^ (1 << j)) for r in range(core)]
    partner = _receive(held, perm, wire)
    held = _select(rank < core, _merge_held(held, partner, wire, limit), held)
    alive &= _member(mine.entries.indices, held.entries.indices)
    if extra:
      folded_alive &= _member(folded, held.entries.indices)
  if extra:
    perm = [(r, core + r) for r in range(extra)]
    result, told = _hand_down(held, folded_alive, perm, wire)
    held = _select(rank < core, held, result)
    alive = jnp.where(rank < core, alive, told & mine.entries.valid)
  return held, alive


def _hand_down(held: _Held, mask: jax.Array, perm, wire: _Wire) -> _Reduced:
  """Sends a result, and which of the receiver's k entries are in it."""
  if wire.slots == wire.like.space.size and wire.ctx.rung is None:
    return _receive(held, perm, wire), wire.like.valid  # no merge drops any
  bits = fixed_width.pack(mask.astype(jnp.uint32), 1)
  message = jnp.concatenate([wire.words(held), bits])
  got = wire.comm.permute(message, perm)
  cut = got.shape[0] - bits.shape[0]
  told = fixed_width.unpack(got[cut:], wire.slots, 1) == 1
  return wire.read(got[:cut]), told


def _tree(mine: _Held, wire: _Wire, limit, put_back: str) -> _Reduced:
  comm = wire.comm
  workers, rank = comm.size, comm.index()
  rounds = (workers - 1).bit_length()
  held, history = mine, []
  for j in range(rounds):
    half, pair = 1 << j, 2 << j
    perm = [(r, r - half) for r in range(half, workers, pair)]
    guest = _receive(held, perm, wire)
    hosts = (rank % pair == 0) & (rank + half < workers)
    both = _select(hosts, _merge_held(held, guest, wire, limit), held)
    history.append((held.entries, guest.entries, both.entries, hosts))
    held = both
  # Rank 0 has the result: hand it down the same tree. For exact put-back
  # each parent adds which of its child's entries survived to the end.
  mask = held.entries.valid
  for j in reversed(range(rounds)):
    half, pair = 1 << j, 2 << j
    before, child, merged, hosts = history[j]
    perm = [(r - half, r) for r in range(half, workers, pair)]
    receives = rank % pair == half
    if put_back == 'paper':
      got = _receive(held, perm, wire)
    else:
      told = _survives(child.indices, merged, mask)
      got, below = _hand_down(held, told, perm, wire)
      kept = _survives(before.indices, merged, mask)
      mask = jnp.where(hosts, kept, jnp.where(receives, below, mask))
    held = _select(receives, got, held)
  return held, mask & mine.entries.valid


def _all_gather(mine: _Held, wire: _Wire, limit, put_back: str) -> _Reduced:
  del put_back  # the same: there are no inner merges
  messages = wire.comm.gather(wire.words(mine))
  everyone = jax.vmap(wire.read)(messages)
  indices, values = jax.lax.sort(
    (
      everyone.entries.indices.reshape(-1),
      everyone.entries.values.reshape(-1),
    ),
    num_keys=1,
  )
  entries = _largest(
    indices, values, wire.comm.size, wire.like.space, wire.slots, limit
  )
  final = _Held(entries, jnp.all(everyone.ok))
  return final, _member(mine.entries.indices, entries.indices)
