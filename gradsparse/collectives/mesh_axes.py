"""The program around a scheme: its axes, and what it types as varying.

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


class Surroundings(NamedTuple):
  """The axes of the mesh around a scheme, its own left out.

  Attributes:
    automatic: name and size of each axis over which JAX divides arrays by
      itself.
    manual: names of the axes of surrounding `shard_map`s.
  """

  automatic: dict[str, int]
  manual: tuple[str, ...]


def surroundings(axis_name: Any) -> Surroundings:
  """The mesh around.

  Args:
    axis_name: of the scheme, a tuple of several, or None.
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
  """The axes over which a type of JAX says that a value varies."""
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


def check_mapped(names: tuple[str, ...]) -> None:
  """Refuses names of axes that the program around is not mapped over.

  Raises:
    NameError: names the first, those that there are, and perhaps what it is a
      misspelling of; where there are none, what would map the program.
  """
  for name in names:
    try:
      jax.lax.axis_size(name)
    except NameError as e:
      # JAX tells all of them nowhere else; only the message needs them.
      there = tuple(map(str, jex_core.unsafe_get_axis_names_DO_NOT_USE()))
      raise NameError(
        'axis_name must be an axis that the program around is mapped over, '
        f'{there}, got {name!r}{arguments.did_you_mean(name, there)}'
        f'{"" if there else _UNMAPPED.format(name)}'
      ) from e


# The identity. Only its rule for vmap hears of `spmd_axis_name`.
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
  """x, unless it is mapped by `jax.vmap(spmd_axis_name=...)`.

  Args:
    x: differs along the axis.
    names: of the axis.
    message: of the error.

  Raises:
    ValueError: the axis is spread over devices by `spmd_axis_name`.
  """
  return _not_spmd_p.bind(x, names=names, message=message)
