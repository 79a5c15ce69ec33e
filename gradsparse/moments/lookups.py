"""The rule for lookups of a parameter's rows, as in an embedding."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

from gradsparse.collectives import mesh_axes
from gradsparse.moments import products
from gradsparse.moments.products import Pair
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Lookup:
  """A `gather` of whole rows of q.

  Attributes:
    shape: of q.
    params: of the primitive.
  """

  shape: tuple[int, ...]
  params: Any = dataclasses.field(compare=False)

  @property
  def layout(self) -> Any:
    return self.shape


def lookup(eqn: Any, position: int) -> Lookup | None:
  """The rule for a `gather`, see `uses.match`."""
  shape, params = eqn.invars[position].aval.shape, eqn.params
  numbers = params['dimension_numbers']
  rows = (
    position == 0
    and numbers.collapsed_slice_dims == (0,)
    and numbers.start_index_map == (0,)
    and not numbers.operand_batching_dims
    and tuple(params['slice_sizes']) == (1, *shape[1:])
    # With clipping, a row would have several indices.
    and params['mode'] != jax.lax.GatherScatterMode.CLIP
  )
  return Lookup(shape, params) if rows else None


class Rows:
  """The rows that examples look up, in all uses of q.

  Args:
    lookups: the uses of q, each with its indices and the derivative of the
      result.
  """

  def __init__(self, lookups: Sequence[tuple[Lookup, Pair]]):
    rule = lookups[0][0]
    self._shape = rule.shape
    self._varying = mesh_axes.varying_zero([pair for _, pair in lookups])
    width = math.prod(rule.shape[1:])

    def rows(rule, indices, d):
      """The indices [t] and derivatives [t, width] of one use in one step."""
      offsets = rule.params['dimension_numbers'].offset_dims
      d = jnp.moveaxis(d, offsets, range(d.ndim - len(offsets), d.ndim))
      return indices.reshape(-1), d.reshape(-1, width).astype(jnp.float32)

    parts = [
      jax.vmap(jax.vmap(functools.partial(rows, rule)))(*pair)
      for rule, pair in lookups
    ]
    # int[examples, t] and float32[examples, t, width].
    self._at, self._d = (
      jnp.concatenate([x.reshape(len(x), -1, *x.shape[3:]) for x in xs], axis=1)
      for xs in zip(*parts, strict=True)
    )

  def sums(self) -> Pair:
    """See `uses.sums`; several lookups of one row share the square equally."""
    same = (self._at[:, :, None] == self._at[:, None, :]).astype(jnp.float32)
    whole = jnp.einsum('zts,zsw->ztw', same, self._d)
    share = whole * whole / jnp.sum(same, axis=2, keepdims=True)
    return self._added(self._d), self._added(share)

  def times(self, others: Sequence[tuple[products.Product, Pair]]) -> jax.Array:
    """Sum over examples of these gradients times those of products with q.

    Of the gradients of products, only rows that the example looks up are
    computed.

    Args:
      others: the products of q, a matrix.
    """
    rules, pairs = zip(*others, strict=True)
    a, d = jax.vmap(functools.partial(products.all_factors, rules))(pairs)
    of_rows = jnp.take_along_axis(
      a[:, :, 0], self._at[:, None, :], axis=2, mode='clip'
    )
    theirs = jnp.einsum('zst,zsw->ztw', of_rows, d[:, :, 0])
    return self._added(theirs * self._d)

  def _added(self, x: jax.Array) -> jax.Array:
    """Adds rows at their indices in q; drops those out of bounds."""
    shape = self._shape[0], x.shape[-1]
    empty = jnp.zeros(shape, jnp.float32) + self._varying
    added = empty.at[self._at.reshape(-1)].add(
      x.reshape(-1, x.shape[-1]), mode='drop', wrap_negative_indices=False
    )
    return added.reshape(self._shape)
