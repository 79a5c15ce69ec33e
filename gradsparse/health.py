"""Whether a step may count, judged by what is made of the gradients.

A worker takes a step's gradients in only if it can keep what comes of them:
no number of its memory may be so large that the sum over the workers leaves
float32. Finite gradients are not enough for that. The entries of a sparse
message are judged in the same way, before they are sent. What else comes back
is judged as the update that it becomes, which is equal on all workers, or by
bounds that came with the messages (`Code.bounds`).

A step that fails on one worker is rejected on all. It leaves no trace but in
the memories of those that could take it in, so that the next step with
ordinary gradients goes well.

All comparisons are such that NaN fails. A maximum would not do: on CPUs it
passes over NaN.
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

# Of bfloat16, which is a little smaller than that of float32: an update may
# be of either type.
LARGEST = float(jnp.finfo(jnp.bfloat16).max)

# Beside the sum over workers there are an exchange's own residual, and a
# momentum that moves: together they stay within this many times the sum.
_ROOM = 4


def largest_kept(workers: int, gain: float) -> float:
  """The largest magnitude that a worker may take in.

  Args:
    workers: P.
    gain: of the code, see `Limits.gain`.
  """
  return LARGEST / (_ROOM * workers * gain)


def can_keep(
  new: Any, old: Any, values: Iterable[jax.Array], largest: float
) -> jax.Array:
  """Whether a worker can take in what a step brings, bool scalar.

  A number of the memory may also be larger, if the step did not enlarge it:
  whatever a memory holds, ordinary gradients can be taken in. One pass over
  what accumulating reads.

  Args:
    new: what the memory holds after accumulating (`Memory.magnitudes`).
    old: what it held before.
    values: what is to be delivered of the gradients that no memory takes in.
    largest: see `largest_kept`.
  """

  def fits(*pairs):
    """Of what is kept of one leaf and what was: all is read in one loop."""
    return functools.reduce(
      operator.and_,
      (
        jnp.abs(x) <= jnp.maximum(jnp.abs(before), largest)
        for x, before in zip(pairs[::2], pairs[1::2], strict=True)
      ),
    )

  def passes(x):
    # No memory takes it in, so what is of float64 may be as large as that.
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
  """Whether a sum over workers of such numbers is finite, bool scalar."""
  return reductions.all_true(
    lambda x: jnp.abs(x) <= LARGEST / workers, [(values,)]
  )


def all_finite(leaves: Iterable[jax.Array]) -> jax.Array:
  """Whether there is neither an infinity nor NaN, bool scalar."""
  arrays = [(x,) for x in leaves]
  return barriers.barrier_if_shared(holds(jnp.isfinite, arrays), len(arrays))


def norm(leaves: Iterable[jax.Array]) -> tuple[jax.Array, jax.Array]:
  """The 2-norm of all leaves together, as a product that may overflow.

  The norm over the largest magnitude does not: squares of large numbers would.

  Returns:
    (float32, the largest magnitude; float32, the norm in units of that): 0 and
    0 where there is nothing, and NaN where anything is not finite. Both are
    float64 where a leaf is.
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
  """The type in which gradients of a type are added up as they are."""
  return jnp.float64 if dtype == jnp.float64 else jnp.float32


def is_narrow(dtype: Any) -> bool:
  """Whether numbers of the type are bounded more tightly than `LARGEST`."""
  return float(jnp.finfo(dtype).max) < LARGEST


def holds(
  test: Callable[..., jax.Array], leaves: Iterable[tuple[jax.Array, ...]]
) -> jax.Array:
  """Whether a test holds for all leaves, whatever arrays each has."""
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
