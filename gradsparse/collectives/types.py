"""Types of values under `shard_map(check_vma=True)`: what varies, and casts.

A value is typed varying over a mesh axis if it may differ between the devices
along it. Elsewhere values have no such types; nothing here must be called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradsparse.traced import same_p
import jax
import jax.numpy as jnp


def varying_axes(aval: Any) -> frozenset[str]:
  """The axes over which a type of JAX says that a value varies."""
  kind = getattr(aval, 'manual_axis_type', None)  # `vma` before jax 0.10.2
  return getattr(aval, 'vma', frozenset()) if kind is None else kind.varying


def varies(x: jax.Array, axis_name: Any) -> bool:
  """Whether x is typed varying over an axis, or over one of several."""
  if not isinstance(x, jax.core.Tracer):
    return False  # a constant
  names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
  return not varying_axes(jax.typeof(x)).isdisjoint(names)


def vary(x: jax.Array, axes: Iterable[str]) -> jax.Array:
  """The same value, typed varying over these axes too."""
  missing = tuple(axis for axis in axes if not varies(x, axis))
  if not missing:
    return x
  if not isinstance(x, jax.core.Tracer):
    # JAX casts no constant in a shard_map inside of another one.
    return jnp.asarray(x) + (jax.lax.axis_index(missing) * 0).astype(x.dtype)
  return jax.lax.pcast(x, missing, to='varying')


def unvary(x: jax.Array, axes: Iterable[str]) -> jax.Array:
  """The same value, typed as equal along these axes. It asserts, unchecked.

  The result of `ppermute` is typed varying even where the algorithm leaves the
  same bits everywhere (a butterfly does).
  """
  axes = tuple(axes)
  manual = jax.sharding.get_abstract_mesh().manual_axes
  held = [axis for axis in manual if varies(x, axis)]
  if not set(axes) & set(held):
    return x
  others = [axis for axis in held if axis not in axes]
  return vary(same_p.bind(x), others)
