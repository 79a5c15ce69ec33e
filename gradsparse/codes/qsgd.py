"""QSGD's code: a norm for each bucket, an integer level for each element."""

from __future__ import annotations

import math

from gradsparse import draws
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.codes import level_codes
from gradsparse.codes.norm_buckets import buckets
from gradsparse.codes.rounding import Scaled
from gradsparse.codes.rounding import checked
from gradsparse.codes.rounding import quantise
from gradsparse.codes.rounding import scales
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import Limits
from gradsparse.sockets import OfParts
from gradsparse.sockets import Parts
from gradsparse.sockets import Shortcuts
from gradsparse.sockets import Stream
from gradsparse.wire import fixed_width
from gradsparse.wire import planar
import jax
import jax.numpy as jnp


def of_leaves(
  levels: int,
  *,
  bucket_size: int = 512,
  norm: str = 'max',
  code: str = 'fixed',
  elias: str = 'omega',
) -> Code:
  """A level for each element, and 32 bits for each bucket's norm.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([4.0, 0.0, -4.0, 2.0])
  >>> leaves, key = extend.MessageLeaves((x.shape,)), jax.random.key(0)
  >>> ctx = extend.Context(leaves, 1, 0, key, key)
  >>> code = extend.codes.qsgd.of_leaves(2)
  >>> rounded = jax.jit(lambda: code.round(extend.Leaves([x]), ctx))()
  >>> print(rounded.scales, *rounded.codes)
  [4.] [[[ 2  0 -2  1]]]

  Args:
    levels: s, in 1..65534; b bits with the sign allow s = 2^(b-1) - 1.
    bucket_size: d, the most elements of a leaf that share a norm (see
      `Buckets`).
    norm: 'max' (as in the paper's experiments) or 'l2' (as in its theory).
    code: one of `level_codes.CODES`.
    elias: a key of `wire.elias.KINDS`, such as 'omega' (the paper's).

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Alistarh et al., arXiv 1610.02132, sections 3.1 and 4.
  """
  levels, bucket_size, norm = checked(levels, bucket_size, norm)
  stream = level_codes.level_code(code, levels, bucket_size, elias)

  def round(selected, ctx):
    cuts = [buckets(shape, bucket_size) for shape in ctx.shapes]
    uniforms = draws.uniform_of_each(ctx.key, [how.view for how in cuts])
    both = list(zip(cuts, selected.arrays, strict=True))
    norms = barriers.barrier_if_shared(
      [scales(leaf, how, norm) for how, leaf in both], len(cuts)
    )
    signed = [
      quantise(x.reshape(how.view), how.spread(own), levels, uniform)
      for (how, x), own, uniform in zip(both, norms, uniforms, strict=True)
    ]
    return Scaled(signed, joining.concat(norms))

  def pack(rounded, ctx):
    cuts = [buckets(shape, bucket_size) for shape in ctx.shapes]
    words, used = stream.encode(
      [x.reshape(how.rows) for how, x in zip(cuts, rounded.codes, strict=True)]
    )
    sizes = stream.sizes(sum(x.size for x in rounded.codes))
    if len(sizes) == 1:
      return words, rounded.scales
    return Stream(rounded.scales, words, used, sizes)

  def unpack(words, like, ctx):
    if isinstance(words, Stream):
      packed, norms = words.words, words.head
    else:
      packed, norms = words
    rows = [buckets(shape, bucket_size).rows for shape in ctx.shapes]
    signed = stream.decode(packed, rows)
    return Scaled(signed, norms)

  def decode(rounded, ctx, summands):
    del summands
    cuts = [buckets(shape, bucket_size) for shape in ctx.shapes]
    steps = joining.split(
      rounded.scales / levels, [(how.count,) for how in cuts]
    )
    steps = barriers.barrier_if_shared(steps, len(steps))

    def times(own, step):
      return own.astype(jnp.float32) * step

    def one(how, step, own):
      if isinstance(own, planar.Slabs):
        return jax.tree.map(times, own, how.spread(step, own.cut))
      return times(own.reshape(how.view), how.spread(step)).reshape(how.shape)

    return Leaves(list(map(one, cuts, steps, rounded.codes)))

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    limits=Limits(group_elements=stream.most),
    shortcuts=Shortcuts(
      bounds=lambda rounded, ctx: rounded.scales, reads_rows=code == 'fixed'
    ),
  )


def of_parts(levels: int, *, bucket_size: int = 512, norm: str = 'max') -> Code:
  """`of_leaves` for `Parts`: fixed width, buckets of consecutive elements.

  A part of n elements takes n / d words of norms and ceil(n b / 32) words of
  levels, b = ceil(log2(2 s + 1)).

  An element's error is less than norm / s. With 'max' and at least two levels,
  or with 'l2' and s > sqrt(d), the rounding is a contraction and its error is
  fed back. Otherwise a fed-back error could grow from step to step (with 'l2'
  roughly by the factor sqrt(sqrt(d) / s)), so it is dropped; the rounding is
  unbiased without it.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, key = gs.extend, jax.random.key(0)
  >>> parts = extend.Parts.of(jnp.array([[4.0, 0.0, -4.0, 2.0]]), [(4,)])
  >>> ctx = extend.Context(extend.MessageLeaves(((4,),)), 1, 0, key, key)
  >>> code = extend.codes.qsgd.of_parts(2, bucket_size=4)
  >>> rounded = jax.jit(lambda: code.round(parts, ctx))()
  >>> print(rounded.scales, rounded.codes)
  [[4.]] [[ 2  0 -2  1]]

  Args:
    levels: s, in 1..65534.
    bucket_size: d, consecutive elements that share a norm.
    norm: 'max' or 'l2'.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Alistarh et al., arXiv 1610.02132, section 3.1.
  """
  levels, bucket_size, norm = checked(levels, bucket_size, norm)

  def round(parts, ctx):
    # Padding with zeros changes no norm.
    count, n = parts.rows.shape
    how = buckets((count * n,), bucket_size)
    norms = scales(parts.rows, how, norm)
    x, of_each = parts.rows.reshape(how.view), how.spread(norms)
    uniform = draws.uniform(jax.random.fold_in(ctx.key, 0), x.shape)
    signed = quantise(x, of_each, levels, uniform)
    return Scaled(signed.reshape(count, n), norms.reshape(count, -1))

  def pack(rounded, ctx):
    del ctx
    packed = jax.vmap(lambda row: level_codes.pack([row], levels))(
      rounded.codes
    )
    return jnp.concatenate(
      [fixed_width.of_floats(rounded.scales), packed], axis=1
    )

  def unpack(words, like, ctx):
    del ctx
    held, n = like.scales.shape[1], like.codes.shape[1]
    signed = jax.vmap(lambda row: level_codes.unpack(row, [(n,)], levels)[0])(
      words[:, held:]
    )
    return Scaled(signed, fixed_width.floats_of(words[:, :held]))

  def decode(rounded, ctx, summands):
    del summands
    count, held = rounded.scales.shape
    rows = rounded.codes.astype(jnp.float32).reshape(count, held, bucket_size)
    rows = rows * (rounded.scales / levels)[:, :, None]
    return Parts.of(rows.reshape(count, -1), ctx.shapes)

  shrinks = levels >= 2 if norm == 'max' else levels > math.sqrt(bucket_size)
  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    combines=OfParts(bucket_size, is_contraction=shrinks),
  )
