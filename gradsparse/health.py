"""Checks that decide whether a step is accepted.

A worker accumulates a step's gradients only if each number is at most
`LARGEST_GRADIENT`. So a sum of gradients stays within float32 for as many steps
as int32 can count, and the memory need not be read. The entries of a sparse
message are checked before they are sent: their sum over the workers must be
finite. Other messages are checked after the exchange: by the update, which is
equal on all workers, or by bounds that came with the messages
(`Shortcuts.bounds`).

A step that fails on one worker is rejected on all. The other workers keep its
gradients in their memories, and the next step with ordinary gradients succeeds.

NaN fails every comparison. A maximum would not do, as it may pass over NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import functools
import operator
from typing import Any

from gradsparse.backend import barriers
from gradsparse.backend import reductions
import jax
import jax.numpy as jnp

# The largest bfloat16, a little smaller than the largest float32: an update may
# be of either type.
LARGEST = float(jnp.finfo(jnp.bfloat16).max)

# The largest number of a gradient that a worker takes in, and of its second
# moments. A momentum makes a gradient at most 2^24 times as large. So sums over
# 2^31 steps and 256 workers are at most 2^127.
LARGEST_GRADIENT = 2.0**64
LARGEST_MOMENT = 2.0**96


def can_add(gradients: Iterable[jax.Array]) -> jax.Array:
  """Whether a worker can accumulate these gradients, bool scalar.

  The limit of float64 leaves is 2^512: no memory accumulates them.
  """

  def fits(x):
    # Half the exponents of the type: 2^64 of float32, 2^512 of float64.
    most = 2.0**512 if x.dtype == jnp.float64 else LARGEST_GRADIENT
    return jnp.abs(x) <= most

  return _judged(fits, gradients)


def can_add_moments(moments: Any) -> jax.Array:
  """Whether no second moment is negative or too large, bool scalar."""
  leaves = [(x,) for x in jax.tree.leaves(moments)]
  return holds(lambda x: (x >= 0) & (x <= LARGEST_MOMENT), leaves)


def can_send(values: jax.Array, workers: int) -> jax.Array:
  """Whether the sum of such numbers over workers is finite, bool scalar."""
  return reductions.all_true(
    lambda x: jnp.abs(x) <= LARGEST / workers, [(values,)]
  )


def all_finite(leaves: Iterable[jax.Array]) -> jax.Array:
  """Whether all numbers are finite, bool scalar."""
  return _judged(jnp.isfinite, leaves)


def norm(leaves: Iterable[jax.Array]) -> tuple[jax.Array, jax.Array]:
  """The 2-norm of all leaves together, as two factors.

  The product of the factors may overflow. The second factor does not, whereas a
  sum of plain squares would.

  Returns:
    (float32, the largest magnitude; float32, the norm divided by it): 0 and 0
    where there is no element, and NaN where an element is not finite. Both are
    float64 if a leaf is.
  """
  leaves = list(leaves)
  is_wide = any(x.dtype == jnp.float64 for x in leaves)
  kind = jnp.float64 if is_wide else jnp.float32
  flat = [x.astype(kind).reshape(-1) for x in leaves]
  tops = [jnp.max(jnp.abs(x), initial=0.0) for x in flat]
  top = functools.reduce(jnp.maximum, tops, kind(0))
  unit = jnp.where(top > 0, top, 1.0)
  squares = [jnp.sum(jnp.square(x / unit)) for x in flat]
  return top, jnp.sqrt(sum(squares, kind(0)))


def wide(dtype: Any) -> Any:
  """The type in which gradients of a dtype are summed."""
  return jnp.float64 if dtype == jnp.float64 else jnp.float32


def widened(tree: Any, *, copy: bool = False) -> Any:
  """The arrays of a tree, of the types of `wide`.

  Args:
    tree: the arrays.
    copy: whether arrays that have this type are copied, too.
  """

  def one(x):
    x = jnp.asarray(x)
    return x.astype(wide(x.dtype), copy=copy)

  return jax.tree.map(one, tree)


def wide_zeros(tree: Any) -> Any:
  """Zeros in the shapes of a tree, of the types of `wide`."""
  return jax.tree.map(
    lambda x: jnp.zeros(jnp.shape(x), wide(jnp.result_type(x))), tree
  )


def is_narrow(dtype: Any) -> bool:
  """Whether the type's largest number is below `LARGEST`."""
  return float(jnp.finfo(dtype).max) < LARGEST


def holds(
  test: Callable[..., jax.Array], leaves: Iterable[tuple[jax.Array, ...]]
) -> jax.Array:
  """Whether a test holds for all leaves; each leaf is a tuple of arrays."""
  alike: dict[Any, list[tuple[jax.Array, ...]]] = {}
  for arrays in leaves:
    if arrays:
      kinds = tuple(x.dtype for x in arrays)
      alike.setdefault(kinds, []).append(arrays)
  return functools.reduce(
    operator.and_,
    (reductions.all_true(test, own) for own in alike.values()),
    jnp.bool_(True),
  )


def _judged(
  test: Callable[[jax.Array], jax.Array], leaves: Iterable[jax.Array]
) -> jax.Array:
  """Whether a test holds for all leaves, not computed once for each reader."""
  arrays = [(x,) for x in leaves]
  return barriers.barrier_if_shared(holds(test, arrays), len(arrays))
