"""Checks of the worker axes that arrays have outside a step.

A step is written for one worker. Outside it, arrays that differ between workers
have a leading worker axis, P(axis_name), and shared arrays have none, P(). If
workers have several devices, there is a second axis; arrays that differ between
devices too have both, P(axis_name, second). JAX accepts mistakes in this: it
takes the first of several rows of a block, returns the first worker's output,
or broadcasts a memory. The checks here refuse them during tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import reprlib
import textwrap
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.state import differences
from gradsparse.traffic import counting
from gradsparse.transform.sharding import cut_of
from gradsparse.transform.sharding import is_spec
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

AXIS = 'workers'


def axes_of(
  num_workers: int | Mapping[str, int], axis_name: AxisName
) -> dict[str, int]:
  """Axis name -> number of workers, outermost axis first.

  Args:
    num_workers: the number for a single axis, or a mapping for all axes.
    axis_name: the name of a single axis.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range, or is one number for several axes.
  """
  if not isinstance(num_workers, Mapping):
    arguments.axis_name(axis_name, optional=False)
    names = arguments.axis_names(axis_name)
    if len(names) > 1:
      raise ValueError(
        'num_workers must be a mapping for several axes, such as '
        f'{dict.fromkeys(names, 2)}, got {num_workers!r}'
      )
    num_workers = dict.fromkeys(names, num_workers)
  arguments.axis_name(tuple(num_workers), optional=False)
  return {name: arguments.num_workers(n) for name, n in num_workers.items()}


def axes_on(mesh: Mesh | AbstractMesh, axis_name: AxisName) -> dict[str, int]:
  """Axis name -> size, of the workers' axes on a mesh.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: the mesh does not have the axis.
  """
  if not isinstance(mesh, Mesh | AbstractMesh):
    raise TypeError(f'mesh must be a Mesh, got {type(mesh).__name__}')
  arguments.axis_name(axis_name, optional=False)
  names = arguments.axis_names(axis_name)
  for name in names:
    if name not in mesh.shape:
      raise ValueError(
        f'axis_name must be an axis of the mesh, {mesh.axis_names}, got '
        f'{name!r}{arguments.did_you_mean(name, mesh.axis_names)}'
      )
  return {name: mesh.shape[name] for name in names}


def over(fn: Callable[[P, Any], Any], specs: Any, tree: Any) -> Any:
  """Maps `fn(spec, leaf)` over a tree and a prefix tree of specs."""
  specs = _broadcast(specs, tree)
  return jax.tree.map(fn, specs, tree, is_leaf=is_spec)


def without_axes(specs: Any, blocks: Any) -> Any:
  """One worker's arrays, from its blocks with worker axes of size one."""
  return over(lambda spec, x: x[(0,) * len(spec)], specs, blocks)


def with_axes(specs: Any, tree: Any) -> Any:
  """Inverse of `without_axes`."""
  return over(lambda spec, x: jnp.expand_dims(x, range(len(spec))), specs, tree)


def named(spec: P) -> set[str]:
  """The axes that a spec names."""
  return {name for names in cut_of(spec) for name in names}


def _broadcast(specs: Any, tree: Any) -> Any:
  """Expands a prefix tree of specs to one spec for each leaf.

  Raises:
    ValueError: specs is not a prefix of the tree.
  """
  try:
    return jax.tree.broadcast(specs, tree, is_leaf=is_spec)
  except ValueError:
    found = differences.first_difference(specs, tree, is_spec)
    path, given, there = found or ((), specs, tree)
    where = jax.tree_util.keystr(path)[-80:] or 'their root'
    got, wanted = _words(given, there), _words(there, given)
    cure, both = '', (given, there)
    if any(type(x).__module__.startswith('flax.nnx') for x in both):
      cure = ' (Flax NNX: call nnx.as_pure on both)'
    elif got == wanted:
      cure = ', which differ in static fields: make one from the other'
    elif all(hasattr(x, 'pending') for x in both):
      cure = ' (of two schemes: gs.switch converts the state)'
    raise ValueError(
      'in_specs must be a prefix of the arguments, and out_specs of the '
      f'result, got at {where} {got} for {wanted}{cure}'
    ) from None  # JAX prints both trees


