"""Codes of sparse vectors: an index code and a value code.

Index codes are in `INDICES`, by name: 'elias_fano' takes about 2 + log2(N / k)
bits for each of k indices of N elements. Value codes are in value_codes.py.
Their `Code.mark` codes values before selection; a large message then has a
bitmap instead of indices (marked.py).
"""

from __future__ import annotations

from collections.abc import Callable
import functools

from gradsparse import arguments
from gradsparse.backend import barriers
from gradsparse.codes import marked
from gradsparse.codes import sparse_values
from gradsparse.codes import value_codes
from gradsparse.codes.sparse_values import Entries
from gradsparse.codes.value_codes import ValueCode
from gradsparse.sockets import Adder
from gradsparse.sockets import Code
from gradsparse.sockets import Shortcuts
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import elias_fano
import jax
import jax.numpy as jnp

# With fewer entries, a barrier would take longer to compile than it saves.
_MANY_ENTRIES = 1 << 18

# The value codes of recipes. 'sign2' is for schemes whose values are signs, and
# 'table4' for those that select before they round.
VALUES = tuple(
  name for name in value_codes.BY_NAME if name not in ('sign2', 'table4')
)
OF_SELECTED = (*VALUES, 'table4')


def sparse(indices: str = 'elias_fano', values: str = 'float32') -> Code:
  """A code of `Sparse`, from the names of an index code and a value code.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, code = gs.extend, gs.extend.codes.sparse(values='bfloat16')
  >>> space = extend.Space.whole([(1000,)])
  >>> entries = extend.Sparse(jnp.ones(10), jnp.arange(10), space)
  >>> jax.eval_shape(lambda: code.pack(entries, None)).shape  # words
  (8,)

  Args:
    indices: a key of `INDICES`.
    values: a key of `value_codes.BY_NAME`; 'sign2' is for schemes whose
      values are signs already.

  Raises:
    TypeError: a name is not text.
    ValueError: a name is unknown, or the two codes do not go together.
  """
  arguments.one_of('indices', indices, INDICES)
  arguments.one_of('values', values, value_codes.BY_NAME)
  return INDICES[indices](values)


def signs_of(magnitude: float) -> Code:
  """Elias-Fano indices, and signs of one magnitude known to all workers.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, code = gs.extend, gs.extend.codes.signs_of(0.5)
  >>> space = extend.Space.whole([(1000,)])
  >>> entries = extend.Sparse(jnp.full(10, 0.5), jnp.arange(10), space)
  >>> jax.eval_shape(lambda: code.pack(entries, None)).shape  # words
  (4,)

  Raises:
    TypeError: magnitude is not a number.
    ValueError: magnitude is not positive and finite.
  """
  return by_elias_fano(value_codes.constant(magnitude))


def of_entries(
  values: ValueCode,
  pack_entries: Callable[[Entries], jax.Array],
  unpack_entries: Callable[[jax.Array, Space, int], Entries],
) -> Code:
  """A code of `Sparse`, and of elements that its `mark` coded.

  Args:
    values: the value code.
    pack_entries: entries -> words.
    unpack_entries: (words, the leaves, how many entries) -> entries.
  """

  def round(selected, ctx):
    if isinstance(selected, Sparse):
      return sparse_values.round(values, selected, ctx.key)
    return selected  # `mark` has rounded it

  def mark(leaves, ctx):
    return marked.coded(values, leaves, ctx.key)

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

  def adder(rounded):
    if not isinstance(rounded, marked.CodedVector):
      return None
    add = functools.partial(marked.add, values)
    return Adder(marked.start, add, marked.finish)

  code = Code(
    pack,
    unpack,
    decode=decode,
    takes=(Sparse, Entries, marked.CodedVector),
    mark=mark if values.fit is None else None,
    shortcuts=Shortcuts(adder=adder),
  )
  is_exact = values.round is None and values.fit is None
  return code if is_exact else code._replace(round=round)


def by_elias_fano(values: ValueCode) -> Code:
  """A code of `Sparse` with Elias-Fano indices."""

  def pack(e):
    # A barrier keeps the packing out of the concatenation's loop.
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
    if count >= _MANY_ENTRIES:
      indices = barriers.fusion_barrier(indices)
    return sparse_values.unpack(values, words[head:], indices, space)

  return of_entries(values, pack, unpack)


# Name of an index code -> (name of a value code -> the code of both). The
# function raises ValueError if the two codes do not go together.
INDICES: dict[str, Callable[[str], Code]] = {
  'elias_fano': lambda values: by_elias_fano(value_codes.BY_NAME[values]()),
}
