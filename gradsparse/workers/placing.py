"""Where the state of an optimizer lies on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.sockets import demands
from gradsparse.workers.program import AXIS
from gradsparse.workers.program import specs
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import optax


def axes_on(mesh: Mesh | AbstractMesh, axis_name: AxisName) -> dict[str, int]:
  """The size of each axis of the workers on a mesh, by its name.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: the mesh has no such axis.
  """
  if not isinstance(mesh, Mesh | AbstractMesh):
    raise TypeError(f'mesh must be a Mesh, got {type(mesh).__name__}')
  arguments.axis_name(axis_name, optional=False)
  names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
  for name in names:
    if name not in mesh.shape:
      raise ValueError(
        f'axis_name must be an axis of the mesh, {mesh.axis_names}, got '
        f'{name!r}{arguments.did_you_mean(name, mesh.axis_names)}'
      )
  return {name: mesh.shape[name] for name in names}


def shardings(
  tx: optax.GradientTransformation,
  params: Any,
  mesh: Mesh,
  axis_name: AxisName = AXIS,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Any:
  """Where each leaf of the state belongs that `gs.workers.init` makes.

  Worker-local leaves are divided over the worker axes. What is shaped like the
  parameters is, beside that, sharded like them: as the `param_specs` of a
  `gs.sharded` scheme say, or else as `params` lie on the mesh.

    state = jax.device_put(gs.workers.init(tx, params, 2, 'replica'),
                           gs.workers.shardings(tx, params, mesh, 'replica'))

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays, or ShapeDtypeStructs with their sharding; without worker
      axis. Those without a NamedSharding count as whole on every device.
    mesh: of the program.
    axis_name: the axis that the schemes were given; a tuple of all, the
      outermost first, where they were given several.
    update_kwargs: further arguments of `tx.update`, as in `gs.workers.specs`.

  Returns:
    Tree of NamedShardings.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: the mesh has no such axis; or as `gs.workers.specs`.
  """
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  axes = axes_on(mesh, axis_name)
  with demands.heard() as told:
    state = jax.eval_shape(lambda p: tx.init(p), params)
  own = specs(tx, params, axes, update_kwargs=update_kwargs)

  def spec_of(path, x):
    sharding = getattr(x, 'sharding', None)
    placed = sharding.spec if isinstance(sharding, NamedSharding) else P()
    return told.param_specs.get(jax.tree_util.keystr(path), placed)

  like = jax.tree_util.tree_map_with_path(spec_of, params)
  is_like = _like(params)
  inside = jax.tree.map(
    lambda node: _without_masked(like, node) if is_like(node) else P(),
    state,
    is_leaf=is_like,
  )

  def place(own, inner):
    return NamedSharding(mesh, inner if own == P() else P(*own, *inner))

  return jax.tree.map(place, own, inside)


def _is_masked(x: Any) -> bool:
  return isinstance(x, optax.MaskedNode)


def _like(params: Any) -> Callable[[Any], bool]:
  """Whether a tree is shaped like the parameters, or like some of them."""
  treedef: Any = jax.tree.structure(params)
  shapes = [jnp.shape(x) for x in jax.tree.leaves(params)]

  def is_like(tree):
    leaves, own = jax.tree.flatten(tree, is_leaf=_is_masked)
    return own == treedef and all(
      _is_masked(x) or jnp.shape(x) == shape
      for x, shape in zip(leaves, shapes, strict=True)
    )

  return is_like


def _without_masked(specs: Any, tree: Any) -> Any:
  """The specs of the leaves that a tree has."""
  return jax.tree.map(
    lambda x, spec: x if _is_masked(x) else spec,
    tree,
    specs,
    is_leaf=_is_masked,
  )
