"""How QSGD cuts a leaf into buckets, whose elements share a norm."""

from __future__ import annotations

import dataclasses
import math

from gradsparse.sockets import Shape
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Buckets:
  """How a leaf is cut into buckets of at most `bucket_size` elements.

  A leaf (..., in, out) of three and more dimensions is a kernel: the leading
  ones are the taps of a receptive field, one for each input and output. A
  bucket holds as many whole fields as fit, in the order of (in, out). A field
  that is larger than a bucket is split into the fewest parts that fit, equally
  long but for the last, which may be shorter. Matrices and vectors have fields
  of one element.

  Attributes:
    shape: of the leaf.
    taps: elements of a field.
    runs: how many stretches of the leaf are cut by themselves: one, which is
      the whole leaf with its fields side by side, or one for each field.
    length: elements of a bucket; the last one of a run may be shorter.
  """

  shape: Shape
  taps: int
  runs: int
  length: int

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  @property
  def count(self) -> int:
    """How many buckets it has."""
    return self.runs * -(-(self.size // self.runs) // self.length)

  def ordered(self, leaf: jax.Array) -> jax.Array:
    """A leaf as a vector, the taps of each field side by side."""
    return leaf.reshape(self.taps, -1).T.reshape(-1)

  def leaf(self, ordered: jax.Array) -> jax.Array:
    """The inverse of `ordered`."""
    return ordered.reshape(-1, self.taps).T.reshape(self.shape)

  def rows(self, ordered: jax.Array) -> jax.Array:
    """Such a vector as (count, length), zeros where a bucket is shorter."""
    runs = ordered.reshape(self.runs, -1)
    missing = -runs.shape[1] % self.length
    if missing:
      runs = jnp.pad(runs, ((0, 0), (0, missing)))
    return runs.reshape(-1, self.length)

  def flat(self, rows: jax.Array) -> jax.Array:
    """The inverse of `rows`."""
    runs = rows.reshape(self.runs, -1)[:, : self.size // self.runs]
    return runs.reshape(-1)


def buckets(shape: Shape, bucket_size: int) -> Buckets:
  """How a leaf of this shape is cut."""
  taps = max(math.prod(shape[:-2]), 1)
  if taps <= bucket_size:
    return Buckets(shape, taps, 1, bucket_size // taps * taps)
  parts = -(-taps // bucket_size)
  return Buckets(shape, taps, math.prod(shape[-2:]), -(-taps // parts))
