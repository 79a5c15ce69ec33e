"""Run lengths: each value with the number of zeros before it, in 16 bits.

DGC's Encode(): a message of `count` slots is `count` values and `count` runs.
A slot (value, run) stands for `run` zeros and then the value, so the element
of slot j has index `sum_{i <= j} (run_i + 1) - 1`. A gap of 2**16 zeros or
more needs escapes: slots of run 65535 with the value zero, 65,536 zeros each.

The number of slots is fixed, so that a message takes exactly 48 bits a slot
with float32 values. Escapes take slots, and elements without a slot are not
sent (see `fits`). At density 0.001 a gap of 2**16 is 65 times the mean gap:
escapes are rare except where a large leaf has few elements.

`sparse` is the code of messages. Messages that are large enough for a bitmap
(`codes.marked`) have no runs; they are those of Elias-Fano indices.

References:
  Lin et al., Deep Gradient Compression, arXiv 1712.01887, section 3.1
  (encode() of algorithm 1).
"""

from __future__ import annotations

from gradsparse.codes import marked
from gradsparse.codes import sparse_values
from gradsparse.codes import value_codes
from gradsparse.codes.sparse import by_elias_fano
from gradsparse.codes.sparse_values import Entries
from gradsparse.sockets import Code
from gradsparse.sockets import Sparse
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp
import numpy as np

_WIDTH = 16
_ESCAPE = np.uint32(2**_WIDTH - 1)


def words(count: int) -> int:
  """The number of words of `count` runs, two runs a word, without the values.

  Args:
    count: number of slots, >= 0.

  Returns:
    The number of 32-bit words.

  Raises:
    ValueError: count is negative.
  """
  return fixed_width.words(count, _WIDTH)


def fits(indices: jax.Array, size: int) -> jax.Array:
  """Which elements get a slot, given the slots of the escapes before them.

  Args:
    indices: int32[count], strictly increasing, then `size` for empty slots.
    size: number of elements that the indices point into, in [0, 2**31).

  Returns:
    bool[count]; the elements that fit are those of lowest index. False for
    empty slots.

  Raises:
    ValueError: size is out of range.
  """
  return _slots(indices, size)[2]


def encode(
  values: jax.Array, indices: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
  """Encodes a sorted sparse vector into as many slots as it has entries.

  Elements that do not fit are left out; slots that stay unused hold zeros.

  Args:
    values: float32[count] or another floating type. An element whose value is
      exactly 0.0 takes a slot but decodes as empty.
    indices: int32[count], strictly increasing, then `size` for empty slots.
    size: number of elements that the indices point into, in [0, 2**31).

  Returns:
    (values [count] of the given type, runs uint32[words(count)]).

  Raises:
    ValueError: size is out of range.
  """
  (count,) = indices.shape
  slot, run, fit = _slots(indices, size)
  slot = jnp.where(fit, slot, count)  # out of bounds: dropped
  used = jnp.max(jnp.where(fit, slot + 1, 0), initial=0)
  # Before the last element that fits, a slot without an element is an escape.
  escapes = jnp.where(jnp.arange(count) < used, _ESCAPE, np.uint32(0))
  # Packing keeps the low 16 bits of a run: what its escapes leave of it.
  runs = escapes.at[slot].set(run.astype(jnp.uint32), mode='drop')
  sent = jnp.zeros_like(values).at[slot].set(values, mode='drop')
  return sent, fixed_width.pack(runs, _WIDTH)


def decode(
  values: jax.Array, runs: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
  """Decodes what `encode` encoded.

  Args:
    values: float32[count], or the type that was encoded.
    runs: uint32[words(count)].
    size: number of elements that the indices point into, in [0, 2**31).

  Returns:
    (values [count], indices int32[count]), sorted by index. Escapes and unused
    slots come last, as empty slots with index `size` and value 0.

  Raises:
    ValueError: size is out of range, or the number of words is wrong.
  """
  _check(size)
  (count,) = values.shape
  steps = fixed_width.unpack(runs, count, _WIDTH) + np.uint32(1)
  # Unused slots step past the end by at most `count`: uint32 holds it.
  indices = jnp.cumsum(steps, dtype=jnp.uint32) - np.uint32(1)
  present = (values != 0) & (indices < np.uint32(size))
  rank = jnp.cumsum(present, dtype=jnp.int32) - 1
  slot = jnp.where(present, rank, count)
  empty = jnp.full(count, size, jnp.int32)
  return (
    jnp.zeros_like(values).at[slot].set(values, mode='drop'),
    empty.at[slot].set(indices.astype(jnp.int32), mode='drop'),
  )


def sparse(values: str) -> Code:
  """The code of `Sparse`: 32-bit values and 16-bit runs of zeros.

  Args:
    values: the name of the value code: 'float32'.

  Raises:
    ValueError: another value code.
  """
  if values != 'float32':
    raise ValueError(
      "indices='run_length' marks its escapes by the value 0.0, so it "
      f"needs values='float32', got {values!r}"
    )
  value_code = value_codes.float32()
  of_all = by_elias_fano(value_code)

  # Escapes are marked by the value zero, so entries are handled as a `Sparse`,
  # and elements of value zero are dropped.
  def without_zeros(selected):
    if isinstance(selected, Entries):
      selected = sparse_values.decoded(value_code, selected)
    return selected.keep(selected.values != 0)

  def round(selected, ctx):
    del ctx
    if isinstance(selected, marked.CodedVector):
      return selected
    selected = without_zeros(selected)
    return selected.keep(fits(selected.indices, selected.space.size))

  def dropped(selected, rounded):
    if isinstance(selected, marked.CodedVector):
      return jnp.int32(0)
    return without_zeros(selected).count() - rounded.count()

  def pack(rounded, ctx):
    if isinstance(rounded, marked.CodedVector):
      return of_all.pack(rounded, ctx)
    packed, runs = encode(rounded.values, rounded.indices, rounded.space.size)
    return jnp.concatenate([fixed_width.of_floats(packed), runs])

  def unpack(words, like, ctx):
    if isinstance(like, marked.CodedVector):
      return of_all.unpack(words, like, ctx)
    got, runs = fixed_width.floats_of(words[: like.slots]), words[like.slots :]
    return Sparse(*decode(got, runs, like.space.size), like.space)

  limits = of_all.limits._replace(dropped=dropped)
  return of_all._replace(round=round, pack=pack, unpack=unpack, limits=limits)


def _check(size: int) -> None:
  if not 0 <= size < 2**31:
    raise ValueError(f'size must be in [0, 2**31), got {size}')


def _slots(
  indices: jax.Array, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Each element's slot, the zeros before it, and whether it fits.

  Args:
    indices: int32[count], strictly increasing, then `size` for empty slots.
    size: number of elements that the indices point into.

  Returns:
    (slots int32[count], runs int32[count], fits bool[count]).
  """
  _check(size)
  (count,) = indices.shape
  previous = jnp.concatenate([jnp.full(1, -1, jnp.int32), indices])[:-1]
  run = indices - previous - 1
  escapes = jnp.cumsum(run >> _WIDTH, dtype=jnp.int32)
  slot = jnp.arange(count, dtype=jnp.int32) + escapes
  return slot, run, (indices < size) & (slot < count)
