"""The rules for products with parameters: dense layers and convolutions.

The gradient of one example is sum_t a_t d_t^T, see `uses`. A rule computes the
factors a and d, and reshapes their product to the parameter's shape.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

from gradsparse.backend import platforms
from gradsparse.collectives import mesh_axes
import jax
import jax.numpy as jnp

# (a, d) of one example; also (operand, derivative) and (sums, squares).
Pair = tuple[jax.Array, jax.Array]
_BLOCK_BYTES = 64 << 20


class Product(abc.ABC):
  """A use whose gradient is a sum of outer products."""

  @abc.abstractmethod
  def factors(self, x: jax.Array, d: jax.Array) -> Pair:
    """(float32[t, groups, k], float32[t, groups, n]) of one example.

    Args:
      x: the other operand of the product.
      d: derivative with respect to the result.
    """

  @abc.abstractmethod
  def assemble(self, product: jax.Array) -> jax.Array:
    """Reshapes [groups, k, n] to a gradient in q's shape."""


@dataclasses.dataclass(frozen=True)
class Dense(Product):
  """`dot_general`: x and q in any order, with any dimension numbers.

  Attributes:
    shape: of q.
    contract: the contracted dimensions (of x, of q).
    batch: the batch dimensions (of x, of q).
    first: whether x is the left operand.
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
    """Whether q is a matrix, one of whose dimensions is contracted."""
    counts = len(self.shape), len(self.contract[1]), len(self.batch[1])
    return counts == (2, 1, 0)

  @property
  def _order(self) -> tuple[int, ...]:
    """q's dimensions in the order of [groups, k, n]."""
    if self._is_matrix:
      return 0, 1
    named = (*self.batch[1], *self.contract[1])
    return (*named, *(i for i in range(len(self.shape)) if i not in named))

  def factors(self, x: jax.Array, d: jax.Array) -> Pair:
    a, d = self._met(x, d)
    # A matrix has the factors (rows, columns), whichever is contracted.
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
class Convolution(Product):
  """`conv_general_dilated` with kernel q.

  Attributes:
    shape: of q.
    x_order: of x's dimensions as (images, *space, channels).
    q_order: of q's dimensions as (*space, channels in, channels out).
    d_order: of the result's dimensions as (images, *space, channels).
    strides: of the window.
    padding: (before, after, between) for each dimension of space.
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
    """The kernel's sizes in space."""
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
        x, (0, *begin, 0), (images, *end, x.shape[-1]), (1, *self.strides, 1)
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


def dense(eqn: Any, position: int) -> Dense:
  """The rule for a `dot_general`, see `uses.match`."""
  contract, batch = eqn.params['dimension_numbers']
  other = 1 - position
  return Dense(
    eqn.invars[position].aval.shape,
    contract=(tuple(contract[other]), tuple(contract[position])),
    batch=(tuple(batch[other]), tuple(batch[position])),
    first=other == 0,
  )


def transposed(rule: Dense) -> Dense | None:
  """The rule of the same use for q's transpose, a matrix, or None."""
  if not rule.contract[1] or rule.batch[1]:
    return None
  met, own = rule.contract
  return dataclasses.replace(
    rule, shape=rule.shape[::-1], contract=(met, tuple(1 - i for i in own))
  )


def convolution(eqn: Any, position: int) -> Convolution | None:
  """The rule for a `conv_general_dilated`, see `uses.match`."""
  shape, params = eqn.invars[position].aval.shape, eqn.params
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


def all_factors(rules: Sequence[Product], pairs: Sequence[Pair]) -> Pair:
  """The factors of one example in all uses: float32[t, groups, ...]."""
  parts = [
    jax.vmap(rule.factors)(*pair)
    for rule, pair in zip(rules, pairs, strict=True)
  ]
  a, d = (
    jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in xs])
    for xs in zip(*parts, strict=True)
  )
  return a.astype(jnp.float32), d.astype(jnp.float32)


def sums(products: Sequence[tuple[Product, Pair]]) -> Pair:
  """See `uses.sums`."""
  rules, pairs = zip(*products, strict=True)
  rule, factors = rules[0], functools.partial(all_factors, rules)
  a, d = jax.eval_shape(jax.vmap(factors), pairs)
  if a.shape[1] == 1:
    a, d = jax.vmap(factors)(pairs)
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

  start = jnp.zeros(shape, jnp.float32) + mesh_axes.varying_zero(pairs)
  blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), pairs)
  (total, squares), _ = jax.lax.scan(add, (start, start), blocks)
  return rule.assemble(total), rule.assemble(squares)


def _block(examples: int, nbytes: int) -> int:
  """The number of examples that are multiplied at a time.

  Args:
    examples: the number of all examples.
    nbytes: bytes of one example's gradient.
  """
  if platforms.loops_freely():
    return 1  # batches of small matrices are slow there
  most = max(1, _BLOCK_BYTES // nbytes)
  return max(
    n for n in range(1, examples + 1) if not examples % n and n <= most
  )


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
  return tuple(sorted(range(len(order)), key=lambda i: order[i]))
