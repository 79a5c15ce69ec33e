"""gTop-k: pairs of workers merge their k entries and keep the k largest.

The merge  a T b = the k largest magnitudes of the sparse sum a + b  is
commutative and deterministic: ties keep the lower index. `TOPOLOGIES` maps
names to orders of merges:

  'butterfly'  in round j a worker exchanges with rank XOR 2^j. After log2 P
               rounds every worker has the same result. A worker takes part in
               every merge of its own contribution, so it knows what was
               dropped. P need not be a power of two: with m = 2^floor(log2 P),
               rank r >= m folds into r - m first and gets the result last.

No message is larger than the full gradient: if k entries with their indices
would be, the message has the gradient's N numbers, of which at most k are
entries. (A mask of k bits may be added on the way back.)

`PUT_BACK` maps names to rules for the entries that a worker gets back: 'exact'
returns those that any merge of its own contribution dropped.

References:
  Shi et al., arXiv 1901.04359, algorithms 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.backend import reductions
from gradsparse.backend import searching
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

# Marks in a vector: -0.0 for no entry, a NaN for a contributor that is not ok.
_NO_ENTRY = np.uint32(0x80000000)
_NOT_OK = np.uint32(0x7FC00000)


class Held(NamedTuple):
  """A partial result: entries, and whether all its contributors are ok."""

  entries: Sparse
  ok: jax.Array


class Wire(NamedTuple):
  """The format of a hop's messages.

  Attributes:
    code: the code of entries.
    ctx: the context of the message.
    like: the entries of this worker.
    comm: the workers.
    spread: whether a message is the full vector of N numbers, because that
      takes no more words. -0.0 marks an element without an entry. A NaN in the
      first element marks a contributor that is not ok.
  """

  code: Code
  ctx: Context
  like: Sparse
  comm: Comm
  spread: bool

  @property
  def slots(self) -> int:
    return self.like.slots

  def words(self, held: Held) -> jax.Array:
    """The message of a partial result."""
    if not self.spread:
      packed = self.code.pack(held.entries, self.ctx)
      return common.in_rows(common.to_words(packed, held.ok.astype(jnp.uint32)))
    entries = _unsigned_zeros(held.entries)
    bits = jax.lax.bitcast_convert_type(entries.values, jnp.uint32)
    whole = jnp.full(entries.space.size, _NO_ENTRY, jnp.uint32)
    whole = whole.at[entries.indices].set(bits, mode='drop')
    whole = whole.at[0].set(jnp.where(held.ok, whole[0], _NOT_OK))
    return common.in_rows(whole)

  def read(self, words: jax.Array) -> Held:
    """Inverse of `words`."""
    if not self.spread:
      like = jax.eval_shape(lambda e: self.code.pack(e, self.ctx), self.like)
      entries = self.code.unpack(
        common.from_words(words, like), self.like, self.ctx
      )
      return Held(entries, words.reshape(-1)[like.size] == 1)
    size = self.like.space.size
    words = words.reshape(-1)[:size]
    marks = bitmap.pack(words != _NO_ENTRY)
    indices = jnp.minimum(bitmap.positions(marks, self.slots), size)
    bits = words.at[indices].get(mode='fill', fill_value=0)
    values = jax.lax.bitcast_convert_type(bits, jnp.float32)
    entries = Sparse(values, indices, self.like.space)
    return Held(entries, words[0] != _NOT_OK)


def _unsigned_zeros(entries: Sparse) -> Sparse:
  values = jnp.where(entries.values == 0, 0.0, entries.values)
  return dataclasses.replace(entries, values=values)


def gtopk(topology: str = 'butterfly', put_back: str = 'exact') -> Exchange:
  """An exchange of sparse messages whose sum keeps k coordinates.

  >>> import gradsparse as gs
  >>> extend = gs.extend
  >>> top_k = extend.compressors.top_k(
  ...   0.01, extend.codes.sparse(), scope='global')
  >>> exchange = extend.exchanges.gtopk('tree')
  >>> exchange.name, exchange.refuses(top_k)
  ('gTop-k tree', None)

  Args:
    topology: a key of `TOPOLOGIES`.
    put_back: a key of `PUT_BACK`.

  Raises:
    TypeError: topology or put_back is not text.
    ValueError: topology or put_back is unknown.
  """
  arguments.one_of('topology', topology, TOPOLOGIES)
  arguments.one_of('put_back', put_back, PUT_BACK)
  reduce, delivered = TOPOLOGIES[topology], PUT_BACK[put_back]

  def run(message: Message, comm: Comm) -> Exchanged:
    own = message.rounded
    spread = own.space.size <= 1 + message.words.size
    if spread:
      own = _unsigned_zeros(own)
    wire = Wire(message.code, message.ctx, own, comm, spread)
    # With a schedule inside the program, a worker may fill fewer than its
    # slots: merges keep that k, which is equal everywhere.
    limit = None
    if message.ctx.rung is not None:
      limit = comm.uniform(jnp.sum(own.valid))
    mine = Held(own, message.ok)
    final, alive = reduce(mine, wire, limit, delivered is None)
    if delivered is not None:
      alive = delivered(own, final.entries)
    ok = comm.replicated(final.ok)
    kept = comm.replicated(final.entries)
    return Exchanged(
      total=common.total_of(kept, message.ctx),
      dense=comm.sum(message.dense),
      weight=comm.size,
      ok=ok,
      delivered=own.keep(alive),
      extras=Extras(wire.words(mine).nbytes, f'gTop-k {topology}'),
    )

  def refuses(compressor):
    if not compressor.selects_globally or not _takes_sparse(
      compressor.code.takes
    ):
      return (
        'gTop-k merges vectors that were selected globally, so it needs a code '
        'that takes Sparse (Code.takes) and a compressor with '
        'selects_globally=True'
      )
    if compressor.ladder is not None and not compressor.ladder.agreed:
      return 'its k depends on the data, but each merge must keep the same k'
    if not compressor.code.is_exact:
      return 'its code rounds, but hops of gTop-k carry partial sums'
    return None

  return Exchange(f'gTop-k {topology}', run, refuses)


def _takes_sparse(takes: Any) -> bool:
  return Sparse in (takes if isinstance(takes, tuple) else (takes,))


# --- the merge -------------------------------------------------------------


def merge(a: Sparse, b: Sparse, slots: int, limit=None) -> Sparse:
  """a T b: the largest `slots` magnitudes of a + b (`limit`, if fewer)."""
  indices, values = _in_order(a, b)
  return largest(indices, values, 2, a.space, slots, limit)


def _in_order(a: Sparse, b: Sparse) -> tuple[jax.Array, jax.Array]:
  """(indices, values) of both, by index; of equal indices, a's comes first.

  Both are sorted already, so they are merged without a sort. The place of an
  entry of a is the number of a's entries before it plus the number of b's,
  which a binary search counts. The entries of b fill the other places.
  """
  indices = jnp.concatenate([a.indices, b.indices])
  values = jnp.concatenate([a.values, b.values])
  own = jnp.arange(a.slots) + searching.searchsorted(b.indices, a.indices)
  is_own = jnp.zeros(indices.shape, bool).at[own].set(True)
  before = jnp.cumsum(is_own)
  place = jnp.arange(indices.shape[0])
  source = jnp.where(is_own, before - 1, a.slots + place - before)
  return indices[source], values[source]


def largest(indices, values, copies, space, slots, limit) -> Sparse:
  """Sums entries of equal index (at most `copies`) and keeps the largest.

  Entries are sorted by index, so that ties keep the lower one. They are added
  in a fixed order, so that all workers get the same bits.
  """
  total = values
  for shift in range(1, copies):
    same = indices[shift:] == indices[:-shift]
    extra = jnp.where(same, values[shift:], 0.0)
    total = total.at[:-shift].add(extra)
  first = jnp.concatenate([jnp.ones(1, bool), indices[1:] != indices[:-1]]) & (
    indices < space.size
  )
  # An entry ranks above an empty slot, even if its sum is zero.
  ranks = jnp.where(first, 1 + thresholds.magnitudes(total), 0)
  places = _places(ranks, slots, slots if limit is None else limit)
  return Sparse(
    total.at[places].get(mode='fill', fill_value=0),
    indices.at[places].get(mode='fill', fill_value=space.size),
    space,
  )


def _places(ranks: jax.Array, slots: int, wanted) -> jax.Array:
  """The places of the largest of int32[n], in order; n marks an empty slot.

  Args:
    ranks: not negative; zeros are never taken. Ties keep the first.
    slots: how many places to return, at most n.
    wanted: how many of them to fill, if there are enough.
  """
  rows = reductions.in_rows(ranks)
  counts = jnp.asarray(wanted, jnp.int32)[None]
  marks = thresholds.largest(rows, [rows.shape[0]], counts) & (rows > 0)
  places = bitmap.positions(bitmap.pack(marks.reshape(-1)), slots)
  return jnp.minimum(places, ranks.shape[0])


def member(indices: jax.Array, among: jax.Array) -> jax.Array:
  """bool: which indices occur in the sorted `among`."""
  at = searching.searchsorted(among, indices)
  return among.at[at].get(mode='fill', fill_value=-1) == indices


def select(where: jax.Array, a: Held, b: Held) -> Held:
  """`a` where a scalar is True, else `b`."""
  return jax.tree.map(lambda x, y: jnp.where(where, x, y), a, b)


def receive(held: Held, perm, wire: Wire) -> Held:
  """Sends a partial result along `perm`, (from, to) pairs."""
  return wire.read(wire.comm.permute(wire.words(held), perm))


def merge_held(a: Held, b: Held, wire: Wire, limit) -> Held:
  """Merges two partial results; of equal indices, a's entry is added first."""
  return Held(merge(a.entries, b.entries, wire.slots, limit), a.ok & b.ok)