def _words(node: Any, other: Any) -> str:
  """A description of a node, and of its children that another one lacks."""
  if is_spec(node):
    return text_of(node)
  name = type(node).__name__
  if isinstance(node, Mapping) and isinstance(other, Mapping):
    more, less = (
      textwrap.shorten(', '.join(repr(k) for k in x if k not in y), 60)
      for x, y in ((node, other), (other, node))
    )
    return f'{name} with {more}' if more else f'{name} without {less}'
  if isinstance(node, tuple | list) and type(node) is type(other):
    return f'{name} of {len(node)}'
  return f'array of shape {node.shape}' if hasattr(node, 'dtype') else name


def text_of(spec: P) -> str:
  """The source text of a spec."""
  return f'P{tuple(spec)}'.replace(',)', ')')


def check_count(in_specs: Sequence[Any], args: Sequence[Any]) -> None:
  """Refuses another number of arguments than of specs.

  Raises:
    TypeError: the numbers differ.
  """
  if len(args) != len(in_specs):
    raise TypeError(
      'in_specs must have a spec for each argument, got '
      f'{len(in_specs)} for {len(args)} arguments'
    )


def check_are_specs(name: str, specs: Any) -> None:
  """Refuses a tree whose leaves are not all PartitionSpecs.

  Raises:
    TypeError: a leaf is not; the message names the first one.
  """
  pairs = jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec)
  for path, spec in pairs:
    if not is_spec(spec):
      text = reprlib.repr(spec)
      raise TypeError(
        f'{name} must be trees of PartitionSpecs, got {text} at '
        f'{jax.tree_util.keystr(path) or "the top"}'
      )


def with_paths(specs: Any, tree: Any) -> Iterator[tuple[Any, P, Any]]:
  """(path, spec, leaf) of each leaf, for a prefix tree of specs."""
  specs = _broadcast(specs, tree)
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  by_leaf = jax.tree.leaves(specs, is_leaf=is_spec)
  for (path, leaf), spec in zip(leaves, by_leaf, strict=True):
    yield path, spec, leaf


def check_order(what: str, spec: P, axes: Mapping[str, int]) -> None:
  """Refuses a spec with another axis than the workers', or in another order.

  Args:
    what: the place of the spec, for the message.
    spec: spec of an array with worker axes.
    axes: axis name -> number of workers, outermost first.

  Raises:
    ValueError: the axes are others, or in another order.
  """
  if tuple(spec) != tuple(axis for axis in axes if axis in spec):
    raise ValueError(
      f'{what} must name axes of {tuple(axes)}, each by itself and in this '
      f'order, got {spec}'
    )


def check_leading(
  name: str, specs: Any, tree: Any, axes: Mapping[str, int], cure: str
) -> None:
  """Refuses arrays whose worker axes are missing or of another size.

  Args:
    name: the tree's name.
    specs: a prefix tree of PartitionSpecs.
    tree: global arrays, with worker axes.
    axes: axis name -> number of workers.
    cure: the remedy; {0} stands for the sizes.

  Raises:
    ValueError: the message names the first such leaf, its shape and the
      expected axes.
  """
  for path, spec, x in with_paths(specs, tree):
    shape, want = np.shape(x), tuple(axes[axis] for axis in spec)
    if shape[: len(want)] != want:
      sizes = ', '.join(map(str, want))
      raise ValueError(
        f'{name}{jax.tree_util.keystr(path)} has shape {shape}, but its spec '
        f'{spec} needs leading worker axes: ({sizes}, ...). '
        + cure.format(sizes)
      )


def shapes(tree: Any) -> Any:
  """ShapeDtypeStructs without devices, meshes or traces."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type),
    jax.eval_shape(lambda x: x, tree),
  )


def trace(
  fn: Callable[..., Any],
  *args: Any,
  axes: Mapping[str, int],
  in_specs: Any,
  out_specs: Any,
) -> None:
  """Traces fn as `shard_map(check_vma=True)` does, without devices.

  Args:
    fn: function of one worker's blocks.
    *args: only their shapes and dtypes are used.
    axes: axis name -> number of workers.
    in_specs: of the arguments.
    out_specs: of the result.
  """
  mesh = AbstractMesh(
    tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes)
  )
  mapped = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
  # Without the mesh and the recorder of the surrounding program.
  no_mesh = jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
  with no_mesh, counting.recording(None):
    jax.eval_shape(mapped, *shapes(args))
