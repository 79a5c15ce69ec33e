"""A step of one worker, run for all: simulated, by pmap or by shard_map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsparse.transform.sharding import is_spec
from gradsparse.workers.axis import WorkerStep
from gradsparse.workers.axis import over
import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
import numpy as np


def _axes(specs_tree, axis_name):
  """0 where a spec names the axis: those before it are mapped already."""
  return jax.tree.map(
    lambda spec: 0 if axis_name in spec else None,
    specs_tree,
    is_leaf=is_spec,
  )


def simulated(step: WorkerStep, donate: Sequence[int]) -> jax.stages.Wrapped:
  """All workers on one device, by a `jax.vmap` an axis."""
  mapped = step.function
  for axis_name, size in reversed(tuple(step.axes.items())):
    mapped = jax.vmap(
      mapped,
      in_axes=_axes(step.in_specs, axis_name),
      out_axes=0,
      axis_name=axis_name,
      axis_size=size,
    )

  def wanted(spec, x):
    """The first worker's, along the axes where all have the same."""
    return x[tuple(slice(None) if a in spec else 0 for a in step.axes)]

  def run(*args):
    step.check_sizes(*args)
    out = mapped(*args)
    # Afterwards: what is wrong without any types says so in its own words.
    step.check_types(*args)
    return over(wanted, step.out_specs, out)

  return jax.jit(run, donate_argnums=donate)


def sharded(
  step: WorkerStep, devices: Sequence[jax.Device], donate: Sequence[int]
) -> jax.stages.Wrapped:
  """A device each, by `jax.shard_map`, whose own trace checks the types."""
  mesh = Mesh(
    np.asarray(devices).reshape(tuple(step.axes.values())),
    tuple(step.axes),
    axis_types=(AxisType.Auto,) * len(step.axes),
  )
  mapped = jax.shard_map(
    step.on_blocks,
    mesh=mesh,
    in_specs=step.in_specs,
    out_specs=step.out_specs,
    check_vma=step.check_vma,
  )

  def run(*args):
    step.check_sizes(*args)
    return mapped(*args)

  return jax.jit(run, donate_argnums=donate)


class Pmapped(jax.stages.Wrapped):
  """A device each, by `jax.pmap`, along one axis.

  What `jax.jit` makes checks while it is traced, once for arguments of the
  same shapes. `jax.pmap` splits the arguments before it traces, for whatever
  number of workers they are, so here the checks come before it.
  """

  def __init__(
    self,
    step: WorkerStep,
    devices: Sequence[jax.Device],
    donate: Sequence[int],
  ):
    self._step = step
    self._checked: set[Any] = set()
    (axis_name,) = step.axes
    self._mapped = jax.pmap(
      step.function,
      axis_name=axis_name,
      in_axes=_axes(step.in_specs, axis_name),
      out_axes=_axes(step.out_specs, axis_name),
      devices=devices,
      donate_argnums=tuple(donate),
    )

  def __call__(self, *args):
    self._check(*args)
    return self._mapped(*args)

  def lower(self, *args) -> jax.stages.Lowered:
    self._check(*args)
    return self._mapped.lower(*args)

  def trace(self, *args) -> jax.stages.Traced:
    self._check(*args)
    return self._mapped.trace(*args)

  def _check(self, *args):
    leaves, treedef = jax.tree.flatten(args)
    kinds = [(np.shape(x), getattr(x, 'dtype', type(x))) for x in leaves]
    key = treedef, *kinds
    if key not in self._checked:
      self._step.check_sizes(*args)
      self._step.check_types(*args)
      self._checked.add(key)
