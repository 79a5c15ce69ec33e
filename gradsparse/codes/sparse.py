"""How a sparse vector becomes 32-bit words: an index code and a value code.

Index codes are in `INDICES`, by name: 'elias_fano' takes about 2 + log2(N / k)
bits for each of k indices of N elements. Value codes are in sparse_values.py.
Entries may come coded, by `marking`; a large message then has a bitmap
instead of indices (marked.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse import arguments
from gradsparse.backend import barriers
from gradsparse.codes import marked
from gradsparse.codes import sparse_values
from gradsparse.codes.sparse_values import Entries
from gradsparse.codes.sparse_values import ValueCode
from gradsparse.sockets import Code
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import elias_fano
import jax
import jax.numpy as jnp

# Below this, one compiled loop less is worth more than packing without a copy.
_MANY_ENTRIES = 1 << 20

# Those that a recipe offers: 'sign2' is for schemes whose values are signs.
VALUES = tuple(name for name in sparse_values.BY_NAME if name != 'sign2')


def sparse(indices: str = 'elias_fano', values: str = 'float32') -> Code:
  """A code of `Sparse` by the names of its two halves.

  Args:
    indices: a key of `INDICES`.
    values: a key of `sparse_values.BY_NAME`; 'sign2' is for schemes whose
      values are signs already.

  Raises:
    TypeError: a name that is not text.
    ValueError: an unknown name, or two halves that do not go together.
  """
  arguments.one_of('indices', indices, INDICES)
  arguments.one_of('values', values, sparse_values.BY_NAME)
  return INDICES[indices](values)


def signs_of(magnitude: float) -> Code:
  """Elias-Fano indices and signs, of one magnitude known to all workers.

  Raises:
    TypeError: magnitude is not a number.
    ValueError: magnitude is not positive and finite.
  """
  return by_elias_fano(sparse_values.constant(magnitude))


def marking(values: Any) -> marked.Mark:
  """Rounds and codes the elements that a rule marks, before any is selected.

  A compressor that must know how many elements are sent before it can tell the
  size of the message (`compressors.by_rule`) selects from what this returns.

  Args:
    values: as for `sparse`; or the magnitude of `signs_of`.

  Returns:
    (leaves, ctx) -> `marked.Coded`. `leaves` has the values of each leaf, and
    which of its elements are to be sent.
  """
  if isinstance(values, str):
    code = sparse_values.BY_NAME[values]()
  else:
    code = sparse_values.constant(values)
  return lambda leaves, ctx: marked.coded(code, leaves, ctx.key)


def of_entries(
  values: ValueCode,
  pack_entries: Callable[[Entries], jax.Array],
  unpack_entries: Callable[[jax.Array, Space, int], Entries],
) -> Code:
  """A code of `Sparse`, and of what `marking` coded.

  Args:
    values: how values travel.
    pack_entries: entries -> words.
    unpack_entries: (words, the leaves, how many entries) -> entries.
  """

  def round(selected, ctx):
    if isinstance(selected, Sparse):
      return sparse_values.round(values, selected, ctx.key)
    return selected  # it is, by `marking`

  def pack(rounded, ctx):
    del ctx
    if isinstance(rounded, marked.CodedVector):
      return marked.pack(values, rounded)
    if isinstance(rounded, Sparse):
      rounded = sparse_values.coded(values, rounded)
    return pack_entries(rounded)

  def unpack(words, like, ctx):
    del ctx
    if isinstance(like, marked.CodedVector):
      return marked.unpack(values, words, like)
    got = unpack_entries(words, like.space, like.slots)
    return (
      sparse_values.decoded(values, got) if isinstance(like, Sparse) else got
    )

  def decode(rounded, ctx, summands):
    del ctx, summands
    if isinstance(rounded, marked.CodedVector):
      return marked.decode(values, rounded)
    if isinstance(rounded, Entries):
      return sparse_values.decoded(values, rounded)
    return rounded

  code = Code(
    pack,
    unpack,
    decode=decode,
    takes=(Sparse, Entries, marked.CodedVector),
  )
  return code if values.round is None else code._replace(round=round)


def by_elias_fano(values: ValueCode) -> Code:
  """A code of `Sparse` with Elias-Fano indices."""

  def pack(e):
    # A barrier: XLA for CPUs would fuse the packing into the concatenation,
    # which is slow.
    parts = (
      elias_fano.encode(e.indices, e.space.size),
      sparse_values.pack(values, e),
    )
    if e.slots >= _MANY_ENTRIES:
      parts = barriers.fusion_barrier(parts)
    return jnp.concatenate(parts)

  def unpack(words, space, count):
    head = elias_fano.words(count, space.size)
    indices = elias_fano.decode(words[:head], count, space.size)
    return sparse_values.unpack(values, words[head:], indices, space)

  return of_entries(values, pack, unpack)


# Index codes by name: the name of a value code -> the code of both. An index
# code that does not go with the value code raises ValueError.
INDICES: dict[str, Callable[[str], Code]] = {
  'elias_fano': lambda values: by_elias_fano(sparse_values.BY_NAME[values]()),
}
