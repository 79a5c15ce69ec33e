"""PowerSGD's code: one factor of each matrix; all workers share the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, NamedTuple

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.sockets import Code
from gradsparse.sockets import Context
from gradsparse.sockets import Cut
from gradsparse.sockets import Leaves
from gradsparse.sockets import Shape
from gradsparse.sockets import Shortcuts
import jax
import jax.numpy as jnp

# From this many leaves of one shape on, a loop is used. It copies each leaf,
# which takes about as long as reading it once more.
_MANY = 8
# Up to this rank a product is computed elementwise: it is no slower, and fuses
# with its readers instead of being one more array.
_FEW = 4


def matrix_shape(shape: Shape) -> tuple[int, int]:
  """A leaf's shape as a matrix: the last index (output units) are columns."""
  return math.prod(shape[:-1]), shape[-1]


def matrix_cut(
  cut: Cut, shape: Shape
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The mesh axes over which a matrix's rows and columns are sharded."""
  padded = (*cut, *[()] * (len(shape) - len(cut)))
  return tuple(a for axes in padded[:-1] for a in axes), padded[-1]


class Matrices(NamedTuple):
  """Leaves of one shape and sharding, which are multiplied together.

  Attributes:
    numbers: the leaves' numbers in the message.
    rows: the devices with the other rows of each leaf (`collectives.Shards`).
    columns: the devices with the other columns.
  """

  numbers: list[int]
  rows: Any
  columns: Any

  def each(
    self,
    fn: Callable[[jax.Array, jax.Array], jax.Array],
    leaves: Sequence[jax.Array],
    factors: jax.Array,
  ) -> jax.Array:
    """Applies fn(matrix, factor) to each of these leaves; stacks the results.

    Args:
      fn: (matrix, one element of factors) -> array.
      leaves: all leaves of the context.
      factors: one factor for each of these matrices.
    """
    same = [leaves[i] for i in self.numbers]
    return _stacked(
      lambda x, factor: fn(x.reshape(matrix_shape(x.shape)), factor),
      same,
      factors,
    )


def together(ctx: Context) -> list[Matrices]:
  """Groups the leaves of a message by shape and sharding."""
  cuts = [
    matrix_cut(cut, shape)
    for cut, shape in zip(ctx.leaves.cuts, ctx.shapes, strict=True)
  ]
  out = []
  for numbers in classes_of(list(zip(ctx.shapes, cuts, strict=True))):
    rows, columns = cuts[numbers[0]]
    shards = ctx.leaves.shards
    out.append(Matrices(numbers, shards.over(rows), shards.over(columns)))
  return out


def turned(factors: Sequence[jax.Array]) -> list[jax.Array]:
  """Transposes factors, before any loop that reads them.

  Where XLA sees a transpose, it computes M^T P for P^T M, which may take many
  times longer.
  """
  turned = [jnp.swapaxes(x, 1, 2) for x in factors]
  return barriers.barrier_if_shared(turned, len(turned))


def _products(p: jax.Array, q: jax.Array) -> Sequence[jax.Array]:
  """P Q^T for each matrix.

  Args:
    p: float32[n, r, rows].
    q: float32[n, r, columns].
  """
  rank = p.shape[1]
  if rank > _FEW:
    return jax.lax.map(lambda pair: pair[0].T @ pair[1], (p, q))
  return [
    functools.reduce(
      jnp.add, (p[i, k, :, None] * q[i, k, None] for k in range(rank))
    )
    for i in range(p.shape[0])
  ]


def low_rank() -> Code:
  """The factor Q = M^T P of each matrix M, decoded as P Q^T.

  All workers share P. A factor is float32[n, r, rows or columns], of n leaves
  of one shape. `Context.prepared` is a list of such P, orthonormal. Factors Q
  of several workers may be summed, as P is the same.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([[2.0, 4.0], [0.0, 0.0]])
  >>> whole = extend.Comm(None).shards  # not sharded
  >>> leaves = extend.MessageLeaves((x.shape,), cuts=((),), shards=whole)
  >>> p = jnp.array([[[1.0, 0.0]]])
  >>> ctx = extend.Context(leaves, 1, 0, None, None, prepared=[p])
  >>> print(*extend.codes.low_rank().round(extend.Leaves([x]), ctx))
  [[[2. 4.]]]

  References:
    Vogels et al., arXiv 1905.13727, algorithm 1.
  """

  def round(selected, ctx):
    return [
      same.rows.sum(same.each(lambda m, p: p @ m, selected.arrays, p))
      for same, p in zip(together(ctx), ctx.prepared, strict=True)
    ]

  def decode(factors, ctx, summands):
    del summands
    arrays: dict[int, jax.Array] = {}
    pairs = zip(ctx.prepared, factors, strict=True)
    for same, (p, q) in zip(together(ctx), pairs, strict=True):
      for number, product in zip(same.numbers, _products(p, q), strict=True):
        arrays[number] = product.reshape(ctx.shapes[number])
    return Leaves([arrays[number] for number in range(len(arrays))])

  def bounds(factors, ctx):
    # No element of P is beyond 1.
    del ctx
    return joining.concat([q.shape[1] * q.reshape(-1) for q in factors])

  return Code(
    pack=lambda factors, ctx: factors,
    unpack=lambda words, like, ctx: words,
    round=round,
    decode=decode,
    takes=Leaves,
    combines='sums',
    shortcuts=Shortcuts(bounds=bounds),
  )


def classes_of(shapes: Sequence[Any]) -> list[list[int]]:
  """Groups the numbers of leaves that are computed together, in leaf order.

  A model of many layers has many leaves and few shapes. Code that is unrolled
  over leaves makes the program and its compile time grow with their number. A
  loop over the leaves of one shape does not.

  Args:
    shapes: the leaves' shapes, or any other key on which a group must agree.
  """
  same: dict[Any, list[int]] = {}
  for number, shape in enumerate(shapes):
    same.setdefault(shape, []).append(number)
  out = []
  for number, shape in enumerate(shapes):
    if len(same[shape]) < _MANY:
      out.append([number])
    elif number == same[shape][0]:
      out.append(same[shape])
  return out


def _stacked(
  fn: Callable[..., Any], leaves: Sequence[jax.Array], *beside: jax.Array
) -> Any:
  """Applies fn to each of several leaves of one shape.

  Args:
    fn: (leaf, one row of each array in beside) -> tree of arrays.
    leaves: one leaf, or several, which are looped over.
    beside: arrays with one row for each leaf.

  Returns:
    The results, stacked along a leading axis.
  """
  if len(leaves) == 1:
    out = fn(leaves[0], *(rows[0] for rows in beside))
    return jax.tree.map(lambda x: x[None], out)

  def one(turn):
    place, *rows = turn
    # Not a stack of all leaves: that would double their memory.
    return fn(jax.lax.switch(place, [lambda x=x: x for x in leaves]), *rows)

  places = jnp.arange(len(leaves), dtype=jnp.int32)
  return jax.lax.map(one, (places, *beside))
