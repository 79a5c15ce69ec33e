"""Message payloads.

Indices are those of the concatenated leaves that a scheme compresses, in the
order of `jax.tree.leaves`: one vector of N elements. A scheme sends a `Sparse`
(few elements), `Marked` (many), `Leaves` (all) or `Parts` (all, cut for a
reduce-scatter). All have the same methods:

  zeros()        the zero total: a vector of all leaves, a list of leaves, or
                 rows
  add_to(total)  the total with these values added
  count()        the number of coordinates
  only_if(sent)  the payload if `sent`, else an empty one
  deliveries(runs)  the delivered values of each leaf, for the memory; runs of
                 leaves may be merged, see `Space.merged`
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any, Self

from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.sockets import deliveries
from gradsparse.sockets.deliveries import Delivered
from gradsparse.sockets.deliveries import Full
from gradsparse.sockets.space import Shape
from gradsparse.sockets.space import Space
import jax
import jax.numpy as jnp


class _Payload:
  """The base of all payloads."""

  def only_if(self, arrived: jax.Array) -> Self:
    """The payload if it arrived, else zeros."""
    return jax.tree.map(
      lambda x: jnp.where(arrived, x, jnp.zeros_like(x)), self
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse(_Payload):
  """k entries of the concatenated leaves, sorted by index, empty slots last.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> space = gs.extend.Space.whole([(4,)])
  >>> sparse = gs.extend.Sparse.of(
  ...   jnp.array([0.0, 2.0, 5.0]), jnp.array([4, 3, 1]), space)
  >>> print(sparse.indices, int(sparse.count()), sparse.add_to(sparse.zeros()))
  [1 3 4] 2 [0. 5. 0. 2.]

  Attributes:
    values: float32[k].
    indices: int32[k], ascending. The index `space.size` marks an empty slot,
      whose value is zero. (-1 would wrap around in a scatter.)
    space: the leaves that the indices point into.
    per_chunk: (elements, entries) of a chunk, if all slots are filled with this
      many entries of each chunk of each leaf. A leaf's last, short chunk has
      the rest of its `limits`.
  """

  values: jax.Array
  indices: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})
  per_chunk: tuple[int, int] | None = dataclasses.field(
    default=None, metadata={'static': True}
  )

  @property
  def slots(self) -> int:
    """k, the most entries; static."""
    return self.indices.shape[0]

  @property
  def valid(self) -> jax.Array:
    """bool[k]: the slots that are not empty."""
    return self.indices < self.space.size

  @staticmethod
  def of(values: jax.Array, indices: jax.Array, space: Space) -> Sparse:
    """Sorts entries; the index `space.size` is an empty slot."""
    indices, values = jax.lax.sort((indices, values), num_keys=1)
    return Sparse(values, indices, space)

  def keep(self, mask: jax.Array) -> Sparse:
    """The entries where mask (bool[k]) is True, and empty slots after them."""
    mask &= self.valid
    slots = mask.shape[0]
    to = jnp.where(mask, jnp.cumsum(mask) - 1, slots)
    return Sparse(
      jnp.zeros_like(self.values).at[to].set(self.values, mode='drop'),
      jnp.full_like(self.indices, self.space.size)
      .at[to]
      .set(self.indices, mode='drop'),
      self.space,
    )

  def count(self) -> jax.Array:
    """The number of entries, int32 scalar."""
    return jnp.sum(self.valid, dtype=jnp.int32)

  def only_if(self, arrived: jax.Array) -> Sparse:
    """The entries if they arrived, else empty slots."""
    return dataclasses.replace(
      self,
      values=jnp.where(arrived, self.values, 0.0),
      indices=jnp.where(arrived, self.indices, self.space.size),
    )

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """The entries leaf by leaf: small leaves dense, windows of others."""
    space = self.space.merged(runs)
    return deliveries.of_entries(
      self.values, self.indices, space.shapes, space.limits
    )

  def senders(self, workers: int) -> Sparse:
    """The same entries, each with the value 1, of a type that counts `workers`.

    CPUs count in uint8 if it suffices: a smaller new array takes less time.
    """
    narrow = platforms.reads_singly() and workers < 256
    kind = jnp.uint8 if narrow else jnp.float32
    return dataclasses.replace(self, values=self.valid.astype(kind))

  def as_marked(self) -> Marked:
    """The entries as a `Marked`, whose shape does not depend on the slots."""
    there = jnp.zeros(self.space.size, bool)
    there = there.at[self.indices].set(True, mode='drop')
    whole = Space.whole(self.space.shapes)
    return Marked(self.add_to(self.zeros()), there, whole)

  def zeros(self) -> jax.Array:
    """Zeros of the values' type, a vector of all leaves."""
    return jnp.zeros(self.space.size, self.values.dtype)

  def add_to(self, total: jax.Array) -> jax.Array:
    """Adds the entries to a vector of all leaves."""
    return total.at[self.indices].add(self.values, mode='drop')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Marked(_Payload):
  """Many elements of the concatenated leaves, marked in the full vector.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> values, space = jnp.array([0.0, 5.0, 2.0]), gs.extend.Space.whole([(3,)])
  >>> marked = gs.extend.Marked(values, values > 0, space)
  >>> print(int(marked.count()), marked.add_to(marked.zeros()))
  2 [0. 5. 2.]

  Attributes:
    values: float32[N], zero where not marked.
    marks: bool[N].
    space: the leaves.
  """

  values: jax.Array
  marks: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})

  def zeros(self) -> jax.Array:
    """float32 zeros, a vector of all leaves."""
    return jnp.zeros(self.space.size, jnp.float32)

  def add_to(self, total: jax.Array) -> jax.Array:
    """Adds the values to a vector of all leaves."""
    return total + self.values

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    return reductions.count([self.marks])

  def senders(self, workers: int) -> Marked:
    """The same elements, each with the value 1."""
    del workers
    return dataclasses.replace(self, values=self.marks.astype(jnp.float32))

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """Each leaf, dense."""
    space = self.space.merged(runs)
    both = zip(space.split(self.values), space.split(self.marks), strict=True)
    return [Full(x, m) for x, m in both]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Leaves(_Payload):
  """Every element of some leaves.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> leaves = gs.extend.Leaves([jnp.array([[1.0, 2.0]]), jnp.array([3.0])])
  >>> print(leaves.count(), leaves.joined())
  3 [1. 2. 3.]

  Attributes:
    arrays: float32 arrays of the leaves' shapes. Where a code decodes a
      message, perhaps `wire.planar.Slabs` of a leaf.
  """

  arrays: list[Any]

  def zeros(self) -> list[jax.Array]:
    """float32 zeros like the leaves."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), self.arrays)

  def add_to(self, total: list[jax.Array]) -> list[jax.Array]:
    """Adds leaf by leaf."""
    return jax.tree.map(jnp.add, total, self.arrays)

  def count(self) -> int:
    """The number of elements."""
    return sum(x.size for x in self.arrays)

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """Each leaf whole."""
    return deliveries.joined([Full(x) for x in self.arrays], runs)

  def joined(self) -> jax.Array:
    """float32[N], the concatenated leaves."""
    return joining.concat([x.reshape(-1) for x in self.arrays])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Parts(_Payload):
  """Every element of some leaves, concatenated and cut into equal rows.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> leaves = gs.extend.Leaves([jnp.array([[1.0, 2.0]]), jnp.array([3.0])])
  >>> print(gs.extend.Parts.cut(leaves, number=2, unit=1).rows)
  [[1. 2.]
   [3. 0.]]

  Attributes:
    rows: float32[rows, n]; elements beyond the last leaf are padding.
    first: int32, number of the first row.
    space: the leaves.
  """

  rows: jax.Array
  first: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})

  @staticmethod
  def of(rows: jax.Array, shapes: Sequence[Shape]) -> Parts:
    """All rows of leaves of these shapes."""
    return Parts(rows, jnp.int32(0), Space.whole(shapes))

  @staticmethod
  def cut(leaves: Leaves, number: int, unit: int) -> Parts:
    """Cuts leaves into `number` rows, each a multiple of `unit` long."""
    joined = leaves.joined()
    size = joined.shape[0]
    length = -(-size // (number * unit)) * unit
    padded = jnp.pad(joined, (0, number * length - size))
    shapes = [x.shape for x in leaves.arrays]
    return Parts.of(padded.reshape(number, length), shapes)

  @property
  def valid(self) -> jax.Array:
    """bool, like rows: False in the padding."""
    number, length = self.rows.shape
    begin = length * (self.first + jnp.arange(number))
    return begin[:, None] + jnp.arange(length)[None] < self.space.size

  def zeros(self) -> jax.Array:
    """float32 zeros like the rows."""
    return jnp.zeros(self.rows.shape, jnp.float32)

  def add_to(self, total: jax.Array) -> jax.Array:
    """Adds row by row."""
    return total + self.rows

  def leaves(self) -> list[jax.Array]:
    """The leaves that were cut."""
    return self.space.split(self.rows.reshape(-1))

  def count(self) -> int:
    """The number of elements without padding."""
    return self.space.size

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """Each leaf whole."""
    rows = self.rows.reshape(-1)
    return [Full(x) for x in self.space.merged(runs).split(rows)]


Sent = Sparse | Marked | Leaves | Parts
