"""The delivered values of each leaf.

A memory subtracts deliveries leaf by leaf. A delivery has one of two forms: a
few coordinates (`Window`), or a whole leaf (`Full`), of which all coordinates
or some are delivered. Both have the same methods:

  plus(x, factor)         x plus `factor` times the delivered values
  update(fn, x, *others)  fn(x, delivered, *others) at delivered elements
  dense(shape)            the leaf, zero at other elements
  is_dense                whether the leaf stays dense and was not compressed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import searching
from gradsparse.backend import storage
import jax
import jax.numpy as jnp
import numpy as np

# Leaves below this many elements share one scatter. One scatter for each would
# take long to compile: a model has hundreds of biases and scales.
_SMALL = joining.SMALL
# Options of a scatter that drops entries of other leaves.
_OWN: Mapping[str, Any] = {'mode': 'drop', 'wrap_negative_indices': False}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
  """The entries of one leaf: a delivery of some coordinates.

  Entries with indices that are negative or >= `size` belong to other leaves,
  and are ignored.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> window = gs.extend.Window(jnp.array([5.0, 2.0]), jnp.array([0, 2]), 3)
  >>> print(window.dense((3,)))
  [5. 0. 2.]

  Attributes:
    entries: float32[w], the values.
    indices: int32[w] into the flattened leaf, distinct.
    size: elements of the leaf.
  """

  entries: jax.Array
  indices: jax.Array
  size: int = dataclasses.field(metadata={'static': True})
  is_dense = False

  @property
  def values(self) -> jax.Array:
    """float32[w], zero for entries of other leaves."""
    own = (self.indices >= 0) & (self.indices < self.size)
    return jnp.where(own, self.entries, 0.0)

  def plus(self, x: jax.Array, factor: float = 1.0) -> jax.Array:
    """x plus `factor` times the delivered values."""
    stored, places = storage.vector(x), self._places(x.shape)
    added = stored.at[places].add(factor * self.entries, **_OWN)
    return storage.leaf(added, x.shape)

  def update(
    self, fn: Callable[..., jax.Array], x: jax.Array, *others: jax.Array
  ) -> jax.Array:
    """x_i <- fn(x_i, delivered_i, *others_i) at delivered elements i."""
    places = self._places(x.shape)

    def at(stored):
      return stored.at[places].get(
        mode='fill', fill_value=0, wrap_negative_indices=False
      )

    stored, *beside = map(storage.vector, (x, *others))
    new = fn(at(stored), self.entries, *map(at, beside))
    return storage.leaf(stored.at[places].set(new, **_OWN), x.shape)

  def dense(self, shape: Sequence[int]) -> jax.Array:
    """float32 array of `shape`, zero at other elements."""
    stored = jnp.zeros(math.prod(shape), jnp.float32)
    stored = stored.at[self._places(shape)].set(self.entries, **_OWN)
    return storage.leaf(stored, shape)

  def _places(self, shape: Sequence[int]) -> jax.Array:
    """The places of the entries in the leaf's `storage.vector`."""
    if not storage.is_tiled(shape):
      return self.indices
    return storage.place(self.indices, storage.blocks(shape))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Full:
  """A delivery as a whole leaf.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> delivered = gs.extend.Full(jnp.array([5.0, 0.0]))
  >>> print(delivered.plus(jnp.array([7.0, 1.0]), -1.0))
  [2. 1.]

  Attributes:
    values: float32, leaf-shaped: this worker's values that are in the mean;
      zero at other elements.
    there: bool, leaf-shaped: the delivered elements. None: all.
    is_dense: whether the leaf stays dense. Operations of compression, such as
      factor masking, do not apply to it.
  """

  values: jax.Array
  there: jax.Array | None = None
  is_dense: bool = dataclasses.field(default=False, metadata={'static': True})

  @staticmethod
  def nothing(shape: Sequence[int]) -> Full:
    """A delivery of nothing. XLA removes all computations on it."""
    shape = tuple(shape)
    return Full(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool))

  def plus(self, x: jax.Array, factor: float = 1.0) -> jax.Array:
    """x plus `factor` times the delivered values."""
    return self._where(x + factor * self.values, x)

  def update(
    self, fn: Callable[..., jax.Array], x: jax.Array, *others: jax.Array
  ) -> jax.Array:
    """x_i <- fn(x_i, delivered_i, *others_i) at delivered elements i."""
    return self._where(fn(x, self.values, *others), x)

  def dense(self, shape: Sequence[int]) -> jax.Array:
    """float32 array of `shape`, zero at other elements."""
    return self.values.reshape(tuple(shape))

  def _where(self, new: jax.Array, x: jax.Array) -> jax.Array:
    return new if self.there is None else jnp.where(self.there, new, x)