# --- topologies -------------------------------------------------------------

# The final result, and which of this worker's k entries no merge dropped.
Reduced = tuple[Held, jax.Array]
# (this worker's entries, the wire, how many entries a merge keeps or None for
# all slots, whether to track which entries no merge dropped).
Topology = Callable[[Held, Wire, jax.Array | None, bool], Reduced]
# (this worker's entries, the final ones) -> which of the former count as
# delivered. None instead of a function: those that no merge dropped.
PutBack = Callable[[Sparse, Sparse], jax.Array]


def _butterfly(mine: Held, wire: Wire, limit, tracked: bool) -> Reduced:
  del tracked  # every worker knows its own surviving entries anyway
  comm = wire.comm
  workers, rank = comm.size, comm.index()
  core = 1 << (workers.bit_length() - 1)
  extra = workers - core
  held, alive = mine, mine.entries.valid
  # The entries of the worker that folds into this one, if any.
  folded, folded_alive = mine.entries.indices, alive

  if extra:
    guest = receive(held, [(core + r, r) for r in range(extra)], wire)
    hosts = rank < extra
    held = select(hosts, merge_held(held, guest, wire, limit), held)
    alive &= ~hosts | member(mine.entries.indices, held.entries.indices)
    folded = guest.entries.indices
    folded_alive = member(folded, held.entries.indices)
  for j in range(core.bit_length() - 1):
    perm = [(r, r ^ (1 << j)) for r in range(core)]
    partner = receive(held, perm, wire)
    held = select(rank < core, merge_held(held, partner, wire, limit), held)
    alive &= member(mine.entries.indices, held.entries.indices)
    if extra:
      folded_alive &= member(folded, held.entries.indices)
  if extra:
    perm = [(r, core + r) for r in range(extra)]
    result, told = hand_down(held, folded_alive, perm, wire)
    held = select(rank < core, held, result)
    alive = jnp.where(rank < core, alive, told & mine.entries.valid)
  return held, alive


def hand_down(held: Held, mask: jax.Array, perm, wire: Wire) -> Reduced:
  """Sends a result, and which of the receiver's k entries are in it."""
  if wire.slots == wire.like.space.size and wire.ctx.rung is None:
    return receive(held, perm, wire), wire.like.valid  # no merge drops entries
  bits = fixed_width.pack(mask.astype(jnp.uint32), 1)
  words = wire.words(held).reshape(-1)
  message = common.in_rows(jnp.concatenate([words, bits]))
  got = wire.comm.permute(message, perm).reshape(-1)
  end = words.size + bits.size
  told = fixed_width.unpack(got[words.size : end], wire.slots, 1) == 1
  return wire.read(got[: words.size]), told


TOPOLOGIES: dict[str, Topology] = {'butterfly': _butterfly}
PUT_BACK: dict[str, PutBack | None] = {'exact': None}
