"""What a parameter's gradients of all examples are, from how it was used.

A parameter q that meets an example in a product (a dense layer, a convolution)
has the gradient g_z = sum_t a_zt d_zt^T: a are the layer's inputs, d the
derivatives with respect to its outputs, and t goes over the pixels of an image
or the steps of a recurrent network. From all a and d come, without a gradient
of every example side by side,

  sum_z g_z   and   sum_z g_z^2 (elementwise).

With one t that is A^T D and (A * A)^T (D * D). With several, one product an
example, added up in blocks of examples.

A rule here knows one primitive of JAX. `match` gives the rule for an equation
whose operand `position` is the parameter, or None where it does not know how.
Rules with the same `layout` may be added up: they give gradients of q alike.
A matrix may be looked up and multiplied, as it is and transposed (an embedding
that is the output's matrix, too).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

# Of one example's a and d, and of what becomes of them.
Pair = tuple[jax.Array, jax.Array]
_BLOCK_BYTES = 64 << 20


def zero(tree: Any) -> jax.Array:
  """A zero that shard_map types as varying wherever a leaf does."""
  found = jnp.float32(0)
  for x in jax.tree.leaves(tree):
    if not jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended):
      any_of_it = jnp.any(jnp.ravel(x)[:1] != 0)
      found = found + jnp.where(any_of_it, 0.0, 0.0)
  return found


class _Product(abc.ABC):
  """A use whose gradient is a sum of outer products."""

  @abc.abstractmethod
  def factors(self, x: jax.Array, d: jax.Array) -> Pair:
    """(float32[t, groups, k], float32[t, groups, n]) of one example.

    Args:
      x: what q was multiplied with.
      d: derivative with respect to the result.
    """

  @abc.abstractmethod
  def assemble(self, product: jax.Array) -> jax.Array:
    """A gradient in q's shape, from [groups, k, n]."""


@dataclasses.dataclass(frozen=True)
class Dense(_Product):
  """`dot_general`: x and q in any order, with any dimension numbers.

  Attributes:
    shape: of q.
    contract: dimensions (of x, of q).
    batch: dimensions (of x, of q).
    first: x is the left operand.
  """

  shape: tuple[int, ...]
  contract: tuple[tuple[int, ...], tuple[int, ...]]
  batch: tuple[tuple[int, ...], tuple[int, ...]]
  first: bool

  @property
  def layout(self) -> Any:
    if self._is_matrix:
      return self.shape
    return self.shape, self.contract[1], self.batch[1]

  @property
  def _is_matrix(self) -> bool:
    """Whether q has rows and columns, and one of them meets x."""
    counts = len(self.shape), len(self.contract[1]), len(self.batch[1])
    return counts == (2, 1, 0)

  @property
  def _order(self) -> tuple[int, ...]:
    """q's dimensions as [groups, k, n] has them."""
    if self._is_matrix:
      return 0, 1
    named = (*self.batch[1], *self.contract[1])
    return (*named, *(i for i in range(len(self.shape)) if i not in named))

  def factors(self, x: jax.Array, d: jax.Array) -> Pair:
    a, d = self._met(x, d)
    # Those of a matrix are its rows' and its columns', whatever meets x.
    return (d, a) if self._is_matrix and self.contract[1] == (1,) else (a, d)

  def _met(self, x: jax.Array, d: jax.Array) -> Pair:
    named = (*self.batch[0], *self.contract[0])
    free = [i for i in range(x.ndim) if i not in named]
    groups = math.prod(x.shape[i] for i in self.batch[0])
    steps = math.prod(x.shape[i] for i in free)
    a = x.transpose(*self.batch[0], *free, *self.contract[0])
    a = a.reshape(groups, steps, -1).swapaxes(0, 1)
    if self.first:
      return a, d.reshape(groups, steps, -1).swapaxes(0, 1)
    return a, d.reshape(groups, -1, steps).transpose(2, 0, 1)

  def assemble(self, product: jax.Array) -> jax.Array:
    permuted = product.reshape([self.shape[i] for i in self._order])
    return permuted.transpose(_inverse(self._order))