Delivered = Window | Full


def joined(leaves: Sequence[Delivered], runs: Sequence[int]) -> list[Delivered]:
  """Concatenates runs of consecutive leaves; see `Space.merged`.

  Args:
    leaves: none of them a Window.
    runs: the number of leaves of each run; () concatenates none.
  """
  if len(runs) in (0, len(leaves)):
    return list(leaves)
  rest = iter(leaves)
  out = []
  for n in runs:
    own = list(itertools.islice(rest, n))
    if n > 1:
      flat = [jax.tree.map(lambda x: x.reshape(-1), d) for d in own]
      own = [jax.tree.map(lambda *x: joining.concat(list(x)), *flat)]
    out += own
  return out


def of_entries(
  values: jax.Array,
  indices: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  limits: Sequence[int],
) -> list[Delivered]:
  """Entries of the concatenated leaves, leaf by leaf.

  Args:
    values: float32[k].
    indices: int32[k], ascending; the number of all elements is an empty slot.
    shapes: of the leaves.
    limits: for each leaf, the most entries that can fall in it.
  """
  sizes = [math.prod(shape) for shape in shapes]
  small = [i for i, size in enumerate(sizes) if size < _SMALL]
  if len(small) < 2:
    small = []
  out: dict[int, Delivered] = {**_spread(values, indices, shapes, small)}
  large = [i for i in range(len(sizes)) if i not in out]
  out |= _windows(values, indices, sizes, limits, large)
  return [out[i] for i in range(len(sizes))]


def _spread(values, indices, shapes, small) -> dict[int, Full]:
  """The leaves numbered in `small`, by one scatter into all of them."""
  if not small:
    return {}
  sizes = [math.prod(shape) for shape in shapes]
  ends = np.cumsum(sizes)
  # Each leaf's offset among all leaves less that among the small ones.
  begins = joining.offsets([sizes[i] for i in small])
  room = sum(sizes[i] for i in small)
  shift = np.zeros(len(sizes), np.int64)
  is_small = np.zeros(len(sizes) + 1, bool)
  for begin, i in zip(begins, small, strict=True):
    shift[i] = ends[i] - sizes[i] - begin
    is_small[i] = True
  leaf = searching.searchsorted(jnp.asarray(ends, jnp.int32), indices, 'right')
  to = jnp.where(
    jnp.asarray(is_small)[leaf],
    indices - jnp.asarray(shift, jnp.int32)[leaf],
    room,
  )
  flat = jnp.zeros(room, jnp.float32).at[to].set(values, mode='drop')
  there = jnp.zeros(room, bool).at[to].set(True, mode='drop')
  own = [shapes[i] for i in small]
  both = zip(joining.split(flat, own), joining.split(there, own), strict=True)
  return {i: Full(x, m) for i, (x, m) in zip(small, both, strict=True)}


def _windows(values, indices, sizes, limits, large) -> dict[int, Window]:
  """The entries of each leaf numbered in `large`."""
  offsets = jnp.asarray(joining.offsets(sizes)[large], jnp.int32)
  starts = searching.searchsorted(indices, offsets)
  message = barriers.barrier_if_shared(
    (values, indices, starts, offsets), len(large)
  )
  # Windows of leaves of one shape differ in this number alone.
  places = barriers.hidden_numbers(range(len(large)), indices)
  out = {}
  for place, i in zip(places, large, strict=True):
    width = min(limits[i], sizes[i], indices.shape[0])
    out[i] = _window(*message, place, width, sizes[i])
  return out


def _window(
  values: jax.Array,
  indices: jax.Array,
  starts: jax.Array,
  offsets: jax.Array,
  place: jax.Array,
  width: int,
  size: int,
) -> Window:
  """The entries of the large leaf of number `place`."""

  # At the end of the message, the slice is clamped and begins with entries of
  # earlier leaves.
  def read(x, at, length=()):
    out = jax.lax.dynamic_slice(
      x, (at,), length or (1,), allow_negative_indices=False
    )
    return out if length else out[0]

  start, offset = read(starts, place), read(offsets, place)
  own = read(indices, start, (width,)) - offset
  return Window(read(values, start, (width,)), own, size)
