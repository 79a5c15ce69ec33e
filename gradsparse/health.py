"""Checks that decide whether a step is accepted.

A worker accumulates a step's gradients only if the memory's new numbers are
small enough: their sum over the workers must stay within float32. Finite
gradients are not enough for that. The entries of a sparse message are checked
in the same way before they are sent. Other messages are checked after the
exchange: by the update, which is equal on all workers, or by bounds that came
with the messages (`Shortcuts.bounds`).

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

# An exchange's own residual and a changing momentum add to the sum over
# workers. Together they stay within this many times that sum.
_ROOM = 4


def largest_kept(workers: int, gain: float) -> float:
  """The largest magnitude that a worker may accumulate.

  Args:
    workers: P.
    gain: the code's `Limits.gain`.
  """
  return LARGEST / (_ROOM * workers * gain)


def can_keep(
  new: Any, old: Any, values: Iterable[jax.Array], largest: float
) -> jax.Array:
  """Whether a worker can accumulate a step's gradients, bool scalar.

  A number of the memory may exceed `largest` if the step did not enlarge it, so
  that ordinary gradients are accepted whatever the memory holds. The check is
  one pass over what accumulating reads.

  Args:
    new: the memory after accumulating (`Memory.magnitudes`).
    old: the memory before.
    values: gradients that are delivered without a memory.
    largest: see `largest_kept`.
  """

  def fits(*pairs):
    """Compares the new and old arrays of one leaf, all in one loop."""
    return functools.reduce(
      operator.and_,
      (
        jnp.abs(x) <= jnp.maximum(jnp.abs(before), largest)
        for x, before in zip(pairs[::2], pairs[1::2], strict=True)
      ),
    )

  def passes(x):
    # No memory accumulates it, so float64 may use all of its range.
    wider = float(jnp.finfo(x.dtype).max) / LARGEST
    return jnp.abs(x) <= largest * (wider if x.dtype == jnp.float64 else 1)

  held = [
    tuple(x for pair in leaf if pair[0] is not pair[1] for x in pair)
    for leaf in zip(*map(_pairs, new, old), strict=True)
  ]
  passing = [(x,) for x in values]
  return barriers.barrier_if_shared(
    holds(fits, held) & holds(passes, passing), len(held) + len(passing)
  )


def can_send(values: jax.Array, workers: int) -> jax.Array:
  """Whether the sum of such numbers over workers is finite, bool scalar."""
  return reductions.all_true(
    lambda x: jnp.abs(x) <= LARGEST / workers, [(values,)]
  )


def all_finite(leaves: Iterable[jax.Array]) -> jax.Array:
  """Whether all numbers are finite, bool scalar."""
  arrays = [(x,) for x in leaves]
  return barriers.barrier_if_shared(holds(jnp.isfinite, arrays), len(arrays))


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


def _pairs(new: Any, old: Any) -> list[tuple[jax.Array, jax.Array]]:
  return list(zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True))
