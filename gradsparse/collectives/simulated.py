"""Collectives over axes of `jax.vmap`, where it has none or other ones.

A vmap knows `all_gather`, `ppermute` and `all_to_all` over a single axis, and
`ppermute` of whole permutations only.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def gather(x: jax.Array, names: Sequence[str]) -> jax.Array:
  """The x of all workers of one or more axes, along a new first axis."""
  shape = jnp.shape(x)
  for name in reversed(names):
    x = jax.lax.all_gather(x, name)
  return x.reshape(jax.lax.axis_size(tuple(names)), *shape)


def send(
  x: jax.Array, names: Sequence[str], perm: Sequence[tuple[int, int]]
) -> jax.Array:
  """`collectives.permute.send`."""
  size = jax.lax.axis_size(tuple(names))
  sources = {s for s, _ in perm}
  source_of = {target: source for source, target in perm}
  me = jax.lax.axis_index(tuple(names))
  if len(names) > 1:
    whole = [source_of.get(w, w) for w in range(size)]
    x = gather(x, names)[jnp.asarray(whole)[me]]
  else:
    # Complete it, then blank out what nobody was meant to receive.
    idle = [w for w in range(size) if w not in sources]
    spare = [w for w in range(size) if w not in source_of]
    x = jax.lax.ppermute(x, names[0], [*perm, *zip(idle, spare, strict=True)])
  meant = jnp.asarray([w in source_of for w in range(size)])
  return jnp.where(meant[me], x, jnp.zeros_like(x))


def all_to_all(x: jax.Array, names: Sequence[str]) -> jax.Array:
  """Row d of x goes to worker d; row s of the result came from worker s."""
  if len(names) > 1:
    return gather(x, names)[:, jax.lax.axis_index(tuple(names))]
  return jax.lax.all_to_all(x, names[0], 0, 0)
