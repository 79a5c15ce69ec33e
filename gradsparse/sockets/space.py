"""The joined index space of the leaves that travel together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import math
from typing import Any

from gradsparse.backend import joining
import jax
import jax.numpy as jnp

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Space:
  """The joined index space of some leaves: shapes only, so it is static.

  Attributes:
    shapes: the leaves' shapes.
    limits: for each leaf, the most entries of a message that can fall in it.
  """

  shapes: tuple[Shape, ...]
  limits: tuple[int, ...]

  @staticmethod
  def whole(shapes: Sequence[Shape]) -> Space:
    """The space of messages that can hold every element."""
    return Space(tuple(shapes), tuple(map(math.prod, shapes)))

  @staticmethod
  def at_most(slots: int, shapes: Sequence[Shape]) -> Space:
    """The space of messages whose slots can all fall in one leaf."""
    limits = tuple(min(slots, math.prod(shape)) for shape in shapes)
    return Space(tuple(shapes), limits)

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

  def merged(self, runs: Sequence[int]) -> Space:
    """The same where leaves that follow each other are one.

    Args:
      runs: how many leaves each of the new ones has; () leaves all alone.
    """
    if len(runs) in (0, len(self.shapes)):
      return self
    leaves, limits = iter(self.shapes), iter(self.limits)
    shapes = []
    for n in runs:
      own = list(itertools.islice(leaves, n))
      shapes.append(own[0] if n == 1 else (sum(map(math.prod, own)),))
    return Space(
      tuple(shapes), tuple(sum(itertools.islice(limits, n)) for n in runs)
    )

  def split(self, joined: jax.Array) -> list[jax.Array]:
    """A vector over the joined space as the leaves it consists of."""
    return joining.split(joined, self.shapes)

  def leaf_of(self, indices: jax.Array) -> jax.Array:
    """int32, the leaf that holds each index; empty slots get the last one."""
    if len(self.shapes) == 1:
      return jnp.zeros_like(indices)
    bounds = jnp.asarray(self.offsets[1:-1], jnp.int32)
    return jnp.searchsorted(bounds, indices, side='right').astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joined(Sequence):
  """Leaves that lie in one vector: a sequence, cut where it is read.

  Attributes:
    vector: of all leaves, one after the other.
    shapes: of the leaves.
  """

  vector: jax.Array
  shapes: tuple[Shape, ...] = dataclasses.field(metadata={'static': True})

  def __truediv__(self, number: Any) -> Joined:
    return Joined(self.vector / number, self.shapes)

  def __len__(self) -> int:
    return len(self.shapes)

  def __iter__(self) -> Iterator[jax.Array]:
    return iter(joining.split(self.vector, self.shapes))

  def __getitem__(self, place):
    return joining.split(self.vector, self.shapes)[place]