@dataclasses.dataclass(frozen=True)
class Convolution(_Product):
  """`conv_general_dilated` with kernel q.

  Attributes:
    shape: of q.
    x_order: of x's dimensions as (images, *space, channels).
    q_order: of q's dimensions as (*space, channels in, channels out).
    d_order: of the result's dimensions as (images, *space, channels).
    strides: of the window.
    padding: (before, after, between) each dimension of space.
    dilation: of the kernel.
    groups: of channels.
  """

  shape: tuple[int, ...]
  x_order: tuple[int, ...]
  q_order: tuple[int, ...]
  d_order: tuple[int, ...]
  strides: tuple[int, ...]
  padding: tuple[tuple[int, int, int], ...]
  dilation: tuple[int, ...]
  groups: int

  @property
  def layout(self) -> Any:
    return self.shape, self.q_order, self.groups

  @property
  def _taps(self) -> tuple[int, ...]:
    """Sizes of the kernel in space."""
    return tuple(self.shape[i] for i in self.q_order[:-2])

  def factors(self, x: jax.Array, d: jax.Array) -> Pair:
    x, d = x.transpose(self.x_order), d.transpose(self.d_order)
    images, *space, _ = d.shape
    x = jax.lax.pad(x, x.dtype.type(0), [(0, 0, 0), *self.padding, (0, 0, 0)])
    patches = []
    for at in itertools.product(*map(range, self._taps)):
      begin = [i * step for i, step in zip(at, self.dilation, strict=True)]
      end = [
        b + s * (n - 1) + 1
        for b, s, n in zip(begin, self.strides, space, strict=True)
      ]
      patch = jax.lax.slice(
        x,
        (0, *begin, 0),
        (images, *end, x.shape[-1]),
        (1, *self.strides, 1),
      )
      patches.append(patch.reshape(-1, self.groups, x.shape[-1] // self.groups))
    return (
      jnp.concatenate(patches, axis=2),
      d.reshape(-1, self.groups, d.shape[-1] // self.groups),
    )

  def assemble(self, product: jax.Array) -> jax.Array:
    inputs = self.shape[self.q_order[-2]]
    product = product.reshape(self.groups, *self._taps, inputs, -1)
    ordered = jnp.moveaxis(product, 0, -2)
    ordered = ordered.reshape(*ordered.shape[:-2], -1)
    return ordered.transpose(_inverse(self.q_order))


@dataclasses.dataclass(frozen=True)
class Lookup:
  """`gather` of whole rows of q, as an embedding does.

  Attributes:
    shape: of q.
    params: of the primitive.
  """

  shape: tuple[int, ...]
  params: Any = dataclasses.field(compare=False)

  @property
  def layout(self) -> Any:
    return self.shape


Rule = Dense | Convolution | Lookup


def transposed(rule: Rule) -> Rule | None:
  """The same use of q's transpose, a matrix; None: it has no rule."""
  if not isinstance(rule, Dense) or not rule.contract[1] or rule.batch[1]:
    return None
  met, own = rule.contract
  return dataclasses.replace(
    rule,
    shape=rule.shape[::-1],
    contract=(met, tuple(1 - i for i in own)),
  )


def match(eqn: Any, position: int) -> Rule | None:
  """The rule for an equation whose operand `position` alone is a parameter."""
  shape = eqn.invars[position].aval.shape
  params = eqn.params
  if eqn.primitive.name == 'dot_general':
    contract, batch = params['dimension_numbers']
    other = 1 - position
    return Dense(
      shape,
      contract=(tuple(contract[other]), tuple(contract[position])),
      batch=(tuple(batch[other]), tuple(batch[position])),
      first=other == 0,
    )
  if eqn.primitive.name == 'conv_general_dilated':
    return _convolution(shape, position, params)
  if eqn.primitive.name == 'gather':
    return _lookup(shape, position, params)
  return None


def _convolution(shape, position, params):
  if position != 1 or params['batch_group_count'] != 1:
    return None
  numbers = params['dimension_numbers']

  def last(spec):
    return (spec[0], *spec[2:], spec[1])

  out, inside, *space = numbers.rhs_spec
  return Convolution(
    shape=shape,
    x_order=last(numbers.lhs_spec),
    q_order=(*space, inside, out),
    d_order=last(numbers.out_spec),
    strides=tuple(params['window_strides']),
    padding=tuple(
      (low, high, step - 1)
      for (low, high), step in zip(
        params['padding'], params['lhs_dilation'], strict=True
      )
    ),
    dilation=tuple(params['rhs_dilation']),
    groups=params['feature_group_count'],
  )


def _lookup(shape, position, params):
  numbers = params['dimension_numbers']
  rows = (
    position == 0
    and numbers.collapsed_slice_dims == (0,)
    and numbers.start_index_map == (0,)
    and not numbers.operand_batching_dims
    and tuple(params['slice_sizes']) == (1, *shape[1:])
    # A row that is clipped into the table would have two indices.
    and params['mode'] != jax.lax.GatherScatterMode.CLIP
  )
  return Lookup(shape, params) if rows else None


def sums(rules: Sequence[Rule], pairs: Sequence[Pair]) -> Pair:
  """Sum over examples of the gradients of q, and of their squares.

  Args:
    rules: how q was used, each time; all of one layout.
    pairs: for each use what q met and the derivative with respect to the
      result, [examples, steps of loops, ...].

  Returns:
    Two of float32 in q's shape.
  """
  both = list(zip(rules, pairs, strict=True))
  lookups = [(r, x) for r, x in both if isinstance(r, Lookup)]
  products = [(r, x) for r, x in both if isinstance(r, _Product)]
  if not lookups:
    return _product_sums(products)
  rows = _Rows(lookups)
  if not products:
    return rows.sums()
  total, squares = (
    x + y for x, y in zip(rows.sums(), _product_sums(products), strict=True)
  )
  return total, squares + 2 * rows.times(products)


def _factors(products: Sequence[tuple[_Product, Pair]]) -> Pair:
  """float32[t, groups, ...] of one example, all uses one after another."""
  parts = [jax.vmap(rule.factors)(*pair) for rule, pair in products]
  a, d = (
    jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in xs])
    for xs in zip(*parts, strict=True)
  )
  return a.astype(jnp.float32), d.astype(jnp.float32)


def _product_sums(products: Sequence[tuple[_Product, Pair]]) -> Pair:
  rules, pairs = zip(*products, strict=True)
  rule = rules[0]

  def factors(pairs):
    return _factors(list(zip(rules, pairs, strict=True)))

  a, d = jax.eval_shape(jax.vmap(factors), list(pairs))
  if a.shape[1] == 1:
    a, d = jax.vmap(factors)(list(pairs))
    total, squares = (
      jnp.einsum('ztgk,ztgn->gkn', f(a), f(d))
      for f in (lambda x: x, jnp.square)
    )
    return rule.assemble(total), rule.assemble(squares)

  shape = (a.shape[2], a.shape[3], d.shape[3])
  block = _block(a.shape[0], 4 * math.prod(shape))

  def add(carry, part):
    each = jnp.einsum('ztgk,ztgn->zgkn', *jax.vmap(factors)(part))
    total, squares = carry
    carry = total + jnp.sum(each, 0), squares + jnp.sum(each * each, 0)
    return carry, None

  start = jnp.zeros(shape) + zero(pairs)
  blocks = jax.tree.map(
    lambda x: x.reshape(-1, block, *x.shape[1:]), list(pairs)
  )
  (total, squares), _ = jax.lax.scan(add, (start, start), blocks)
  return rule.assemble(total), rule.assemble(squares)


def _block(examples: int, nbytes: int) -> int:
  """How many examples are multiplied at a time.

  Args:
    examples: in all.
    nbytes: of the gradient of one.
  """
  if jax.default_backend() == 'cpu':
    return 1  # XLA multiplies batches of small matrices slowly there
  most = max(1, _BLOCK_BYTES // nbytes)
  return max(
    n for n in range(1, examples + 1) if not examples % n and n <= most
  )


class _Rows:
  """What examples look up, in all uses one after another.

  Args:
    lookups: of q, with what it met and the derivative of the result.
  """

  def __init__(self, lookups: Sequence[tuple[Lookup, Pair]]):
    rule = lookups[0][0]
    self._shape = rule.shape
    self._varying = zero([pair for _, pair in lookups])
    width = math.prod(rule.shape[1:])

    def rows(rule, indices, d):
      """Of one use in one step: [t], [t, width]."""
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
    """Where an example looks a row up c times, each has a share of its square."""
    same = (self._at[:, :, None] == self._at[:, None, :]).astype(jnp.float32)
    whole = jnp.einsum('zts,zsw->ztw', same, self._d)
    share = whole * whole / jnp.sum(same, axis=2, keepdims=True)
    return self._added(self._d), self._added(share)

  def times(self, products: Sequence[tuple[_Product, Pair]]) -> jax.Array:
    """Sum over examples of these gradients times those of products with q.

    Only the rows that an example has looked up are computed of the latter.

    Args:
      products: of q, a matrix.
    """
    rules, pairs = zip(*products, strict=True)
    a, d = jax.vmap(lambda x: _factors(list(zip(rules, x, strict=True))))(
      list(pairs)
    )
    of_rows = jnp.take_along_axis(
      a[:, :, 0], self._at[:, None, :], axis=2, mode='clip'
    )
    theirs = jnp.einsum('zst,zsw->ztw', of_rows, d[:, :, 0])
    return self._added(theirs * self._d)

  def _added(self, x: jax.Array) -> jax.Array:
    """Rows where they belong in q; those out of bounds nowhere."""
    empty = jnp.zeros((self._shape[0], x.shape[-1])) + self._varying
    added = empty.at[self._at.reshape(-1)].add(
      x.reshape(-1, x.shape[-1]), mode='drop', wrap_negative_indices=False
    )
    return added.reshape(self._shape)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
  return tuple(sorted(range(len(order)), key=lambda i: order[i]))
