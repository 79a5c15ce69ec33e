"""Where the state of an optimizer lies on a mesh."""

from __future__ import annotations

from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.transform.sharding import shaped_like
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
) -> Any:
  """Where each leaf of the state belongs that `gs.workers.init` makes.

  Worker-local leaves are divided over the worker axes. What is shaped like the
  parameters is, beside that, sharded like them: as `params` lie on the mesh.

    state = jax.device_put(gs.workers.init(tx, params, 2, 'replica'),
                           gs.workers.shardings(tx, params, mesh, 'replica'))

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays, or ShapeDtypeStructs with their sharding; without worker
      axis. Those without a NamedSharding count as whole on every device.
    mesh: of the program.
    axis_name: the axis that the schemes were given; a tuple of all, the
      outermost first, where they were given several.

  Returns:
    Tree of NamedShardings.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: the mesh has no such axis; or as `gs.workers.specs`.
  """
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  axes = axes_on(mesh, axis_name)

  def spec_of(x):
    sharding = getattr(x, 'sharding', None)
    return sharding.spec if isinstance(sharding, NamedSharding) else P()

  like = jax.tree.map(spec_of, params)
  is_like = shaped_like(
    jax.tree.structure(params), [jnp.shape(x) for x in jax.tree.leaves(params)]
  )
  state = jax.eval_shape(tx.init, params)
  inside = jax.tree.map(
    lambda node: like if is_like(node) else P(), state, is_leaf=is_like
  )

  def place(own, inner):
    return NamedSharding(mesh, inner if own == P() else P(*own, *inner))

  return jax.tree.map(place, specs(tx, params, axes), inside)
