"""How a sparse vector becomes 32-bit words: an index code and a value code.

  indices        bits each                     empty slots
  'elias_fano'   about 2 + log2(N / k)         yes
  'run_length'   16 (DGC; escapes take slots)  yes
  'word28'       28, and 4 for the value       yes

The value codes are in sparse_values.py. A message of very many elements
(`Marked`) has a bitmap instead of indices.
"""

from __future__ import annotations

from gradsparse import arguments
from gradsparse.codes import entries
from gradsparse.codes import marked
from gradsparse.codes import sparse_values
from gradsparse.codes.sparse_values import ValueCode
from gradsparse.sockets import Code
from gradsparse.sockets import Marked
from gradsparse.sockets import Sparse
from gradsparse.wire import elias_fano
from gradsparse.wire import floats
from gradsparse.wire import run_length
from gradsparse.wire import word28
import jax.numpy as jnp

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


def _either(code: Code, values: ValueCode) -> Code:
  """A code of `Sparse`, and of `Marked` with the same value code."""

  def pack(rounded, ctx):
    if isinstance(rounded, Marked):
      return marked.pack(values, rounded)
    return code.pack(rounded, ctx)

  def unpack(words, like, ctx):
    if isinstance(like, Marked):
      return marked.unpack(values, words, like)
    return code.unpack(words, like, ctx)

  def round(selected, ctx):
    if isinstance(selected, Marked):
      return marked.round(values, selected, ctx.key)
    return code.round(selected, ctx)

  return code._replace(pack=pack, unpack=unpack, round=round, takes_marked=True)


def _elias_fano(values: ValueCode) -> Code:
  def pack(s, ctx):
    del ctx
    return jnp.concatenate(
      [elias_fano.encode(s.indices, s.space.size), entries.pack(values, s)]
    )

  def unpack(words, like, ctx):
    del ctx
    count, space = like.slots, like.space
    head = elias_fano.words(count, space.size)
    indices = elias_fano.decode(words[:head], count, space.size)
    decoded = entries.unpack(values, words[head:], indices, space)
    decoded = jnp.where(indices < space.size, decoded, 0.0)
    return Sparse(decoded, indices, space)

  code = Code(
    pack,
    unpack,
    round=lambda s, ctx: entries.round(values, s, ctx.key),
    takes=Sparse,
    exact=values.round is None,
    sendable=values.sendable,
  )
  return _either(code, values)


def _run_length() -> Code:
  """DGC's Encode(): 32-bit values and 16-bit runs of zeros (section 3.1)."""

  def round(s, ctx):
    del ctx
    return s.keep(run_length.fits(s.indices, s.space.size))

  def pack(s, ctx):
    del ctx
    values, runs = run_length.encode(s.values, s.indices, s.space.size)
    return jnp.concatenate([floats.pack(values), runs])

  def unpack(words, like, ctx):
    del ctx
    count, space = like.slots, like.space
    values, indices = run_length.decode(
      floats.unpack(words[:count]), words[count:], space.size
    )
    return Sparse(values, indices, space)

  code = Code(pack, unpack, round, takes=Sparse, crowds=True)
  return _either(code, sparse_values.float32())


def _word28() -> Code:
  """The variance paper's words: 28 bits of index, 4 of value (section 4.2)."""
  values = sparse_values.exponent4()

  def round(s, ctx):
    word28.check_size(s.space.size)
    return entries.round(values, s, ctx.key)

  def pack(s, ctx):
    del ctx
    tops = entries.scales_of(values, s)
    codes = entries.codes_of(values, s, tops)
    head = entries.pack_scales(values, tops)
    return jnp.concatenate([head, word28.pack(s.indices, codes)])

  def unpack(words, like, ctx):
    del ctx
    space = like.space
    tops, rest = entries.unpack_scales(values, words, len(space.shapes))
    indices, codes = word28.unpack(rest)
    # Words that nobody sent may say more; no index is beyond an empty slot's.
    indices = jnp.minimum(indices, space.size)
    leaf = space.leaf_of(indices)
    decoded = values.decode(codes, [top[leaf] for top in tops])
    return Sparse(jnp.where(indices < space.size, decoded, 0.0), indices, space)

  code = Code(
    pack,
    unpack,
    round,
    takes=Sparse,
    sendable=values.sendable,
    most_elements=2**word28.INDEX_WIDTH - 1,
  )
  return _either(code, values)
