"""How a sparse vector becomes 32-bit words: an index code and a value code.

  indices        bits each                     empty slots
  'elias_fano'   about 2 + log2(N / k)         yes
  'run_length'   16 (DGC; escapes take slots)  yes
  'word28'       28, and 4 for the value       yes

The value codes are in sparse_values.py. Entries may come coded, by `Code.mark`;
a large message then has a bitmap instead of indices (marked.py).
"""

from __future__ import annotations

from collections.abc import Callable

from gradsparse import arguments
from gradsparse.backend import barriers
from gradsparse.codes import entries
from gradsparse.codes import marked
from gradsparse.codes import sparse_values
from gradsparse.codes.entries import Entries
from gradsparse.codes.sparse_values import ValueCode
from gradsparse.sockets import Code
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import elias_fano
from gradsparse.wire import floats
from gradsparse.wire import run_length
from gradsparse.wire import word28
import jax
import jax.numpy as jnp

# For fewer it pays not to copy what was packed, but to compile one loop less.
_MANY_ENTRIES = 1 << 20

INDICES = ('elias_fano', 'run_length', 'word28')
# Those that a recipe offers: 'sign2' is for schemes whose values are signs.
VALUES = tuple(name for name in sparse_values.BY_NAME if name != 'sign2')


def sparse(indices: str = 'elias_fano', values: str = 'float32') -> Code:
  """A code of `Sparse` by the names of its two halves.

  Args:
    indices: 'elias_fano', 'run_length' (float32 values only) or 'word28'
      (exponent4 values only).
    values: a key of `sparse_values.BY_NAME`; 'sign2' is for schemes whose
      values are signs already.

  Raises:
    TypeError: a name that is not text.
    ValueError: an unknown name, or two halves that do not go together.
  """
  arguments.one_of('indices', indices, INDICES)
  arguments.one_of('values', values, tuple(sparse_values.BY_NAME))
  if indices == 'run_length':
    if values != 'float32':
      raise ValueError(
        "indices='run_length' marks its escapes by the value 0.0, so it "
        f"needs values='float32', got {values!r}"
      )
    return _run_length()
  if indices == 'word28':
    if values != 'exponent4':
      raise ValueError(
        "indices='word28' has 4 bits for a value, so it needs "
        f"values='exponent4', got {values!r}"
      )
    return _word28()
  return _elias_fano(sparse_values.BY_NAME[values]())


def signs_of(magnitude: float) -> Code:
  """Elias-Fano indices and signs, of one magnitude known to all workers.

  Raises:
    TypeError: magnitude is not a number.
    ValueError: magnitude is not positive and finite.
  """
  return _elias_fano(sparse_values.constant(magnitude))


def _of_entries(
  values: ValueCode,
  pack_entries: Callable[[Entries], jax.Array],
  unpack_entries: Callable[[jax.Array, Space, int], Entries],
) -> Code:
  """A code of `Sparse`, and of what `mark` coded.

  Args:
    values: how values travel.
    pack_entries: entries -> words.
    unpack_entries: (words, the leaves, how many entries) -> entries.
  """

  def round(selected, ctx):
    if isinstance(selected, Sparse):
      return entries.round(values, selected, ctx.key)
    return selected  # it is, by `mark`

  def pack(rounded, ctx):
    del ctx
    if isinstance(rounded, marked.CodedVector):
      return marked.pack(values, rounded)
    if isinstance(rounded, Sparse):
      rounded = entries.coded(values, rounded)
    return pack_entries(rounded)

  def unpack(words, like, ctx):
    del ctx
    if isinstance(like, marked.CodedVector):
      return marked.unpack(values, words, like)
    got = unpack_entries(words, like.space, like.slots)
    return entries.decoded(values, got) if isinstance(like, Sparse) else got

  def decode(rounded, ctx, summands):
    del ctx, summands
    if isinstance(rounded, marked.CodedVector):
      return marked.decode(values, rounded)
    if isinstance(rounded, Entries):
      return entries.decoded(values, rounded)
    return rounded

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Sparse,
    exact=values.round is None,
    mark=lambda leaves, ctx: marked.coded(values, leaves, ctx.key),
    marked=(Entries, marked.CodedVector),
  )


def _elias_fano(values: ValueCode) -> Code:
  def pack(e):
    # Apart: XLA on CPUs packs slowly in the middle of putting together.
    parts = elias_fano.encode(e.indices, e.space.size), entries.pack(values, e)
    if e.slots >= _MANY_ENTRIES:
      parts = barriers.fusion_barrier(parts)
    return jnp.concatenate(parts)

  def unpack(words, space, count):
    head = elias_fano.words(count, space.size)
    indices = elias_fano.decode(words[:head], count, space.size)
    return entries.unpack(values, words[head:], indices, space)

  return _of_entries(values, pack, unpack)


def _run_length() -> Code:
  """DGC's Encode(): 32-bit values and 16-bit runs of zeros (section 3.1)."""
  values = sparse_values.float32()

  # Escapes are told by their value, so entries travel as a `Sparse`.
  def round(selected, ctx):
    del ctx
    if isinstance(selected, marked.CodedVector):
      return selected
    if isinstance(selected, Entries):
      selected = entries.decoded(values, selected)
    return selected.keep(run_length.fits(selected.indices, selected.space.size))

  def pack(rounded, ctx):
    if isinstance(rounded, marked.CodedVector):
      return of_all.pack(rounded, ctx)
    packed, runs = run_length.encode(
      rounded.values, rounded.indices, rounded.space.size
    )
    return jnp.concatenate([floats.pack(packed), runs])

  def unpack(words, like, ctx):
    if isinstance(like, marked.CodedVector):
      return of_all.unpack(words, like, ctx)
    count, space = like.slots, like.space
    decoded, indices = run_length.decode(
      floats.unpack(words[:count]), words[count:], space.size
    )
    return Sparse(decoded, indices, space)

  of_all = _elias_fano(values)
  return of_all._replace(
    round=round, pack=pack, unpack=unpack, exact=False, crowds=True
  )


def _word28() -> Code:
  """The variance paper's words: 28 bits of index, 4 of value (section 4.2)."""
  values = sparse_values.exponent4()

  def pack(e):
    word28.check_size(e.space.size)
    head = entries.pack_scales(values, e.scales)
    return jnp.concatenate([head, word28.pack(e.indices, e.codes)])

  def unpack(words, space, count):
    del count
    scales, rest = entries.unpack_scales(values, words, len(space.shapes))
    indices, codes = word28.unpack(rest)
    # Words that nobody sent may say more; no index is beyond an empty slot's.
    return Entries(scales, jnp.minimum(indices, space.size), codes, space)

  return _of_entries(values, pack, unpack)._replace(
    most_elements=2**word28.INDEX_WIDTH - 1
  )
