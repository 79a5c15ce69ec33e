"""TernGrad's code: -1, 0 or 1 times a scale of all workers, to be summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradsparse import draws
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp

_LARGE = 1 << 14  # so many codes are packed by themselves


def field_width(workers: int) -> int:
  """Bits that hold a sum of P codes in {0, 1, 2}.

  Raises:
    ValueError: a word holds one such sum only, as it holds one float32.
  """
  width = max(2, (2 * workers).bit_length())
  if width > 16:
    raise ValueError(
      'sums of ternary codes take a word each from 32,768 workers on, as '
      f'gradients do, got num_workers {workers:,}: use gs.dense'
    )
  return width


def _pack(codes: jax.Array, width: int) -> jax.Array:
  """Fields that never cross a word, so that words may be added up."""
  lanes = 32 // width
  codes = codes.astype(jnp.uint32)
  codes = jnp.pad(codes, (0, -codes.shape[0] % lanes)).reshape(-1, lanes)
  shifts = jnp.arange(lanes, dtype=jnp.uint32)[None] * width
  return jnp.sum(codes << shifts, axis=1, dtype=jnp.uint32)


def _unpack(words: jax.Array, count: int, width: int) -> jax.Array:
  lanes = 32 // width
  shifts = jnp.arange(lanes, dtype=jnp.uint32)[None] * width
  fields = (words[:, None] >> shifts) & ((1 << width) - 1)
  return fields.reshape(-1)[:count]


class _Order(NamedTuple):
  """How leaves follow one another in a message.

  Attributes:
    alone: large leaves that fill whole words. These come first, and are packed
      where they are computed: joined, they would be copied.
    rest: the others, joined.
  """

  alone: list[int]
  rest: list[int]


def _order(sizes: Sequence[int], width: int) -> _Order:
  lanes = 32 // width
  order = _Order([], [])
  for number, size in enumerate(sizes):
    fits = size >= _LARGE and size % lanes == 0
    (order.alone if fits else order.rest).append(number)
  return order


def ternary() -> Code:
  """s sign(g) b with P(b = 1) = |g| / s, where the workers agreed on s.

  A number travels as 0, 1 or 2, in a field that is wide enough for the sum of
  P of them. `Context.prepared` is float32[leaves], s of each leaf.

  References:
    Wen et al., arXiv 1705.07878, eq. 2 and section 3.3.
  """

  def round(selected, ctx):
    sizes = [(x.size,) for x in selected.arrays]
    scales = joining.split(
      barriers.barrier_if_shared(ctx.prepared, len(sizes)), [()] * len(sizes)
    )
    uniforms = draws.uniform_of_each(ctx.key, sizes)

    def one(leaf, scale, uniform):
      g = leaf.reshape(-1)
      kept = uniform < jnp.abs(g) / jnp.where(scale > 0, scale, 1.0)
      ternary = jnp.where(kept, jnp.sign(g), 0.0).astype(jnp.int32)
      return (ternary + 1).astype(fixed_width.narrowest(0, 2 * ctx.workers))

    return list(map(one, selected.arrays, scales, uniforms))

  def pack(codes, ctx):
    width = field_width(ctx.workers)
    alone, rest = _order([x.shape[0] for x in codes], width)
    parts = [codes[i] for i in alone]
    if rest:
      parts.append(joining.concat([codes[i] for i in rest]))
    return joining.concat([_pack(part, width) for part in parts])

  def unpack(words, like, ctx):
    width, sizes = field_width(ctx.workers), [x.shape[0] for x in like]
    alone, rest = _order(sizes, width)
    counts = [sizes[i] for i in alone]
    if rest:
      counts.append(sum(sizes[i] for i in rest))
    lengths = [(-(-count // (32 // width)),) for count in counts]
    parts = [
      _unpack(own, count, width)
      for own, count in zip(joining.split(words, lengths), counts, strict=True)
    ]
    if rest:
      parts += joining.split(parts.pop(), [(sizes[i],) for i in rest])
    fields = dict(zip(alone + rest, parts, strict=True))
    return [fields[i].astype(x.dtype) for i, x in enumerate(like)]

  def decode(codes, ctx, summands):
    shapes = ctx.shapes
    scales = joining.split(
      barriers.barrier_if_shared(ctx.prepared, len(shapes)), [()] * len(shapes)
    )

    def one(part, scale, shape):
      total = part.astype(jnp.int32) - summands
      return (total.astype(jnp.float32) * scale).reshape(shape)

    return Leaves(list(map(one, codes, scales, shapes)))

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    combines='sums',
    bounds=lambda codes, ctx: ctx.prepared,
  )
