"""TernGrad's code: -1, 0 or 1 times a scale that all workers share."""

from __future__ import annotations

from gradsparse import draws
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import Shortcuts
from gradsparse.wire import fixed_width
from gradsparse.wire import planar
import jax.numpy as jnp


def field_width(workers: int) -> int:
  """The bits of a sum of P codes in {0, 1, 2}.

  Raises:
    ValueError: a word would hold one sum only, no more than a float32.
  """
  width = max(2, (2 * workers).bit_length())
  if width > 16:
    raise ValueError(
      'num_workers must be below 32,768 for ternary codes, got '
      f'{workers:,}: their sums would take 32 bits each; use gs.dense'
    )
  return width


def ternary() -> Code:
  """s sign(g) b with P(b = 1) = |g| / s; all workers share s.

  A number is sent as 0, 1 or 2, in a field that is wide enough for the sum of P
  numbers. `Context.prepared` is float32[leaves], s of each leaf.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([4.0, 0.0, -4.0])
  >>> leaves, key = extend.MessageLeaves((x.shape,)), jax.random.key(0)
  >>> ctx = extend.Context(leaves, 1, 0, key, key, prepared=jnp.array([4.0]))
  >>> code = extend.codes.ternary()
  >>> print(*jax.jit(lambda: code.round(extend.Leaves([x]), ctx))())
  [2 1 0]

  References:
    Wen et al., arXiv 1705.07878, eq. 2 and section 3.3.
  """

  def round(selected, ctx):
    scales = joining.split(
      barriers.barrier_if_shared(ctx.prepared, len(ctx.shapes)),
      [()] * len(ctx.shapes),
    )
    uniforms = draws.uniform_of_each(ctx.key, ctx.shapes)

    def one(g, scale, uniform):
      kept = uniform < jnp.abs(g) / jnp.where(scale > 0, scale, 1.0)
      ternary = jnp.where(kept, jnp.sign(g), 0.0).astype(jnp.int32)
      narrow = fixed_width.narrowest(0, 2 * ctx.workers)
      return platforms.narrowed(ternary + 1, narrow)

    return list(map(one, selected.arrays, scales, uniforms))

  def pack(codes, ctx):
    return planar.pack_each(planar.matrices(codes), field_width(ctx.workers))

  def unpack(words, like, ctx):
    width = field_width(ctx.workers)
    shapes = [planar.matrix(x.shape) for x in like]
    fields = planar.unpack_each(words, shapes, width)
    return [
      x.reshape(own.shape).astype(own.dtype)
      for x, own in zip(fields, like, strict=True)
    ]

  def decode(codes, ctx, summands):
    shapes = ctx.shapes
    scales = joining.split(
      barriers.barrier_if_shared(ctx.prepared, len(shapes)), [()] * len(shapes)
    )

    def one(total, scale):
      total = total.astype(jnp.int32) - summands
      return total.astype(jnp.float32) * scale

    return Leaves(list(map(one, codes, scales)))

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    combines='sums',
    shortcuts=Shortcuts(bounds=lambda codes, ctx: ctx.prepared),
  )
