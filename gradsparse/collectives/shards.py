"""The devices that hold one worker's leaves in parts (`gs.sharded`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gradsparse.collectives import types
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp


class Shards:
  """The mesh axes inside a worker, as one of its devices sees the others.

  What is sent here stays inside the worker (the replica): numbers that all its
  devices must agree on, and PowerSGD's factors.

  Args:
    axes: names of the mesh axes; none if each worker is one device.
    checked: whether types say what varies over them.
  """

  def __init__(self, axes: Sequence[str] = (), checked: bool = False):
    self.axes = tuple(axes)
    self._checked = checked
    self._recorder = counting.active()

  def over(self, axes: Collection[str]) -> Shards:
    """The devices along some of the axes."""
    return Shards([a for a in self.axes if a in axes], self._checked)

  def without(self, axes: Collection[str]) -> Shards:
    """The devices along the other axes."""
    return Shards([a for a in self.axes if a not in axes], self._checked)

  def index(self) -> jax.Array:
    """int32, this device's number among them."""
    if not self.axes or self._recorder is not None:
      return jnp.int32(0)
    return jax.lax.axis_index(self.axes)

  def sum(self, x: jax.Array) -> jax.Array:
    """Sum over them; the same on all."""
    return self._reduce(jax.lax.psum, x)

  def max(self, x: jax.Array) -> jax.Array:
    """Maximum over them; the same on all."""
    return self._reduce(jax.lax.pmax, x)

  def all(self, holds: jax.Array) -> jax.Array:
    """bool scalar: it holds on all of them."""
    if not self.axes:
      return holds
    return self.sum(1 - holds.astype(jnp.int32)) == 0

  def _reduce(self, op, x: jax.Array) -> jax.Array:
    if not self.axes:
      return x
    if self._recorder is not None:
      self._record(self._recorder, 'all_reduce', x)
      return x
    return op(self._local(x), self.axes)

  def gather(self, x: jax.Array, axis: int = 0) -> jax.Array:
    """Their arrays one after the other along an array axis."""
    if not self.axes:
      return x
    if self._recorder is not None:
      self._record(self._recorder, 'all_gather', x)
      return jnp.concatenate([x] * self._recorder.size(self.axes), axis)
    return jax.lax.all_gather(self._local(x), self.axes, axis=axis, tiled=True)

  def part(self, x: jax.Array, length: int, axis: int = 0) -> jax.Array:
    """This device's part, of that length, of what `gather` returned."""
    if not self.axes:
      return x
    begin = self.index() * length
    return jax.lax.dynamic_slice_in_dim(x, begin, length, axis)

  def typed(self, x: jax.Array) -> jax.Array:
    """Types a value as equal on all of them. The caller vouches for it."""
    if not self._checked or not self.axes:
      return x
    return types.unvary(x, self.axes)

  def _record(
    self, recorder: counting.Recorder, kind: str, x: jax.Array
  ) -> None:
    # One axis goes by its name, as in `Audit.sent_by_axis`.
    axes = self.axes[0] if len(self.axes) == 1 else self.axes
    recorder.add(axes, kind, x.nbytes)

  def _local(self, x: jax.Array) -> jax.Array:
    return types.vary(x, self.axes) if self._checked else x


NO_SHARDS = Shards()
