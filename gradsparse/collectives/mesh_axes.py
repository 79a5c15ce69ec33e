"""The axes of the program around a scheme, and the values typed varying.

Under `shard_map(check_vma=True)` a value is typed varying over a mesh axis if
it may differ between the devices along it. Elsewhere no value is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.traced import same_p
import jax
from jax.extend import core as jex_core
from jax.interpreters import batching
from jax.interpreters import mlir
import jax.numpy as jnp

_UNMAPPED = (
  '. It is mapped over none: in a plain jax.jit there are no workers to '
  'average over. Put the step into gs.workers.wrap or jax.shard_map, on a mesh '
  'that has {0!r}, or into jax.pmap or jax.vmap with axis_name={0!r}. For one '
  'worker give the scheme axis_name=None.'
)
_OTHERS = (
  '. Give one of these names, or map the program over {0!r}: '
  'gs.workers.init, specs, wrap and parallel take axis_name={0!r}'
)


class Surroundings(NamedTuple):
  """The axes of the mesh around a scheme, without the scheme's own.

  Attributes:
    automatic: name -> size of each axis over which JAX itself shards arrays.
    manual: names of the axes of surrounding `shard_map`s.
  """

  automatic: dict[str, int]
  manual: tuple[str, ...]


def surroundings(axis_name: Any) -> Surroundings:
  """The axes of the surrounding mesh.

  Args:
    axis_name: the scheme's axis, a tuple of several, or None.
  """
  mesh = jax.sharding.get_abstract_mesh()
  own = arguments.axis_names(axis_name)
  others = [name for name in mesh.axis_names if name not in own]
  automatic = {
    name: mesh.shape[name] for name in others if name not in mesh.manual_axes
  }
  manual = tuple(name for name in others if name in mesh.manual_axes)
  return Surroundings(automatic, manual)


def varying_axes(aval: Any) -> frozenset[str]:
  """The axes over which a JAX type is varying."""
  kind = getattr(aval, 'manual_axis_type', None)  # `vma` before jax 0.10.2
  return getattr(aval, 'vma', frozenset()) if kind is None else kind.varying


def varies(x: jax.Array, axis_name: Any) -> bool:
  """Whether x is typed varying over an axis, or over one of several."""
  if not isinstance(x, jax.core.Tracer):
    return False  # a constant
  names = arguments.axis_names(axis_name)
  return not varying_axes(jax.typeof(x)).isdisjoint(names)


def vary(x: jax.Array, axes: Iterable[str]) -> jax.Array:
  """The same value, typed varying over these axes too."""
  missing = tuple(axis for axis in axes if not varies(x, axis))
  if not missing:
    return x
  if not isinstance(x, jax.core.Tracer):
    # JAX cannot cast a constant in a nested shard_map.
    return jnp.asarray(x) + (jax.lax.axis_index(missing) * 0).astype(x.dtype)
  return jax.lax.pcast(x, missing, to='varying')


def varying_zero(tree: Any) -> jax.Array:
  """A zero, typed varying wherever a leaf is."""
  found = jnp.float32(0)
  for x in jax.tree.leaves(tree):
    if not jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended):
      any_of_it = jnp.any(jnp.ravel(x)[:1] != 0)
      found = found + jnp.where(any_of_it, 0.0, 0.0)
  return found


def unvary(x: jax.Array, axes: Iterable[str]) -> jax.Array:
  """The same value, typed as equal along these axes, which is not checked.

  The result of `ppermute` is typed varying even if the algorithm, such as a
  butterfly, makes it equal everywhere.
  """
  axes = tuple(axes)
  manual = jax.sharding.get_abstract_mesh().manual_axes
  held = [axis for axis in manual if varies(x, axis)]
  if not set(axes) & set(held):
    return x
  others = [axis for axis in held if axis not in axes]
  return vary(same_p.bind(x), others)


def check_mapped(names: tuple[str, ...]) -> None:
  """Refuses names of axes that the surrounding program is not mapped over.

  Raises:
    NameError: a name is unknown. The message names it, the known axes and a
      similar one; if there is no axis, it says how to map the program.
  """
  for name in names:
    try:
      jax.lax.axis_size(name)
    except NameError as e:
      # JAX has no public list of axes; only the message needs it.
      there = tuple(map(str, jex_core.unsafe_get_axis_names_DO_NOT_USE()))
      raise NameError(
        'axis_name must be an axis that the program around is mapped over, '
        f'{there}, got {name!r}{arguments.did_you_mean(name, there)}'
        f'{(_OTHERS if there else _UNMAPPED).format(name)}'
      ) from e


# The identity, whose batching rule sees `spmd_axis_name`.
_not_spmd_p = jex_core.Primitive('gradsparse_not_spmd')
_not_spmd_p.def_impl(lambda x, **params: x)
_not_spmd_p.def_abstract_eval(
  lambda x, **params: jax.core.ShapedArray(x.shape, x.dtype)
)
mlir.register_lowering(_not_spmd_p, lambda _, x, **params: [x])


def _mapped(axis_data, args, dims, *, names, message):
  if axis_data.name in names and axis_data.spmd_name is not None:
    raise ValueError(message)
  x = _not_spmd_p.bind(*args, names=names, message=message)
  return x, dims[0]


batching.fancy_primitive_batchers[_not_spmd_p] = _mapped


def refuse_spmd(
  x: jax.Array, names: tuple[str, ...], message: str
) -> jax.Array:
  """Returns x, unless it is mapped by `jax.vmap(spmd_axis_name=...)`.

  Args:
    x: an array that differs along the axes.
    names: the axes' names.
    message: the error's message.

  Raises:
    ValueError: `spmd_axis_name` spreads an axis over devices.
  """
  return _not_spmd_p.bind(x, names=names, message=message)
