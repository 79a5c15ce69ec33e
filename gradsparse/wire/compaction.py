"""Compresses the codes of marked elements, and expands them again.

A bitmap marks the elements. Codes are not gathered one by one: in each word of
packed codes, the marked ones move together in `log2(32 / width)` steps, and a
running count of the set bits gives their place in the message. Bitmap and codes
are planar: field j of word q of `width` words has the code of the element whose
mark is bit `j width + q`.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> codes = wire.planar_vector.pack_parts([jnp.arange(32) % 16], 4, unit=32)
>>> marks = wire.planar_vector.pack_parts([jnp.arange(32) == 5], 1)
>>> words = wire.compaction.compress(codes, marks, size=32, slots=8, width=4)
>>> expanded = wire.compaction.expand(words, marks, size=32, width=4)
>>> print(words, wire.planar_vector.unpack_tail(expanded, 4)[:8])
[5] [0 0 0 0 0 5 0 0]

References:
  Henry S. Warren, "Hacker's Delight", 2nd edition, sections 7-4 (compress) and
  7-5 (expand).
"""

from __future__ import annotations

from gradsparse.backend.storage import LANES
from gradsparse.wire import fixed_width
from gradsparse.wire import planar_vector
import jax
import jax.numpy as jnp
import numpy as np


def compress(
  codes: jax.Array, marks: jax.Array, size: int, slots: int, width: int
) -> jax.Array:
  """Packs the codes of the marked elements, word after word.

  Args:
    codes: uint32, codes of all elements, packed by `planar_vector.pack_parts`
      with a unit of 32.
    marks: uint32, bitmap of the elements, packed by `planar_vector.pack_parts`.
    size: number of elements.
    slots: the most codes; further ones are lost.
    width: bits of a code, a divisor of 32.

  Returns:
    uint32[fixed_width.words(slots, width)]; zero behind the last code, except
    for the rest of its word if there are more codes than slots.

  Raises:
    ValueError: width does not divide 32.
  """
  chosen = _lowest(marks, size, width)
  place, shift = _begins(chosen, width)
  kept = codes & _whole(chosen, width)
  for moving, distance in _moves(chosen, width):
    moved = kept & moving
    kept = (kept ^ moved) | (moved >> distance)
  words = jnp.zeros(fixed_width.words(slots, width), jnp.uint32)
  words = words.at[place].add(kept << shift, mode='drop')
  # Two shifts of at most 31 bits, as a shift by 32 is undefined.
  return words.at[place + 1].add((kept >> 1) >> (31 - shift), mode='drop')


def expand(
  words: jax.Array, marks: jax.Array, size: int, width: int
) -> jax.Array:
  """Moves the codes that `compress` packed back to their elements.

  Args:
    words: uint32, the result of `compress`.
    marks: uint32, bitmap of the elements, packed by `planar_vector.pack_parts`;
      elements that found no slot get an arbitrary code.
    size: number of elements.
    width: bits of a code, a divisor of 32.

  Returns:
    uint32, codes of all elements, as `compress` takes them; zero for unmarked
    ones.

  Raises:
    ValueError: width does not divide 32.
  """
  chosen = _lowest(marks, size, width)
  if not words.shape[0]:
    return jnp.zeros_like(chosen)
  place, shift = _begins(chosen, width)
  first = words.at[place].get(mode='clip')
  second = words.at[place + 1].get(mode='clip')
  codes = (first >> shift) | ((second << 1) << (31 - shift))
  for moving, distance in reversed(_moves(chosen, width)):
    codes = (codes & ~moving) | ((codes << distance) & moving)
  return codes & _whole(chosen, width)


def _lowest(marks: jax.Array, size: int, width: int) -> jax.Array:
  """uint32, the lowest bit of each marked element's code."""
  if 32 % width:
    raise ValueError(f'width must divide 32, got {width}')
  head, tail = planar_vector.cut_parts(marks, size, 1)
  column = jax.lax.broadcasted_iota(jnp.uint32, (width, 1, 1), 0)
  return jnp.concatenate(
    [
      ((lines[None] >> column) & _every(width, 1)).reshape(-1)
      for lines in (head.reshape(-1, LANES), tail[None])
    ]
  )


def _begins(chosen: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
  """The place in the message of each word's first marked code.

  Args:
    chosen: uint32, the result of `_lowest`.
    width: bits of a code.

  Returns:
    Two arrays: int32, the word; uint32, the bit there.
  """
  per_word = 32 // width
  counts = jax.lax.population_count(chosen).astype(jnp.int32)
  rank = jnp.cumsum(counts, dtype=jnp.int32) - counts
  shift = (rank % per_word).astype(jnp.uint32) * np.uint32(width)
  return rank // per_word, shift


def _moves(chosen: jax.Array, width: int) -> list[tuple[jax.Array, np.uint32]]:
  """The steps that move the chosen codes of each word to its low end.

  Returns:
    For each step, (the bits of the codes that move, by how many bits).
  """
  out = []
  # The number of unchosen codes below each code, bit by bit.
  holes = (~chosen & _every(width, 1)) << np.uint32(width)
  distance = width
  while distance < 32:
    odd = holes
    reach = width
    while reach < 32:
      odd = odd ^ (odd << np.uint32(reach))
      reach *= 2
    moving = odd & chosen
    out.append((_whole(moving, width), np.uint32(distance)))
    chosen = (chosen ^ moving) | (moving >> np.uint32(distance))
    holes = holes & ~odd
    distance *= 2
  return out


def _whole(lowest: jax.Array, width: int) -> jax.Array:
  """All bits of the codes that have these lowest bits."""
  return lowest * np.uint32(2**width - 1)


def _every(stride: int, bits: int) -> np.uint32:
  """The `bits` low bits of every field of `stride` bits."""
  ones = sum(1 << begin for begin in range(0, 32, stride))
  return np.uint32((2**bits - 1) * ones)
