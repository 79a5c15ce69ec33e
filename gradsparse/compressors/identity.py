"""The compressor of quantisers, which selects every element."""

from __future__ import annotations

from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import LeafRule
from gradsparse.sockets import Leaves

ALL_LEAVES = LeafRule()


def identity(
  name: str,
  code: Code,
  *,
  leaves: LeafRule = ALL_LEAVES,
  unbiased: bool = False,
) -> Compressor:
  """Selects all elements of the leaves; the code compresses them.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([3.0, -1.0])
  >>> compressor = extend.compressors.identity('mine', extend.codes.signs(0.5))
  >>> print(*compressor.select([extend.Signal(x, x)], None).arrays)
  [ 3. -1.]

  Args:
    name: the scheme's name, for tables.
    code: the code of the elements.
    leaves: which leaves are compressed.
    unbiased: whether the expectation of a decoded leaf is the leaf.
  """

  def select(signals, ctx):
    del ctx
    return Leaves([s.value for s in signals])

  return Compressor(name, select, code, leaves=leaves, unbiased=unbiased)
