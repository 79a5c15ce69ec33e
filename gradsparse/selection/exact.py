"""The k largest magnitudes of vectors, exactly.

`jax.lax.top_k` is slow for millions of numbers: on GPUs it is a full sort.
candidates.py describes the algorithm used instead. Ties keep the lower index.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

from gradsparse.backend import joining
from gradsparse.selection import candidates
from gradsparse.selection import thresholds
import jax
import jax.numpy as jnp
import numpy as np

# Fewer numbers are sorted.
_SMALL = 1 << 14


def count(density: float, size: int) -> int:
  """k = min(n, max(1, ceil(density n - 1e-6))); 0 for an empty leaf.

  >>> import gradsparse as gs
  >>> [gs.extend.selection.count(0.1, size) for size in (25, 2)]
  [3, 1]
  """
  return min(size, max(1, math.ceil(density * size - 1e-6)))


def traced_count(density: jax.Array, size: int | jax.Array) -> jax.Array:
  """`count` for a density that is known at run time only, int32.

  In float32 arithmetic, the result may differ from `count` by one; from 2^24
  on, by as much as float32 rounds k. A density of 1 gives all elements.

  >>> import gradsparse as gs, jax
  >>> count = jax.jit(lambda d: gs.extend.selection.traced_count(d, 10))
  >>> int(count(0.25))
  3
  """
  k = jnp.ceil(density * size - 1e-6).astype(jnp.int32)
  k = jnp.where(density >= 1, size, k)
  return jnp.minimum(size, jnp.maximum(1, k))


def top_k(
  x: jax.Array, k: int, *, ranked: bool = False
) -> tuple[jax.Array, jax.Array]:
  """The k entries of largest magnitude.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> x = jnp.array([3.0, -1.0, 0.5, -4.0])
  >>> print(*gs.extend.selection.top_k(x, 2))
  [ 3. -4.] [0 3]
  >>> print(*gs.extend.selection.top_k(x, 2, ranked=True))
  [-4.  3.] [3 0]

  Args:
    x: float32[n].
    k: how many, 0 <= k <= n.
    ranked: whether the largest come first, ties by index; else all by index.

  Returns:
    (values float32[k], indices int32[k]).
  """
  values, indices = top_k_of_each([x], [k])
  if ranked:
    order = -thresholds.magnitudes(values)
    _, indices, values = jax.lax.sort((order, indices, values), num_keys=2)
  return values, indices


def top_k_of_each(
  leaves: Sequence[jax.Array],
  counts: Sequence[int],
  now: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The entries of largest magnitude of each of several leaves.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> leaves = [jnp.array([3.0, -1.0, 0.5, -4.0]), jnp.array([1.0, 2.0])]
  >>> print(*gs.extend.selection.top_k_of_each(leaves, [1, 1]))
  [-4.  2.] [3 5]

  Args:
    leaves: float32, of any shape: each stands for the vector of its elements.
    counts: k of each, at most its size.
    now: int32, traced numbers of slots to fill, at most `counts`. None fills
      all.

  Returns:
    (values float32[m], indices int32[m]), m the sum of counts. Indices are
    those of the concatenated vectors, and ascend. With `now`, empty slots come
    last, with the number of all elements as index, and value 0.
  """
  if sum(x.size for x in leaves) < _SMALL:
    return _by_sorting([x.reshape(-1) for x in leaves], counts, now)
  some = [i for i, x in enumerate(leaves) if x.size]
  if not sum(counts):
    return jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32)
  found = candidates.of_vectors(
    [leaves[i] for i in some], [max(1, counts[i]) for i in some]
  )
  wanted = jnp.asarray(counts, jnp.int32) if now is None else now
  return found.largest(wanted[np.asarray(some)], sum(counts), len(leaves))


def top_k_of_all(
  leaves: Sequence[jax.Array], k: int, now: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """The k entries of largest magnitude of all leaves together.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> leaves = [jnp.array([3.0, -1.0, 0.5, -4.0]), jnp.array([1.0, 2.0])]
  >>> print(*gs.extend.selection.top_k_of_all(leaves, 2))
  [ 3. -4.] [0 3]

  Args:
    leaves: as of `top_k_of_each`.
    k: how many, 1 <= k <= the number of all elements.
    now: int32, a traced number of slots to fill, at most k. None fills all.

  Returns:
    As `top_k_of_each`, with m = k.
  """
  if sum(x.size for x in leaves) < _SMALL:
    joined = joining.concat([x.reshape(-1) for x in leaves])
    return _by_sorting([joined], [k], None if now is None else now[None])
  found = candidates.of_all([x for x in leaves if x.size], k)
  wanted = jnp.int32(k) if now is None else now
  return found.largest(wanted[None], k, len(leaves))


def _by_sorting(
  leaves: Sequence[jax.Array], counts: Sequence[int], now: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
  """As `top_k_of_each`, for few numbers, where only compile time matters."""
  joined = joining.concat(leaves) if leaves else jnp.zeros(0, jnp.float32)
  size, begin = joined.shape[0], 0
  indices = [jnp.zeros(0, jnp.int32)]
  for number, (x, k) in enumerate(zip(leaves, counts, strict=True)):
    own = begin + jax.lax.top_k(jnp.abs(x), k)[1]
    if now is not None:
      own = jnp.where(jnp.arange(k) < now[number], own, size)
    indices.append(own)
    begin += x.shape[0]
  places = jnp.sort(jnp.concatenate(indices))
  return joined.at[places].get(mode='fill', fill_value=0), places
