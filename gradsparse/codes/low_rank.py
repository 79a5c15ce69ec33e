"""PowerSGD's code: one factor of each matrix; the other is agreed upon."""

from __future__ import annotations

import math
from typing import Any

from gradsparse.sockets import Code
from gradsparse.sockets import Context
from gradsparse.sockets import Cut
from gradsparse.sockets import Leaves
from gradsparse.sockets import Shape
import jax


def matrix_shape(shape: Shape) -> tuple[int, int]:
  """A leaf as a matrix: its last index (output units) are the columns."""
  return math.prod(shape[:-1]), shape[-1]


def matrices(leaves: list[jax.Array]) -> list[jax.Array]:
  """Leaves as matrices."""
  return [x.reshape(matrix_shape(x.shape)) for x in leaves]


def matrix_cut(
  cut: Cut, shape: Shape
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The mesh axes over which a matrix's rows and columns are divided."""
  padded = (*cut, *[()] * (len(shape) - len(cut)))
  return tuple(a for axes in padded[:-1] for a in axes), padded[-1]


def divided(ctx: Context) -> list[tuple[Any, Any]]:
  """The devices that have the other rows, and the other columns, of each leaf.

  Returns:
    A pair of `collectives.Shards` for each leaf.
  """
  cuts = zip(ctx.cuts, ctx.shapes, strict=True)
  both = (matrix_cut(cut, shape) for cut, shape in cuts)
  return [
    (ctx.shards.over(rows), ctx.shards.over(columns)) for rows, columns in both
  ]


def low_rank() -> Code:
  """M^T P of each matrix M, where the workers agreed on P; stands for P Q^T.

  `Context.agreed` is a list of orthonormal P, (rows, r) each. Factors Q of
  several workers may be added up: P is the same.

  References:
    Vogels et al., arXiv 1905.13727, algorithm 1.
  """

  def round(selected, ctx):
    pairs = zip(matrices(selected.arrays), ctx.agreed, strict=True)
    return [
      rows.sum(m.T @ p)
      for (m, p), (rows, _) in zip(pairs, divided(ctx), strict=True)
    ]

  def decode(factors, ctx, summands):
    del summands
    return Leaves(
      [
        (p @ q.T).reshape(shape)
        for p, q, shape in zip(ctx.agreed, factors, ctx.shapes, strict=True)
      ]
    )

  def gain(shapes):
    # A column of M, projected, can have all its length in one number.
    return math.sqrt(max((matrix_shape(s)[0] for s in shapes), default=1))

  return Code(
    pack=lambda factors, ctx: factors,
    unpack=lambda words, like, ctx: words,
    round=round,
    decode=decode,
    name='low rank',
    takes=Leaves,
    adds=True,
    gain=gain,
  )
