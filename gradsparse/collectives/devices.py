"""Collectives between the devices along mesh axes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
import functools
import math
from typing import Any

from gradsparse import arguments
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.collectives import mesh_axes
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import numpy as np

AxisName = str | tuple[str, ...]

# Profiles of the compiled program list collectives under this name.
exchange_scope = functools.partial(jax.named_scope, 'gradsparse.exchange')


class Devices:
  """Collectives between the devices along mesh axes.

  Each traced update makes a new object. Methods map trees to trees; results are
  equal on every device unless the method says otherwise. `tally` counts the
  bytes that are sent, during tracing.

  Args:
    axis_name: name of the mapped axis, or of several; None for one device.

  Raises:
    NameError: axis_name is not an axis of the surrounding program.
  """

  def __init__(self, axis_name: AxisName | None):
    self.axis_name = axis_name
    self._names = arguments.axis_names(axis_name)
    self.recorder = counting.active()
    self.tally = self.recorder or counting.Tally(1)
    if axis_name is None:
      self.mode, self.size = 'single', 1
      return
    if self.recorder is not None:
      self.mode, self.size = 'recorded', self.recorder.size(axis_name)
      return
    mesh_axes.check_mapped(self._names)
    self.size = jax.lax.axis_size(axis_name)
    self.tally = counting.Tally(self.size)
    manual = jax.sharding.get_abstract_mesh().manual_axes
    if not all(name in manual for name in self._names):
      self.mode = 'simulated'
    elif self.varies(jax.lax.axis_index(axis_name)):
      self.mode = 'checked'
    else:
      self.mode = 'manual'

  @property
  def _is_alone(self) -> bool:
    """Whether nothing is sent and the other devices are assumed equal."""
    return self.mode in ('single', 'recorded')

  def varies(self, x: jax.Array) -> bool:
    """Whether x is typed varying between devices."""
    return mesh_axes.varies(x, self.axis_name)

  def _equal_over(self, x: jax.Array) -> tuple[str, ...]:
    """The axes of these devices over which x is not typed varying."""
    return tuple(a for a in self._names if not mesh_axes.varies(x, a))

  def local(self, tree: Any) -> Any:
    """The same values, typed varying between devices."""
    if self.mode != 'checked':
      return tree

    def cast(x):
      missing = self._equal_over(x)
      return jax.lax.pcast(x, missing, to='varying') if missing else x

    return jax.tree.map(cast, tree)

  def replicated(self, tree: Any) -> Any:
    """Types values as equal on all devices, which the caller guarantees."""
    if self.mode != 'checked':
      return tree
    return jax.tree.map(lambda x: mesh_axes.unvary(x, self._names), tree)

  def index(self) -> jax.Array:
    """This device's rank, int32 (differs between devices)."""
    if self._is_alone:
      return jnp.int32(0)
    return jax.lax.axis_index(self.axis_name)

  def sum(self, tree: Any) -> Any:
    """Sum over devices; small leaves are reduced together."""
    leaves, treedef = jax.tree.flatten(tree)
    if self.mode == 'single' or not leaves:
      return tree
    batches = joining.batches_of(leaves, join=joining.can_concat())
    operands = [
      jnp.concatenate([leaves[i].ravel() for i in batch])
      if len(batch) > 1
      else leaves[batch[0]]
      for batch in batches
    ]
    # An empty leaf is not sent; zeros have the type of a sum.
    out = [x if x.size else jnp.zeros(x.shape, x.dtype) for x in leaves]
    for batch, summed in zip(
      batches, self._reduce(jax.lax.psum, operands), strict=True
    ):
      if len(batch) == 1:  # not reshaped: it may be sharded over other axes
        out[batch[0]] = summed
        continue
      shapes = [leaves[i].shape for i in batch]
      for i, x in zip(batch, joining.split(summed, shapes), strict=True):
        out[i] = x
    return jax.tree.unflatten(treedef, out)

  def max(self, tree: Any) -> Any:
    """Maximum over devices."""
    leaves, treedef = jax.tree.flatten(tree)
    if self.mode == 'single' or not leaves:
      return tree
    if len({x.dtype for x in leaves}) == 1:
      joined = jnp.concatenate([x.ravel() for x in leaves])
      (joined,) = self._reduce(jax.lax.pmax, [joined])
      out = joining.split(joined, [x.shape for x in leaves])
    else:
      out = self._reduce(jax.lax.pmax, leaves)
    return jax.tree.unflatten(treedef, out)

  @exchange_scope()
  def _reduce(self, op, operands: list[jax.Array]) -> list[jax.Array]:
    for x in operands:
      self._record('all_reduce', x)
    if self._is_alone or not operands:
      return operands
    return list(op(tuple(self.local(operands)), self.axis_name))

  @exchange_scope()
  def gather(self, x: jax.Array) -> jax.Array:
    """All devices' x, shape (P, *x.shape), in rank order."""
    self._record('all_gather', x)
    if self._is_alone:
      return jnp.broadcast_to(x, (self.size, *x.shape))
    if self.mode == 'simulated':
      return simulated_gather(x, self._names)
    # A row of a matrix, not a vector: XLA for TPUs turns a gather of vectors
    # whose length is not a multiple of 128 into an all-reduce, which sends
    # twice as much.
    row = jax.lax.optimization_barrier(x[None])
    if self.mode == 'checked':
      return jax.lax.all_gather(
        self.local(row), self.axis_name, to='invarying', tiled=True
      )
    return jax.lax.all_gather(row, self.axis_name, tiled=True)

  @exchange_scope()
  def permute(self, tree: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends x along (source, destination) pairs; zeros where nothing arrives.

    The result differs between devices.
    """
    for x in jax.tree.leaves(tree):
      self._record('permute', x, perm)
    if self._is_alone:
      return tree

    def sent(x):
      if self.mode == 'simulated':
        return simulated_permute(x, self._names, perm)
      return permute(self.local(x), self.axis_name, perm)

    return jax.tree.map(sent, tree)

  @exchange_scope()
  def all_to_all(self, x: jax.Array) -> jax.Array:
    """Sends row d of x to device d; returns the rows sent to this device.

    Args:
      x: shape (P, ...).

    Returns:
      x's shape; row s came from device s. The result differs between devices.
    """
    self._record('all_to_all', x)
    if self._is_alone:
      return x
    if self.mode == 'simulated':
      return simulated_all_to_all(x, self._names)
    return jax.lax.all_to_all(self.local(x), self.axis_name, 0, 0)

  def _record(self, kind: str, x: Any, perm=None) -> None:
    if self.mode != 'single':
      nbytes = math.prod(x.shape) * jnp.dtype(x.dtype).itemsize
      self.tally.add(self.axis_name, kind, nbytes, perm)


class Shards(Devices):
  """Collectives between the devices of one worker (`gs.sharded`).

  They carry numbers on which all devices of the worker (the replica) must
  agree, and PowerSGD's factors. The workers' tally does not count them.

  Args:
    axes: names of the mesh axes; none if each worker is one device.
  """

  def __init__(self, axes: Sequence[str] = ()):
    self.axes = tuple(axes)
    # A single axis is a string, as in `Audit.sent_by_axis`.
    super().__init__(self.axes[0] if len(self.axes) == 1 else self.axes or None)

  def local(self, tree: Any) -> Any:
    if self.mode != 'checked':
      return tree
    return jax.tree.map(lambda x: mesh_axes.vary(x, self.axes), tree)

  def over(self, axes: Collection[str]) -> Shards:
    """The devices along some of the axes."""
    return Shards([a for a in self.axes if a in axes])

  def without(self, axes: Collection[str]) -> Shards:
    """The devices along the other axes."""
    return Shards([a for a in self.axes if a not in axes])

  def all(self, holds: jax.Array) -> jax.Array:
    """bool scalar: whether `holds` is True on all devices."""
    return self.sum(1 - holds.astype(jnp.int32)) == 0

  def gather(self, x: jax.Array, axis: int = 0) -> jax.Array:
    """The devices' arrays, concatenated along an array axis."""
    return jnp.concatenate(list(super().gather(x)), axis)

  def part(self, x: jax.Array, length: int, axis: int = 0) -> jax.Array:
    """This device's part, of that length, of a result of `gather`."""
    begin = self.index() * length
    return jax.lax.dynamic_slice_in_dim(x, begin, length, axis)


NO_SHARDS = Shards()


# --- replacements of JAX's collectives ----------------------------------------

# `vmap` supports `all_gather` and `all_to_all` over a single axis only, and
# `ppermute` of full permutations only.


def simulated_gather(x: jax.Array, names: Sequence[str]) -> jax.Array:
  """x of all workers along one or more axes, stacked on a new first axis."""
  shape = jnp.shape(x)
  for name in reversed(names):
    x = jax.lax.all_gather(x, name)
  return x.reshape(jax.lax.axis_size(tuple(names)), *shape)


def simulated_permute(
  x: jax.Array, names: Sequence[str], perm: Sequence[tuple[int, int]]
) -> jax.Array:
  """`permute` over axes of vmap."""
  size = jax.lax.axis_size(tuple(names))
  source_of = {target: source for source, target in perm}
  sources = jnp.asarray([source_of.get(w, size) for w in range(size)])
  source = sources[jax.lax.axis_index(tuple(names))]
  return simulated_gather(x, names).at[source].get(mode='fill', fill_value=0)


def simulated_all_to_all(x: jax.Array, names: Sequence[str]) -> jax.Array:
  """Sends row d of x to worker d; row s of the result came from worker s."""
  if len(names) > 1:
    return simulated_gather(x, names)[:, jax.lax.axis_index(tuple(names))]
  return jax.lax.all_to_all(x, names[0], 0, 0)


def permute(
  x: jax.Array, axis_name: Any, perm: Sequence[tuple[int, int]]
) -> jax.Array:
  """`ppermute`, or an equal, faster all-gather. Not for `vmap`.

  Gloo's `ppermute` posts its own data before the request for the partner's. In
  a swap, the later partner's request waits behind its own data, so that one
  direction follows the other. Gloo's all-gather sends halves: the swap takes
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
  """[lower, higher] of each pair, if all workers swap in pairs; else []."""
  to = dict(perm)
  if len(to) < workers or any(to[to[w]] != w or to[w] == w for w in to):
    return []
  return [[w, to[w]] for w in range(workers) if w < to[w]]
