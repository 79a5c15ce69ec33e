"""About the k largest magnitudes of vectors, by sampled thresholds."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from gradsparse import draws
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import reductions
from gradsparse.selection import candidates
from gradsparse.selection import thresholds
import jax
import jax.numpy as jnp
import numpy as np


def capacity(k: Any, size: Any) -> Any:
  """ceil(1.3 k), at most n: the most entries sent where k are expected.

  DGC's authors select again above 1.3 k. Exact for ints and for int32.

  >>> import gradsparse as gs
  >>> [gs.extend.selection.capacity(10, size) for size in (100, 12)]
  [13, 12]
  """
  most = k + (3 * k + 9) // 10
  return min(size, most) if isinstance(k, int) else jnp.minimum(size, most)


def sampled_top_k_of_each(
  leaves: Sequence[jax.Array],
  counts: Sequence[int],
  sample_rate: float,
  key: jax.Array,
  now: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """About k entries of each vector: all that reach a sampled threshold.

  This is DGC section 5. Of a vector exactly d = ceil(sample_rate n) elements
  are drawn, with replacement (the vector itself if d = n). The threshold is the
  max(1, round(k d / n))-th largest magnitude among them. The entries that reach
  it are sent, about k; at k = n all are sent. If more than ceil(1.3 k) reach
  it, exactly the k largest are sent. This cut lowers the mean: it is k if the
  sample holds a hundred of the k largest, 0.96 k if twenty, 0.91 k if ten. The
  message has ceil(1.3 k) slots, including empty ones; the paper's message is as
  long as its content.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> leaves = [jnp.array([3.0, -1.0, 0.5, -4.0])]
  >>> def select(key):  # a sample of all elements, and three slots
  ...   return gs.extend.selection.sampled_top_k_of_each(leaves, [2], 1.0, key)
  >>> print(*jax.jit(select)(jax.random.key(0)))
  [ 3. -4.  0.] [0 3 4]

  Args:
    leaves: float32 vectors, none empty.
    counts: k of each, at least 1.
    sample_rate: fraction of the elements that is drawn, in (0, 1].
    key: PRNG key.
    now: int32, traced k of each, from 1 to `counts`. None is `counts`.

  Returns:
    (values float32[c], indices int32[c]), c the sum of capacity(k, n). Indices
    are those of the concatenated vectors, and ascend. Empty slots come last,
    with the number of all elements as index, and value 0.

  References:
    Lin et al., arXiv 1712.01887, section 5.
  """
  sizes = [x.shape[0] for x in leaves]
  slots = [capacity(k, n) for k, n in zip(counts, sizes, strict=True)]
  # One row more than there are slots. If all these rows have an element that
  # reaches the threshold, more than ceil(1.3 k) elements are counted, and
  # exactly k are sent.
  most = [min(slot + 1, n) for slot, n in zip(slots, sizes, strict=True)]
  found = candidates.of_vectors(leaves, most)
  wanted = jnp.asarray(counts, jnp.int32) if now is None else now
  length = jnp.asarray(sizes, jnp.int32)
  bars = _bars(leaves, wanted, sample_rate, key)
  # At k = n all elements reach the bar 1, the least rank.
  bars = jnp.where(wanted < length, bars, 1)
  reach = thresholds.reaching(found.ranks, found.lengths, bars)
  enough = reach <= capacity(wanted, length)
  sent = jnp.where(enough, reach, wanted)
  return found.largest(sent, sum(slots), len(leaves))


def _bars(
  leaves: Sequence[jax.Array],
  wanted: jax.Array,
  sample_rate: float,
  key: jax.Array,
) -> jax.Array:
  """int32, the threshold of each vector, a rank."""
  sizes = np.asarray([x.shape[0] for x in leaves])
  drawn = [math.ceil(sample_rate * int(n)) for n in sizes]
  limits = jnp.asarray(sizes, jnp.uint32)[thresholds.segment_of(drawn)]
  places = barriers.barrier_if_shared(draws.below(key, limits), len(leaves))
  samples = [
    x if n == x.shape[0] else x[own]
    for x, n, own in zip(
      leaves, drawn, joining.split(places, [(n,) for n in drawn]), strict=True
    )
  ]
  rows = [
    reductions.in_rows(thresholds.ranks(thresholds.magnitudes(x)))
    for x in samples
  ]
  share = jnp.asarray(np.asarray(drawn) / sizes, jnp.float32)
  number = jnp.round(wanted.astype(jnp.float32) * share).astype(jnp.int32)
  number = jnp.clip(number, 1, jnp.asarray(drawn, jnp.int32))
  return thresholds.least(
    joining.concat(rows), [x.shape[0] for x in rows], number
  )
