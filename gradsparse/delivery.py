"""What travels, and what of it arrived: sparse vectors and deliveries.

The leaves that a scheme compresses are numbered through in `jax.tree.leaves`
order, as if they were joined to one vector of N elements. A message is one
sorted sparse vector over that joined space, whether the scheme selected leaf
by leaf or globally; nothing is ever copied together for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Space:
  """The joined index space of some leaves: shapes only, known to the tracer.

  Attributes:
    shapes: the leaves' shapes.
    limits: for each leaf, the most entries of a message that can fall in it.
  """

  shapes: tuple[tuple[int, ...], ...]
  limits: tuple[int, ...]

  @property
  def sizes(self) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in self.shapes)

  @property
  def offsets(self) -> tuple[int, ...]:
    """Where each leaf begins in the joined space, and N at the end."""
    out = [0]
    for size in self.sizes:
      out.append(out[-1] + size)
    return tuple(out)

  @property
  def size(self) -> int:
    return sum(self.sizes)

  def split(self, joined: jax.Array) -> list[jax.Array]:
    """A vector over the joined space as the leaves it consists of."""
    return [
      joined[start : start + math.prod(shape)].reshape(shape)
      for start, shape in zip(self.offsets[:-1], self.shapes, strict=True)
    ]

  def leaf_of(self, indices: jax.Array) -> jax.Array:
    """Number of the leaf that holds each index, int32; empties get the last."""
    if len(self.shapes) == 1:
      return jnp.zeros_like(indices)
    bounds = jnp.asarray(self.offsets[1:-1], jnp.int32)
    return jnp.searchsorted(bounds, indices, side='right').astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse:
  """k entries of the joined vector, sorted by index.

  Attributes:
    values: float32[k].
    indices: int32[k], ascending; an index of `space.size` marks an empty
      slot (whose value is zero). -1 would wrap around in a scatter.
    space: the leaves that the indices count through.
  """

  values: jax.Array
  indices: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})

  @property
  def valid(self) -> jax.Array:
    """bool[k]: the slots that are not empty."""
    return self.indices < self.space.size

  def keep(self, mask: jax.Array) -> Sparse:
    """Empties the slots where mask is False.

    That leaves holes, so the order must be restored by `sort` before anything
    relies on it (`windows` does), unless none or all are emptied.
    """
    return Sparse(
      jnp.where(mask, self.values, 0.0),
      jnp.where(mask, self.indices, self.space.size),
      self.space,
    )

  def sort(self) -> Sparse:
    """The same entries in order of index, the empty slots last."""
    indices, values = jax.lax.sort((self.indices, self.values), num_keys=1)
    return Sparse(values, indices, self.space)

  def windows(self) -> list[Window]:
    """The entries leaf by leaf, each with indices into its own leaf.

    Needs sorted indices.
    """
    space, count = self.space, self.indices.shape[0]
    offsets = jnp.asarray(space.offsets[:-1], jnp.int32)
    starts = jnp.searchsorted(self.indices, offsets).astype(jnp.int32)
    out = []
    for leaf, size in enumerate(space.sizes):
      width = min(space.limits[leaf], size, count)

      # The slice is clamped at the end of the message, so it can begin with
      # entries of earlier leaves; those and later ones count as empty.
      def cut(x, s=starts[leaf], w=width):
        return jax.lax.dynamic_slice_in_dim(x, s, w)

      indices = cut(self.indices) - space.offsets[leaf]
      inside = (indices >= 0) & (indices < size)
      out.append(
        Window(
          jnp.where(inside, cut(self.values), 0.0),
          jnp.where(inside, indices, size),
          size,
        )
      )
    return out

  def add_to(self, joined: jax.Array) -> jax.Array:
    """Adds the entries to a vector over the joined space."""
    return joined.at[self.indices].add(self.values, mode='drop')

  def dense(self) -> list[jax.Array]:
    """The leaves it stands for, float32, zero where nothing was sent."""
    joined = jnp.zeros(self.space.size, jnp.float32)
    return self.space.split(self.add_to(joined))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
  """The entries of one leaf: a delivery of some coordinates.

  Attributes:
    values: float32[w].
    indices: int32[w] into the flattened leaf, distinct; leaf size = empty.
    size: elements of the leaf.
  """

  values: jax.Array
  indices: jax.Array
  size: int = dataclasses.field(metadata={'static': True})
  whole = False

  def only_if(self, arrived: jax.Array) -> Window:
    """The entries, or none at all."""
    return Window(
      jnp.where(arrived, self.values, 0.0),
      jnp.where(arrived, self.indices, self.size),
      self.size,
    )

  def count(self) -> jax.Array:
    """How many entries there are, int32 scalar."""
    return jnp.sum(self.indices < self.size, dtype=jnp.int32)

  def add_to(self, flat: jax.Array) -> jax.Array:
    """Adds the entries to a flat leaf."""
    return flat.at[self.indices].add(self.values, mode='drop')

  def update(
    self, fn: Callable[..., jax.Array], x: jax.Array, *others: jax.Array
  ) -> jax.Array:
    """x_i <- fn(x_i, delivered_i, *others_i) where something was delivered."""

    def at(a):
      return a.reshape(-1).at[self.indices].get(mode='fill', fill_value=0)

    new = fn(at(x), self.values, *map(at, others))
    flat = x.reshape(-1).at[self.indices].set(new, mode='drop')
    return flat.reshape(x.shape)

  def dense(self, shape: Sequence[int]) -> jax.Array:
    """float32 array of `shape`, zero where nothing was delivered."""
    flat = jnp.zeros(math.prod(shape), jnp.float32)
    return self.add_to(flat).reshape(shape)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Full:
  """A delivery of every coordinate of a leaf.

  Attributes:
    values: float32, leaf-shaped: what of this worker's is in the mean.
    whole: the leaf was not compressed at all (it stays dense), so what
      belongs to compression, such as factor masking, does not apply.
  """

  values: jax.Array
  whole: bool = dataclasses.field(default=False, metadata={'static': True})

  def only_if(self, arrived: jax.Array) -> Full:
    """The values, or zeros."""
    return Full(jnp.where(arrived, self.values, 0.0), self.whole)

  def update(
    self, fn: Callable[..., jax.Array], x: jax.Array, *others: jax.Array
  ) -> jax.Array:
    """fn(x, delivered, *others), everywhere."""
    return fn(x, self.values, *others)

  def dense(self, shape: Sequence[int]) -> jax.Array:
    return self.values.reshape(tuple(shape))


Delivered = Window | Full
