"""What arrived of each leaf.

A memory lets go of it leaf by leaf, and need not ask which of three forms it
has: all of a leaf (`Full`), a few coordinates (`Window`), or a few coordinates
written as a whole leaf (`Spread`). All have the same methods:

  plus(x, factor)         x and `factor` times what was delivered
  update(fn, x, *others)  fn(x, delivered, *others) where something was
  dense(shape)            a leaf, zero where nothing was delivered
  whole                   whether the leaf stays dense and was not compressed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math

from gradsparse import opaque
import jax
import jax.numpy as jnp
import numpy as np

# Leaves below this many elements are written out together. A scatter into each
# of them would take long to compile: a model has hundreds of biases and scales.
_SMALL = 1 << 14


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

  def add_to(self, flat: jax.Array) -> jax.Array:
    """Adds the entries to a flat leaf."""
    return flat.at[self.indices].add(self.values, mode='drop')

  def plus(self, x: jax.Array, factor: float = 1.0) -> jax.Array:
    """x and `factor` times what was delivered."""
    flat = x.reshape(-1).at[self.indices].add(factor * self.values, mode='drop')
    return flat.reshape(x.shape)

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
    whole: the leaf stays dense. It was not compressed, so nothing that
      belongs to compression applies to it, such as factor masking.
  """

  values: jax.Array
  whole: bool = dataclasses.field(default=False, metadata={'static': True})

  def plus(self, x: jax.Array, factor: float = 1.0) -> jax.Array:
    """x and `factor` times what was delivered."""
    return x + factor * self.values

  def update(
    self, fn: Callable[..., jax.Array], x: jax.Array, *others: jax.Array
  ) -> jax.Array:
    """fn(x, delivered, *others), everywhere."""
    return fn(x, self.values, *others)

  def dense(self, shape: Sequence[int]) -> jax.Array:
    return self.values.reshape(tuple(shape))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Spread:
  """A delivery of some coordinates, written as a whole leaf.

  Attributes:
    values: float32, leaf-shaped; zero where nothing was delivered.
    there: bool, leaf-shaped: where something was.
  """

  values: jax.Array
  there: jax.Array
  whole = False

  def plus(self, x: jax.Array, factor: float = 1.0) -> jax.Array:
    """x and `factor` times what was delivered."""
    return jnp.where(self.there, x + factor * self.values, x)

  def update(
    self, fn: Callable[..., jax.Array], x: jax.Array, *others: jax.Array
  ) -> jax.Array:
    """x_i <- fn(x_i, delivered_i, *others_i) where something was delivered."""
    return jnp.where(self.there, fn(x, self.values, *others), x)

  def dense(self, shape: Sequence[int]) -> jax.Array:
    """float32 array of `shape`, zero where nothing was delivered."""
    return self.values.reshape(tuple(shape))


Delivered = Window | Full | Spread


class Room:
  """Leaves, of which the small ones lie side by side in one vector.

  Args:
    shapes: of the leaves.
    joined: whether all count as small.
  """

  def __init__(self, shapes: Sequence[tuple[int, ...]], joined: bool = False):
    self.shapes = shapes
    self.sizes = [math.prod(shape) for shape in shapes]
    self.small = [
      i for i, size in enumerate(self.sizes) if joined or size < _SMALL
    ]
    if len(self.small) < 2 and not joined:
      self.small = []
    self.large = [i for i in range(len(shapes)) if i not in set(self.small)]
    self._begins = np.cumsum([0, *(self.sizes[i] for i in self.small)])
    self.size = int(self._begins[-1])

  def places(self, indices: jax.Array) -> jax.Array:
    """Where in the vector of small leaves each index of the joined space is.

    Args:
      indices: int32; those of other leaves and of empty slots get `size`.
    """
    if not self.large:
      return indices
    ends = np.cumsum(self.sizes)
    # Where each leaf begins, in the joined space less where among the small.
    shift = np.zeros(len(self.sizes), np.int64)
    is_small = np.zeros(len(self.sizes) + 1, bool)
    for begin, i in zip(self._begins, self.small, strict=False):
      shift[i] = ends[i] - self.sizes[i] - begin
      is_small[i] = True
    leaf = jnp.searchsorted(jnp.asarray(ends, jnp.int32), indices, side='right')
    return jnp.where(
      jnp.asarray(is_small)[leaf],
      indices - jnp.asarray(shift, jnp.int32)[leaf],
      self.size,
    )

  def leaves(self, flat: jax.Array) -> dict[int, jax.Array]:
    """The small leaves, by their numbers, of a vector of all of them."""
    cut = opaque.cut(flat, [self.shapes[i] for i in self.small])
    return dict(zip(self.small, cut, strict=True))

  def spread(self, values: jax.Array, indices: jax.Array) -> list[Spread]:
    """The entries of the small leaves, in their order; see `of_entries`."""
    to = self.places(indices)
    flat = jnp.zeros(self.size, jnp.float32).at[to].set(values, mode='drop')
    there = jnp.zeros(self.size, bool).at[to].set(True, mode='drop')
    both = self.leaves(flat), self.leaves(there)
    return [Spread(both[0][i], both[1][i]) for i in self.small]

  def windows(
    self, values: jax.Array, indices: jax.Array, limits: Sequence[int]
  ) -> dict[int, Window]:
    """The entries of each large leaf, by its number; see `of_entries`."""
    if not self.large or not indices.size:
      return {i: Window(values, indices, self.sizes[i]) for i in self.large}
    offsets = jnp.asarray(np.cumsum([0, *self.sizes])[self.large], jnp.int32)
    starts = jnp.searchsorted(indices, offsets).astype(jnp.int32)
    message = opaque.computed_once(
      (values, indices, starts, offsets), len(self.large)
    )
    # Windows of leaves of one shape differ in this number alone.
    places = opaque.numbers(range(len(self.large)), indices)
    out = {}
    for place, i in zip(places, self.large, strict=True):
      width = min(limits[i], self.sizes[i], indices.shape[0])
      out[i] = _window(*message, place, width, self.sizes[i])
    return out


def of_entries(
  values: jax.Array,
  indices: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  limits: Sequence[int],
) -> list[Delivered]:
  """Entries of the joined vector, leaf by leaf.

  Args:
    values: float32[k].
    indices: int32[k], ascending; the number of all elements is an empty slot.
    shapes: of the leaves.
    limits: for each leaf, the most entries that can fall in it.
  """
  room = Room(shapes)
  out: dict[int, Delivered] = {}
  if room.small:
    out |= zip(room.small, room.spread(values, indices), strict=True)
  out |= room.windows(values, indices, limits)
  return [out[i] for i in range(len(shapes))]


def _window(
  values: jax.Array,
  indices: jax.Array,
  starts: jax.Array,
  offsets: jax.Array,
  place: jax.Array,
  width: int,
  size: int,
) -> Window:
  """The entries of the large leaf of this number."""
  # The slice is clamped at the end of the message, so it can begin with
  # entries of earlier leaves; those and later ones count as empty.
  start, offset = starts[place], offsets[place]
  own = jax.lax.dynamic_slice_in_dim(indices, start, width) - offset
  inside = (own >= 0) & (own < size)
  found = jax.lax.dynamic_slice_in_dim(values, start, width)
  return Window(
    jnp.where(inside, found, 0.0), jnp.where(inside, own, size), size
  )
