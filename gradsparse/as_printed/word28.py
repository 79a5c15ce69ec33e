"""One 32-bit word for each element: a 28-bit index and a 4-bit code.

    word = index 16 + code

The index is in the high bits, so words sort as their indices do.

References:
  Tsuzuku, Imachi, Akiba, Variance-based Gradient Compression, arXiv
  1802.06058, section 4.2.
"""

from __future__ import annotations

from gradsparse.codes import sparse_values
from gradsparse.codes import value_codes
from gradsparse.codes.sparse import of_entries
from gradsparse.codes.sparse_values import Entries
from gradsparse.sockets import Code
from gradsparse.sockets import Limits
import jax
import jax.numpy as jnp
import numpy as np

INDEX_WIDTH = 28
CODE_WIDTH = 4


def check_size(size: int) -> None:
  """Checks that indices in [0, size] fit; size itself marks an empty slot.

  Args:
    size: number of elements that the indices point into.

  Raises:
    ValueError: size is negative or not below 2**28.
  """
  if not 0 <= size < 2**INDEX_WIDTH:
    raise ValueError(f'size must be in [0, 2**{INDEX_WIDTH}), got {size}')


def pack(indices: jax.Array, codes: jax.Array) -> jax.Array:
  """Joins indices and codes.

  Args:
    indices: int32[...] in [0, 2**28).
    codes: uint32[...] in [0, 16); only the low four bits are kept.

  Returns:
    uint32[...], of the arguments' shape.
  """
  high = indices.astype(jnp.uint32) << CODE_WIDTH
  return high | (codes.astype(jnp.uint32) & np.uint32(2**CODE_WIDTH - 1))


def unpack(words: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The indices and codes that `pack` joined.

  Args:
    words: uint32[...].

  Returns:
    (indices int32[...], codes uint32[...]), of the argument's shape.
  """
  codes = words & np.uint32(2**CODE_WIDTH - 1)
  return (words >> CODE_WIDTH).astype(jnp.int32), codes


def sparse(values: str) -> Code:
  """A code of `Sparse`: the scales of all leaves, then a word for each entry.

  Args:
    values: the name of the value code: 'exponent4'.

  Raises:
    ValueError: another value code.
  """
  if values != 'exponent4':
    raise ValueError(
      "indices='word28' has 4 bits for a value, so it needs "
      f"values='exponent4', got {values!r}"
    )
  value_code = value_codes.exponent4()

  def pack_entries(e):
    check_size(e.space.size)
    head = sparse_values.pack_scales(value_code, e.scales)
    return jnp.concatenate([head, pack(e.indices, e.codes)])

  def unpack_entries(words, space, count):
    del count
    scales, rest = sparse_values.unpack_scales(
      value_code, words, len(space.shapes)
    )
    indices, codes = unpack(rest)
    # Corrupt words may hold larger indices: clip them to the empty slot's.
    return Entries(scales, jnp.minimum(indices, space.size), codes, space)

  return of_entries(value_code, pack_entries, unpack_entries)._replace(
    limits=Limits(most_elements=2**INDEX_WIDTH - 1)
  )
