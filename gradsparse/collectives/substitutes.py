"""What takes the place of a collective that JAX lacks, or has a slow one of.

A vmap knows `all_gather` and `all_to_all` over a single axis, and `ppermute` of
whole permutations only. Gloo, between processes on CPUs, is slow at swaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsparse.backend import platforms
import jax
import jax.numpy as jnp
import numpy as np


def simulated_gather(x: jax.Array, names: Sequence[str]) -> jax.Array:
  """The x of all workers of one or more axes, along a new first axis."""
  shape = jnp.shape(x)
  for name in reversed(names):
    x = jax.lax.all_gather(x, name)
  return x.reshape(jax.lax.axis_size(tuple(names)), *shape)


def simulated_permute(
  x: jax.Array, names: Sequence[str], perm: Sequence[tuple[int, int]]
) -> jax.Array:
  """`permute`, over axes of vmap."""
  size = jax.lax.axis_size(tuple(names))
  source_of = {target: source for source, target in perm}
  sources = jnp.asarray([source_of.get(w, size) for w in range(size)])
  source = sources[jax.lax.axis_index(tuple(names))]
  return simulated_gather(x, names).at[source].get(mode='fill', fill_value=0)


def simulated_all_to_all(x: jax.Array, names: Sequence[str]) -> jax.Array:
  """Row d of x goes to worker d; row s of the result came from worker s."""
  if len(names) > 1:
    return simulated_gather(x, names)[:, jax.lax.axis_index(tuple(names))]
  return jax.lax.all_to_all(x, names[0], 0, 0)


def permute(
  x: jax.Array, axis_name: Any, perm: Sequence[tuple[int, int]]
) -> jax.Array:
  """`ppermute`, or what does the same faster. Not for `vmap`.

  Gloo's `ppermute` posts the data before the request for the partner's. Where
  two partners swap, the later one's request waits behind its own data, so that
  one direction follows the other. Its all-gather goes by halves: the swap takes
  the time of one and a half messages instead of two.
  """
  workers = jax.lax.axis_size(axis_name)
  one_axis = isinstance(axis_name, str)
  pairs = (
    _pairs(perm, workers) if one_axis and platforms.sends_by_gloo() else []
  )
  if not pairs:
    return jax.lax.ppermute(x, axis_name, perm)
  both = jax.lax.all_gather(x, axis_name, axis_index_groups=pairs)
  higher = np.isin(np.arange(workers), [pair[1] for pair in pairs])
  own = jnp.asarray(higher)[jax.lax.axis_index(axis_name)]
  return jnp.where(own, both[0], both[1])


def _pairs(perm: Sequence[tuple[int, int]], workers: int) -> list[list[int]]:
  """[lower, higher] of each pair, if all workers swap in pairs; else none."""
  to = dict(perm)
  if len(to) < workers or any(to[to[w]] != w or to[w] == w for w in to):
    return []
  return [[w, to[w]] for w in range(workers) if w < to[w]]
